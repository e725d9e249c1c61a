"""What the operator reports."""

from __future__ import annotations

import msgspec


class Condition(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """As metav1.Condition."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class Workload(msgspec.Struct, rename="camel", kw_only=True):
    """A workload that the operator made. Its pods, and no others, get this agent's identity."""

    kind: str
    name: str
    uid: str


class Run(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """How one run ended, or that it is under way."""

    name: str
    start_time: str = ""
    completion_time: str = ""
    outcome: str = ""
    """Running, Succeeded or Failed."""
    exit_code: int | None = None
    intent: str = ""
    """What the exit code asks of the owner: complete, retriable, terminal, policy or infra."""


class AgentStatus(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Of an Agent."""

    observed_generation: int = 0
    phase: str = ""
    conditions: list[Condition] = []
    workloads: list[Workload] = []
    last_run: Run | None = None
    runs: int = 0
    """Runs that ended."""


class FleetStatus(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Of an AgentFleet. replicas and selector serve the scale subresource."""

    observed_generation: int = 0
    conditions: list[Condition] = []
    workloads: list[Workload] = []
    replicas: int = 0
    ready_replicas: int = 0
    selector: str = ""


class PoolStatus(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Of a ModelPool or an MCPServerSet."""

    observed_generation: int = 0
    conditions: list[Condition] = []
    users: int = 0
    """Agents and fleets that name it."""
