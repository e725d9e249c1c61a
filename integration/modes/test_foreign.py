"""Agents that speak agentd-1, with the bridge beside them: the stand-in of agentd, started as a command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ..machine import until
from ..scripted import Fail, Reply, Say, Use
from ..toolserver import RESOURCE, ToolServer
from .home import NAMESPACE, Home
from .test_once import used

STANDIN: dict[str, Any] = {
    "contract": "agentd-1",
    "image": "agentd-standin",
    "instruction": "Count, then say so.",
    "podTemplate": {
        "spec": {"containers": [{"name": "agent", "command": ["python", "-P", "-m", "libs.testing.agentd"]}]}
    },
}


def test_a_fleet_works_off_its_queue_also_when_its_agent_is_killed(home: Home, tools: ToolServer) -> None:
    name, queue = "foreign-crew", f"{NAMESPACE}/foreign-crew"
    home.start(
        name,
        Use("count"),
        Say("Counted."),
        tools=tools,
        kind="AgentFleet",
        template=STANDIN,
        scaling={"minReplicas": 1, "maxReplicas": 1},
        work={"slots": 2, "lease": "300s"},
    )
    home.wait(name)
    tools.hold()
    lines = "".join(f"Item {number}.\n" for number in range(4))
    home.machine.done("work", "submit", queue, "-", "--group", "g", stdin=lines)
    until(lambda: tools.held == 2, "not all slots are in a call")
    home.kill(name)
    until(lambda: tools.held == 0, "the killed one still calls")
    tools.release()
    watched = home.machine.run("work", "watch", queue, "--group", "g", "-o", "json")
    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout.splitlines()[-1])["settled"] == {"succeeded": 4}
    said = home.machine.done("work", "results", queue, "-o", "json").splitlines()
    assert len({json.loads(line)["id"] for line in said}) == len(said) == 4
    assert len(tools.calls) == 6
    assert home.restarts(name) == 1
    home.delete(name, "fleet")
    until(lambda: not home.pods(name), "its pod stays")


@pytest.mark.parametrize(
    ("name", "replies", "limits", "codes", "intent", "reason", "steps"),
    [
        ("completes", [Use("count"), Say("I have counted.")], {}, [0], "complete", "completed", 2),
        ("exceeds", [Use("count")] * 9, {"maxSteps": 2}, [7], "policy", "exhausted_steps", 2),
        ("refuses", [Say("No.", finish="content_filter")], {}, [0], "complete", "refused", 1),
        ("without", [Fail(500)], {}, [4, 4], "retriable", "model", 0),
    ],
)
def test_a_run_ends_with_the_agents_own_code(
    home: Home,
    tools: ToolServer,
    name: str,
    replies: list[Reply],
    limits: dict[str, Any],
    codes: list[int],
    intent: str,
    reason: str,
    steps: int,
) -> None:
    """Which says whether it is tried again; the bridge's report says why it ended."""
    spec: dict[str, Any] = {"mode": "once", "limits": limits, "runs": {"retries": 1}}
    home.start(f"foreign-{name}", *replies, tools=tools, **STANDIN, **spec)
    last = home.ended(f"foreign-{name}")
    assert (last["exitCode"], last["intent"], last.get("reason")) == (codes[-1], intent, reason), last
    assert used(steps).items() <= last.items()
    assert home.codes(f"foreign-{name}") == codes
    assert len(tools.calls) == sum(isinstance(each, Use) for each in replies[:steps])


def test_a_killed_run_is_done_by_the_next_pod(home: Home, tools: ToolServer) -> None:
    name, spec = "foreign-killed", dict[str, Any](mode="once", runs={"retries": 1})
    script = home.start(name, Use("count"), Say("Counted."), tools=tools, is_held=True, **STANDIN, **spec)
    until(lambda: script.held == 1, "it does not ask")
    home.kill(name)
    until(lambda: script.held == 0, "the bridge of the killed one still asks")
    script.release()
    last = home.ended(name)
    assert (last["outcome"], last["exitCode"]) == ("Succeeded", 0), last
    assert home.codes(name) == [137, 0]
    assert len(tools.calls) == 1


def test_a_change_wakes_it(home: Home, tools: ToolServer) -> None:
    script = home.start(
        "foreign-reacts",
        Use("count"),
        Say("Handled."),
        tools=tools,
        mode="reactive",
        subscribe=[RESOURCE],
        **STANDIN,
    )
    home.wait("foreign-reacts")
    before = len(tools.calls)
    tools.change("a letter")
    until(lambda: len(tools.calls) == before + 1, "it does not react")
    assert script.asked
    home.delete("foreign-reacts")
