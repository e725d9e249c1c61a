"""AgentFleet: interchangeable agents that share a queue."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from .agent import FOREIGN, Contract, Instruction, Limits, ModelRef, ServerSets
from .pod import PodTemplate
from .shape import Image, Rule, lasting, text

_Queue = Annotated[
    str,
    text(200, "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "a queue: lower case letters, digits, dots and dashes"),
]


class WorkerTemplate(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What each agent is."""

    rules: ClassVar = (
        Rule(
            "has(self.image) || has(self.model)",
            "the reference agent needs a model; an image of your own may do without",
            ".model",
        ),
        Rule(
            "has(self.image) || has(self.instruction)",
            "the reference agent needs an instruction; an image of your own may do without",
            ".instruction",
        ),
        *FOREIGN,
    )

    image: Image = ""
    """Container image. Absent: the reference agent."""
    contract: Contract = "agentctl"
    """Which contract the image speaks. Beside an agent that speaks agentd-1 stands a bridge."""
    instruction: Instruction = ""
    """What to do with each item, in words."""
    model: ModelRef | None = None
    mcp_servers: ServerSets = []
    """MCPServerSets of the same namespace whose tools it may use."""
    limits: Limits | None = None
    pod_template: PodTemplate | None = None


class Scaling(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """How many agents, and how they divide the work. `spec.replicas` has to be between the two bounds."""

    rules: ClassVar = (
        Rule("self.minReplicas <= self.maxReplicas", "minReplicas may not be more than maxReplicas"),
        Rule(
            "self.mode == 'claim' || "
            "!(has(self.target) || has(self.targetAge) || has(self.fallbackReplicas))",
            "target, targetAge and fallbackReplicas are for mode claim: demand does not change shards",
        ),
        Rule(
            "self.mode == 'claim' || self.maxReplicas <= 1024",
            "a queue has at most 1024 shards",
            ".maxReplicas",
        ),
        Rule(
            "!has(self.fallbackReplicas) || "
            "(self.fallbackReplicas >= self.minReplicas && self.fallbackReplicas <= self.maxReplicas)",
            "has to be between minReplicas and maxReplicas",
            ".fallbackReplicas",
        ),
    )

    mode: Literal["claim", "shard"] = "claim"
    """claim: each agent takes any item, and demand decides how many agents there are. shard: a fixed number
    of agents, and all items of one shard key go to the same one."""
    min_replicas: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Agents that are there even without work."""
    max_replicas: Annotated[int, Meta(ge=1, le=10_000)] = 10
    """Agents that are there at most."""
    target: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Items, waiting or in work, for one agent. Absent: work.slots."""
    target_age: Annotated[str, lasting("1s", "24h")] | None = None
    """As a second measure, how old the oldest waiting item may be for one agent; the larger number counts."""
    cooldown: Annotated[str, lasting("0s", "1h")] = "5m"
    """Agents go when so long less was to do."""
    fallback_replicas: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Agents while the demand cannot be known. Absent: as many as there are then."""


class Work(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Which work the fleet takes and how."""

    queue: _Queue = ""
    """A queue of the namespace. Absent: the fleet's name."""
    slots: Annotated[int, Meta(ge=1, le=256)] = 4
    """Items that one agent works on at a time."""
    lease: Annotated[str, lasting("1s", "1h")] = "30s"
    """How long an item is an agent's without a sign of life."""
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Failures after which an item is a dead letter."""
    drain: Annotated[str, lasting("1s", "24h")] | None = None
    """How long an agent that has to go may go on with what it holds; what is left is handed back, and the
    attempt does not count. Absent: 25s."""


class Coordinator(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """One more Deployment: the fleet's front door, which submits to its queue."""

    rules: ClassVar = (
        Rule(
            "self.template.contract == 'agentctl'",
            "a coordinator speaks contract agentctl",
            ".template.contract",
        ),
    )

    template: WorkerTemplate
    replicas: Annotated[int, Meta(ge=0, le=100)] = 1
    """How many of it."""


class FleetSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Agents that claim from one queue; each item has one owner."""

    rules: ClassVar = (
        Rule(
            "!has(self.replicas) || "
            "(self.replicas >= self.scaling.minReplicas && self.replicas <= self.scaling.maxReplicas)",
            "has to be between scaling.minReplicas and scaling.maxReplicas",
            ".replicas",
        ),
        Rule(
            "self.scaling.mode == 'claim' || !has(self.replicas) || self.replicas >= 1",
            "has to be at least 1: there is no fleet of no shards",
            ".replicas",
        ),
        Rule(
            "!has(self.work.drain) || "
            "!has(self.template.podTemplate) || !has(self.template.podTemplate.spec) || "
            "!has(self.template.podTemplate.spec.terminationGracePeriodSeconds) || "
            "duration(self.work.drain).getSeconds() < "
            "self.template.podTemplate.spec.terminationGracePeriodSeconds",
            "has to be more than work.drain, or an agent is killed while it drains",
            ".template.podTemplate.spec.terminationGracePeriodSeconds",
        ),
        Rule(
            "self.template.contract != 'agentd-1' || self.work.slots <= 4",
            "an agent of contract agentd-1 works on at most 4 items at a time",
            ".work.slots",
        ),
    )

    template: WorkerTemplate
    replicas: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    """A fixed number of agents, set by `kubectl scale`; in mode shard the number of shards. Absent: as the
    demand has it, minReplicas where nothing scales; in mode shard, minReplicas and at least 1."""
    scaling: Scaling = msgspec.field(default_factory=Scaling)
    work: Work = msgspec.field(default_factory=Work)
    coordinator: Coordinator | None = None
