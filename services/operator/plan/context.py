"""What a plan is made from, and what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libs.cluster import Object
from libs.cluster.kinds import Kind

Reference = tuple[Kind, str]
"""A kind, and a name in the namespace of the object that names it."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What this installation puts into every agent's pod."""

    agent_image: str
    """The reference agent's image; it runs `agentctl-agent`. Empty: every object has to name its own."""
    coordination_address: str
    """host:port, as agents reach it."""
    identity_address: str
    """host:port of the identity listener, as agents reach it."""
    stand_in_url: str = ""
    """The endpoint of pools that name none; "": there is no stand-in."""
    system_namespace: str = "agentctl-system"
    """Where the control plane lives, and no agent may."""
    scaler_address: str = ""
    """host:port of the scaler, as KEDA reaches it. Empty: nothing scales here."""
    loopback: str = "127.0.0.1"
    """Where a bridge and its agent meet. May be the variable $(AGENT_HOST), where pods share one loopback."""
    model_gateway_url: str = ""
    """Where agents reach all models, /v1 included. Empty: at their pool's endpoint."""
    mcp_gateway_url: str = ""
    """Where agents reach all tools. Empty: at the servers themselves."""


@dataclass(frozen=True, slots=True)
class Shards:
    """How coordination divides a queue; count 0: it does not."""

    count: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Context:
    """What the plan depends on besides the object."""

    settings: Rendering
    pools: Mapping[str, Object] = field(default_factory=dict)
    """The ModelPools that the object names and that are there, by name."""
    server_sets: Mapping[str, Object] = field(default_factory=dict)
    """The MCPServerSets that the object names and that are there, by name."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """`contents` of every ConfigMap and Secret that the object names and that is there."""
    namesakes: Sequence[Object] = ()
    """Other Agents and AgentFleets of the namespace that share a name with it (`names`)."""
    scales: bool = False
    """Whether something acts on ScaledObjects here: KEDA, or the local home."""
    workers: Object | None = None
    """The live Deployment or StatefulSet of a fleet's workers, if it is this fleet's."""
    workers_alive: Sequence[str] = ()
    """A fleet's worker pods that have not ended, by name; those that are stopping count."""
    shards: Shards | None = None
    """Of a fleet's queue. None: not known (yet)."""
    queue_owner: str = ""
    """The fleet that has its queue, if that is another, and does not share it."""
    queue_wait: str = ""
    """Why its queue is not divided as it wants, although it has no workers."""
    awaits_certificate: bool = False
    """Whether KEDA has to get its certificate for the scaler before it hears of the fleet: it would call in
    the clear, and not notice the certificate when it comes."""
    scaler_certificate: str = ""
    """A digest of the certificate with which KEDA calls the scaler. Empty: there is none."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing is applied: the reason of the condition Accepted=False, and what to do about it."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Queue:
    """What coordination is told about a fleet's queue."""

    name: str
    max_attempts: int
    agents: tuple[str, ...]
    """Whose pods may use it, as their SPIFFE ids name them."""
    shards: int = 0
    """Into how many the fleet wants it divided."""
    reshards: bool = False
    """Whether that may be done now: nobody works on it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be there. With problems there are no objects, and what was applied before stays."""

    objects: tuple[Object, ...] = ()
    """In the order in which they are applied."""
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()
    """What to watch: a change of one of these may change the plan."""
    keeps: tuple[Reference, ...] = ()
    """Live objects that stay as they are for now: neither applied nor deleted."""
    waits: Problem | None = None
    """What has to happen before the rest of the fleet can be as it says; a condition tells."""
    queue: Queue | None = None
