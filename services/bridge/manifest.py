"""agentd's manifest as ours. What it leaves out is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from libs.contract.manifest import VERBS, Limits, Manifest, Placement, Surfaces, ToolServer
from libs.errors import PreconditionError
from libs.identity import Principal

MAJOR = 1
_PREFIX = "a2a."


@dataclass(frozen=True, slots=True)
class Known:
    """What the bridge knows and the agent does not."""

    me: Principal
    queue: str
    slots: int
    max_depth: int
    subscriptions: tuple[str, ...]
    metrics_port: int


def manifest_of(body: Mapping[str, Any], known: Known) -> Manifest:
    """PreconditionError if the agent speaks a major version of the contract that we do not."""
    version = str(body.get("contract_version", ""))
    if version.partition(".")[0] != str(MAJOR):
        raise PreconditionError(f"the agent speaks contract {version or 'nothing'}, the bridge {MAJOR}.x")
    surfaces = body.get("surfaces") or {}
    identity = body.get("identity") or {}
    me = known.me
    return Manifest(
        implementation="agentd",
        implementation_version=str(body.get("agent_version", "")),
        mode="claim" if known.queue else str(body.get("mode", "")),
        placement=Placement(me.namespace, me.name, me.pod, me.uid, str(identity.get("node") or "")),
        model=str(body.get("model") or ""),
        tool_servers=tuple(
            ToolServer(str(each["name"]), tuple(map(str, each.get("tags") or ())))
            for each in body.get("mcp_servers") or ()
        ),
        limits=_limits(body.get("limits") or {}, known),
        surfaces=Surfaces(
            verbs=_verbs(surfaces.get("operator_tools") or ()),
            messages=bool(surfaces.get("a2a")),
            queue=known.queue,
            subscriptions=known.subscriptions,
            metrics_port=known.metrics_port,
            exit_codes_version=str(surfaces.get("exit_codes") or ""),
            pause_holds_runs=True,
        ),
    )


def _verbs(tools: object) -> tuple[str, ...]:
    named = {str(each).removeprefix(_PREFIX) for each in tools} if isinstance(tools, list) else set()
    return tuple(verb for verb in VERBS if verb in named)


def _limits(limits: Mapping[str, Any], known: Known) -> Limits:
    deadline = limits.get("deadline_secs")
    return Limits(
        max_steps=int(limits.get("max_steps") or 0),
        max_tokens=int(limits.get("max_tokens") or 0),
        deadline=timedelta(seconds=float(deadline)) if deadline else None,
        max_depth=known.max_depth,
        slots=known.slots,
    )
