"""The manifests of examples/modes, as they are but for the namespace: their model is the stand-in."""

from __future__ import annotations

import pytest

from ..machine import EXAMPLES, until
from ..toolserver import RESOURCE, ToolServer
from .home import NAMESPACE, Home


def text_of(mode: str) -> str:
    """The example of a mode, in our namespace."""
    text = (EXAMPLES / "modes" / f"{mode}.yaml").read_text()
    return text.replace(" demo\n", f" {NAMESPACE}\n")


@pytest.mark.parametrize(
    ("mode", "answer"), [("once", "lighthouse was built in 1857"), ("workflow", "lighthouse")]
)
def test_what_runs_once_is_completed(home: Home, mode: str, answer: str) -> None:
    home.machine.done("apply", "-f", "-", stdin=text_of(mode))
    last = home.ended(mode)
    assert (last["exitCode"], last["reason"], last["steps"]) == (0, "completed", 1 if mode == "once" else 3)
    [said] = [line for line in home.logs(mode).splitlines() if not line.startswith("{")]
    assert answer in said


def test_the_loop_runs(home: Home) -> None:
    home.machine.done("apply", "-f", "-", stdin=text_of("loop"))
    home.wait("loop")
    until(lambda: home.told("loop").ended_runs["completed"] == 1, "it does not run")
    home.machine.done("delete", "agent/loop", "-n", NAMESPACE)


def test_the_reactive_one_reacts_once_its_server_is_a_real_one(home: Home, tools: ToolServer) -> None:
    """The stand-in is offered tools here, and calls none."""
    text = text_of("reactive").replace("https://mail.example.com/mcp", tools.endpoint)
    home.machine.done("apply", "-f", "-", stdin=text.replace("mail://inbox", RESOURCE))
    home.wait("reactive")
    until(lambda: home.told("reactive").ended_runs["completed"] == 1, "it does not react")
    tools.change("a letter")
    until(lambda: home.told("reactive").ended_runs["completed"] == 2, "it does not react to a change")
    assert tools.calls == []
    home.machine.done("delete", "agent/reactive", "-n", NAMESPACE)
