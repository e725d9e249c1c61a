"""What the operator reports."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .shape import keyed

_Short = Annotated[str, Meta(max_length=253)]
_Time = Annotated[str, Meta(max_length=64, extra_json_schema={"format": "date-time"})]


def _word(*words: str) -> Meta:
    return Meta(extra_json_schema={"enum": list(words)})


class Condition(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """As metav1.Condition."""

    type: Annotated[str, Meta(min_length=1, max_length=316)]
    """What it is about."""
    status: Annotated[str, _word("True", "False", "Unknown")]
    """Whether it is so."""
    reason: Annotated[str, Meta(max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one word for programs."""
    message: Annotated[str, Meta(max_length=32768)]
    """Why, for people."""
    last_transition_time: _Time
    """When the status became what it is."""
    observed_generation: Annotated[int, Meta(ge=0)] = 0
    """The generation of the spec that it speaks of."""


Conditions = Annotated[list[Condition], keyed("type", 16)]


class Workload(msgspec.Struct, rename="camel", kw_only=True):
    """A workload that the operator made. Its pods, and no others, get this agent's identity."""

    kind: _Short
    """Deployment, StatefulSet, Job or CronJob."""
    name: _Short
    """Its name."""
    uid: _Short
    """Its uid."""


Workloads = Annotated[list[Workload], keyed("uid", 16)]


class Run(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """How one run ended, or that it is under way."""

    name: _Short
    """Its Job."""
    start_time: _Time = ""
    """When it started."""
    completion_time: _Time = ""
    """When it ended."""
    outcome: Annotated[str, _word("Running", "Succeeded", "Failed")] = ""
    """Running, Succeeded or Failed."""
    exit_code: int | None = None
    """What the agent's process returned."""
    intent: _Short = ""
    """What the exit code asks of the owner: complete, retriable, terminal, policy or infra."""
    reason: _Short = ""
    """Why it ended, in the agent's word: completed, exhausted_tokens, …"""
    message: Annotated[str, Meta(max_length=1024)] = ""
    """The same for people, in the agent's words."""
    input_tokens: int | None = None
    """Tokens of its prompts, as the provider counted them."""
    output_tokens: int | None = None
    """Tokens of its answers."""
    steps: int | None = None
    """Its turns with the model."""


class AgentStatus(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Of an Agent."""

    observed_generation: Annotated[int, Meta(ge=0)] = 0
    """The generation of the spec that this speaks of."""
    phase: _Short = ""
    """The conditions in one word."""
    conditions: Conditions = []
    """Ready, Accepted, and Complete of runs that end."""
    workloads: Workloads = []
    """What was made for it. Pods of these, and no others, get its identity."""
    last_run: Run | None = None
    runs: Annotated[int, Meta(ge=0)] = 0
    """Runs that ended."""


class Shards(msgspec.Struct, rename="camel", kw_only=True):
    """How a queue is divided."""

    count: Annotated[int, Meta(ge=0)]
    """Shards."""
    epoch: Annotated[int, Meta(ge=0)]
    """Grows whenever count changes; an agent of another epoch gets nothing."""


class FleetStatus(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Of an AgentFleet. replicas and selector serve the scale subresource."""

    observed_generation: Annotated[int, Meta(ge=0)] = 0
    """The generation of the spec that this speaks of."""
    conditions: Conditions = []
    """Ready, Accepted, Scaled, and Sharded of mode shard."""
    workloads: Workloads = []
    """What was made for it. Pods of these, and no others, get its identity."""
    shards: Shards | None = None
    """Absent: the queue is not divided, or that is not known yet."""
    replicas: Annotated[int, Meta(ge=0)] = 0
    """Agents that there are."""
    ready_replicas: Annotated[int, Meta(ge=0)] = 0
    """Agents that are ready."""
    selector: Annotated[str, Meta(max_length=1024)] = ""
    """The label selector of its agents' pods."""


class PoolStatus(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Of a ModelPool or an MCPServerSet."""

    observed_generation: Annotated[int, Meta(ge=0)] = 0
    """The generation of the spec that this speaks of."""
    conditions: Conditions = []
    """Ready."""
    users: Annotated[int, Meta(ge=0)] = 0
    """Agents and fleets that name it."""
