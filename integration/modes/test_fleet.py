"""Mode claim, as a fleet that works off its queue with a tool; one of its agents is killed in a call."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from ..machine import until
from ..scripted import Say, Use
from ..toolserver import ToolServer
from .home import NAMESPACE, Home

FLEET: dict[str, Any] = {
    "template": {"instruction": "Count the item, then say so."},
    "scaling": {"minReplicas": 2, "maxReplicas": 2},
    "work": {"slots": 2, "lease": "300s"},  # outlives the test: nothing may wait for its end
}


def results(home: Home, queue: str) -> list[dict[str, Any]]:
    """What the queue has of its items."""
    said = home.machine.done("work", "results", queue, "-o", "json")
    return [json.loads(line) for line in said.splitlines()]


def test_work_of_an_agent_that_is_killed_in_a_call_is_done_by_another(home: Home, tools: ToolServer) -> None:
    name, queue = "crew", f"{NAMESPACE}/crew"
    home.start(name, Use("count"), Say("Counted."), tools=tools, kind="AgentFleet", **FLEET)
    home.wait(name)
    tools.hold()
    lines = "".join(f"Item {number}.\n" for number in range(8))
    home.machine.done("work", "submit", queue, "-", "--group", "g", stdin=lines)
    until(lambda: tools.held == 4, "not all slots are in a call")
    pods = home.processes(name)
    os.kill(sorted(pods.values())[0], signal.SIGKILL)
    until(lambda: tools.held == 2, "the killed one still calls")
    tools.release()
    watched = home.machine.run("work", "watch", queue, "--group", "g", "-o", "json")
    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout.splitlines()[-1])["settled"] == {"succeeded": 8}
    found = results(home, queue)
    assert len({each["id"] for each in found}) == len(found) == 8
    # Two calls were made again; their runs are the items', so the tool can tell.
    assert len(tools.calls) == 10
    assert {call.run_id for call in tools.calls} == {each["id"] for each in found}
    home.delete(name, "fleet")
