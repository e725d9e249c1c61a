"""The manifest: what an agent is, can do and is limited to. The only place to look a capability up."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from . import VERSION

MODES = ("once", "loop", "reactive", "workflow", "claim")
VERBS = ("Drain", "LameDuck", "Cancel", "Pause", "Resume")


def readable(version: str) -> bool:
    """Whether this side understands an agent of that contract version: any minor of our own major."""
    major, dot, minor = version.partition(".")
    return bool(dot) and minor.isdecimal() and major == VERSION.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where it runs; empty fields are not known."""

    namespace: str = ""
    agent: str = ""
    pod: str = ""
    pod_uid: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A server whose tools it may use, as its manifest names it."""

    name: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a run is stopped; None and 0: no limit."""

    max_steps: int = 0
    max_tokens: int = 0
    deadline: timedelta | None = None
    max_depth: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Surfaces:
    """What it serves beside GetManifest, GetStatus and health."""

    verbs: tuple[str, ...] = VERBS
    messages: bool = False
    events: bool = True
    queue: str = ""
    subscriptions: tuple[str, ...] = ()
    metrics_port: int = 9090
    metrics_version: str = VERSION
    exit_codes_version: str = VERSION
    pause_holds_runs: bool = True


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an agent says of itself."""

    implementation: str
    implementation_version: str
    mode: str
    placement: Placement = field(default_factory=Placement)
    model: str = ""
    tool_servers: tuple[ToolServer, ...] = ()
    limits: Limits = field(default_factory=Limits)
    surfaces: Surfaces = field(default_factory=Surfaces)
    contract_version: str = VERSION
