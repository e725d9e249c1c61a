"""The plan: what should be there for an Agent or an AgentFleet. Pure: same input, same plan.

`desired` says what should be there, `change` what that asks of what is there, `conflict` when it is not ours.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from libs.cluster import Object
from libs.resources.agent import AgentSpec
from libs.resources.fleet import FleetSpec

from . import agent, fleet
from .change import Action, Change, change, conflict
from .context import Context, Plan, Problem, Queue, Reference, Rendering, Shards
from .duration import DurationError
from .problems import lacks, problems
from .reading import contents, read, references
from .scaling import REPLICAS, Says, certificate_in, counted, said_by

__all__ = [
    "REPLICAS", "Action", "Change", "Context", "Plan", "Problem", "Queue", "Reference", "Rendering", "Says",
    "Shards", "certificate_in", "change", "conflict", "contents", "counted", "desired", "queue_of",
    "references", "said_by",
]  # fmt: skip


def desired(thing: Object, context: Context) -> Plan:
    """The plan of an Agent or AgentFleet; of any other kind, one of no objects."""
    try:
        spec = read(thing)
        if spec is None:
            return Plan(problems=lacks(thing, context))
    except msgspec.ValidationError as error:
        return Plan(problems=(Problem("RenderFailed", f"spec: {error}"),))
    named = references(thing)
    if found := problems(thing, spec, context):
        return Plan(problems=found, references=named)
    try:
        if isinstance(spec, AgentSpec):
            return Plan(tuple(agent.objects(thing, spec, context)), references=named)
        return replace(fleet.planned(thing, spec, context), references=named)
    except DurationError as error:
        return Plan(problems=(Problem("RenderFailed", f"spec: {error}"),), references=named)


def queue_of(thing: Object, context: Context) -> Queue | None:
    """What coordination is told about the queue of a fleet, whose plan may have problems. None: it is no
    fleet, or its spec makes no sense."""
    try:
        spec = read(thing)
    except msgspec.ValidationError:
        return None
    return fleet.queue_for(thing, spec, context) if isinstance(spec, FleetSpec) else None
