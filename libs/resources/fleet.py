"""AgentFleet: interchangeable agents that share a queue."""

from __future__ import annotations

import msgspec

from .agent import Limits, ModelRef
from .pod import PodTemplate


class WorkerTemplate(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What each agent of the fleet is."""

    image: str = ""
    instruction: str = ""
    model: ModelRef | None = None
    mcp_servers: list[str] = []
    limits: Limits | None = None
    pod_template: PodTemplate | None = None


class Scaling(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """How many agents. `spec.replicas` (kubectl scale) has to be between the two."""

    min_replicas: int = 0
    max_replicas: int = 10


class Work(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Which work the fleet takes and how."""

    queue: str = ""
    """A queue of the namespace. Empty: the fleet's name."""
    slots: int = 4
    """Items that one agent works on at a time."""
    lease: str = "30s"
    """How long an item is an agent's without a sign of life."""
    max_attempts: int = 3
    """Failures after which an item is a dead letter."""


class Coordinator(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """One more Deployment: the fleet's front door, which submits to its queue."""

    template: WorkerTemplate
    replicas: int = 1


class FleetSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A claim fleet: every agent claims from the queue, each item has one owner."""

    template: WorkerTemplate
    replicas: int | None = None
    """Set by `kubectl scale`; absent: minReplicas."""
    scaling: Scaling = msgspec.field(default_factory=Scaling)
    work: Work = msgspec.field(default_factory=Work)
    coordinator: Coordinator | None = None
