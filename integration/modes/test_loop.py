"""Mode loop: again and again, until it is told to stop."""

from __future__ import annotations

from typing import Any

from ..machine import until
from ..scripted import Say, Use
from ..toolserver import ToolServer
from .home import NAMESPACE, Home

LOOP: dict[str, Any] = {"mode": "loop", "loop": {"interval": "2s"}, "instruction": "Count, then say so."}


def named(home: Home, kind: str, name: str) -> list[str]:
    """The objects of a kind whose names begin so."""
    found = home.machine.json("get", kind, "-n", NAMESPACE)["items"]
    return [each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith(name)]


def test_a_loop_goes_on_through_kills_until_it_is_deleted(home: Home, tools: ToolServer) -> None:
    script = home.start("loops-on", Use("count"), Say("Done."), tools=tools, **LOOP)
    until(lambda: len(tools.calls) >= 2, "it does not begin again by itself")
    assert home.told("loops-on").ended_runs["completed"] >= 1
    [pod] = home.processes("loops-on")

    script.hold()
    until(lambda: script.held == 1, "it does not ask")
    home.kill("loops-on")  # in a run
    until(lambda: script.broken_off == 1, "the killed one still asks")
    script.release()
    calls = len(tools.calls)
    until(lambda: len(tools.calls) >= calls + 2, "it does not go on after it was killed in a run")

    until(lambda: not home.told("loops-on").runs, "it never rests")
    home.kill("loops-on")  # between runs
    calls = len(tools.calls)
    until(lambda: len(tools.calls) >= calls + 2, "it does not go on after it was killed between runs")
    assert (script.broken_off, tools.given_up) == (1, 0)  # so it was in no call
    assert list(home.processes("loops-on")) == [pod]  # the same pod: a Deployment's container starts again
    assert home.restarts("loops-on") == 2
    home.delete("loops-on")
    until(lambda: not home.pods("loops-on"), "its pod stays")


def test_a_deleted_loop_finishes_its_run_and_exits_0(home: Home) -> None:
    script = home.start("drained", Say("Done."), is_held=True, **LOOP)
    until(lambda: script.held == 1, "it does not ask")

    def delete() -> None:
        home.delete("drained")
        until(lambda: home.told("drained").draining, "it does not drain")
        script.release()

    last = home.last_words("drained", delete)
    assert last["state"]["terminated"]["exitCode"] == 0
    assert (len(script.asked), script.broken_off) == (1, 0)  # finished, not torn down
    assert home.pods("drained") == []
    kinds = ("agents", "deployments", "configmaps", "serviceaccounts")
    until(lambda: not any(named(home, kind, "drained") for kind in kinds), "something of it stays")


def test_a_loop_whose_runs_fail_goes_on(home: Home) -> None:
    script = home.start("fails-on", Say("", refusal="I will not."), **LOOP)
    until(lambda: len(script.asked) >= 3, "it does not go on")
    told = home.told("fails-on")
    assert told.ended_runs["refused"] >= 2
    assert told.ready
    assert home.restarts("fails-on") == 0
    home.delete("fails-on")
