"""AgentService in a line a method; who may call it is in `libs.mesh`."""

from __future__ import annotations

from libs.mesh import METHODS

SERVICE = "agentctl.agent.v1.AgentService"

PURPOSES: dict[str, str] = {
    "GetManifest": "what the agent is, can do and is limited to",
    "GetStatus": "what it is doing now",
    "WatchEvents": "what happened, from the ring, and then as it happens",
    "Drain": "finish and go",
    "LameDuck": "begin nothing more, go on with what is begun; and back",
    "Cancel": "end runs at once",
    "Pause": "hold runs at their next step",
    "Resume": "let them go on",
    "SendMessage": "ask for something: begins a run",
    "GetRun": "one run, with its result",
    "ListRuns": "runs, newest first, by pages",
    "WatchRun": "one run, now and after each change, to its end",
}
"""Every method of the service."""


def callers(method: str) -> frozenset[str]:
    """The roles that may call a method, as the mesh table has them."""
    return METHODS[f"/{SERVICE}/{method}"]
