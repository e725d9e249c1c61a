"""Mode reactive: a run for each change of a resource, whatever is killed or restarted meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from ..machine import until
from ..scripted import Say, Script, Use
from ..toolserver import RESOURCE, ToolServer
from .home import Home

REACTIVE: dict[str, Any] = {"mode": "reactive", "subscribe": [RESOURCE], "instruction": "Count it."}


def about(script: Script, content: str) -> int:
    """Conversations that began with that content of the resource."""
    begun = [body for body in script.asked if body["messages"][-1]["role"] == "user"]
    return sum(content in body["messages"][-1]["content"] for body in begun)


def handled(home: Home, name: str, runs: int) -> None:
    """Returns when so many reactions of this process are done."""
    until(lambda: home.told(name).ended_runs["completed"] == runs, "a reaction is not done")


def test_a_change_is_a_run_and_is_handled_once(home: Home, tools: ToolServer) -> None:
    script = home.start("reacts", Use("count"), Say("Handled."), tools=tools, **REACTIVE)
    home.wait("reacts")
    handled(home, "reacts", 1)  # what was there at the start
    tools.change("a letter")
    handled(home, "reacts", 2)
    tools.change("a letter")  # told again, and no change
    tools.change("a parcel")
    handled(home, "reacts", 3)
    assert [about(script, content) for content in ("nothing yet", "a letter", "a parcel")] == [1, 1, 1]
    assert len(tools.calls) == len({call.run_id for call in tools.calls}) == 3
    last = home.last_words("reacts", lambda: home.delete("reacts"))
    assert last["state"]["terminated"]["exitCode"] == 0
    until(lambda: tools.listening == 0, "it is still subscribed")


@pytest.mark.parametrize("where", ["model", "tool"])
def test_a_killed_reaction_is_done_again(home: Home, tools: ToolServer, where: str) -> None:
    name = f"reacts-in-{where}"
    script = home.start(name, Use("count"), Say("Handled."), tools=tools, **REACTIVE)
    home.wait(name)
    handled(home, name, 1)
    held = script if where == "model" else tools
    held.hold()
    tools.change("a letter")
    until(lambda: held.held == 1, "it does not react")
    home.kill(name)
    held.release()
    until(lambda: home.restarts(name) == 1, "it does not start again")
    home.wait(name)
    handled(home, name, 1)
    assert about(script, "a letter") == 2
    assert len(tools.calls) == (2 if where == "model" else 3)
    tools.change("a parcel")  # it is subscribed again
    handled(home, name, 2)
    assert about(script, "a parcel") == 1
    home.delete(name)


def test_a_change_while_nobody_was_connected_is_handled(home: Home, tools: ToolServer) -> None:
    script = home.start("away", Use("count"), Say("Handled."), tools=tools, **REACTIVE)
    home.wait("away")
    handled(home, "away", 1)
    tools.stop()
    tools.change("a letter")
    tools.start()
    handled(home, "away", 2)
    assert about(script, "a letter") == 1
    tools.change("a parcel")  # it is subscribed again
    handled(home, "away", 3)
    assert (about(script, "a letter"), about(script, "a parcel")) == (1, 1)
    assert home.restarts("away") == 0
    home.delete("away")
