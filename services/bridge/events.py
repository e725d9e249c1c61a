"""agentd's events in the words of the contract: facts, never content. What has no word there is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .foreign import Body

_NAMES = {
    "tool.result": "tool.called",
    "limit.exceeded": "limit.reached",
    "mcp.connect": "server.connected",
    "mcp.connect.fail": "server.lost",
    "mcp.disconnect": "server.lost",
    "subscribe": "resource.subscribed",
    "resource.updated": "resource.changed",
}
_FACTS = ("tool", "server", "limit", "uri", "reason")


@dataclass(frozen=True, slots=True)
class Told:
    """An event as the contract names it."""

    name: str
    fields: Mapping[str, object]


def told_of(event: Body) -> Told | None:
    """None for what the contract has no word for, and for what the bridge tells of itself (runs,
    calls of the model)."""
    name = _NAMES.get(str(event.get("event", "")))
    if name is None:
        return None
    if name == "tool.called" and event.get("is_error"):
        name = "tool.failed"
    return Told(name, {fact: event[fact] for fact in _FACTS if fact in event})
