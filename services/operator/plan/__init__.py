"""The plan: what should be there for an Agent or an AgentFleet. Pure: same input, same plan.

`desired` says what should be there, `change` what that asks of what is there, `conflict` when it is not ours.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from libs.cluster import Object
from libs.resources.agent import AgentSpec

from . import agent, fleet
from .change import Action, Change, change, conflict
from .context import Context, Plan, Problem, Queue, Reference, Rendering, Shards
from .duration import DurationError
from .problems import problems
from .reading import contents, read, references
from .scaling import REPLICAS, Says, certificate_in, counted, said_by

__all__ = [
    "REPLICAS", "Action", "Change", "Context", "Plan", "Problem", "Queue", "Reference", "Rendering", "Says",
    "Shards", "certificate_in", "change", "conflict", "contents", "counted", "desired", "references",
    "said_by",
]  # fmt: skip


def desired(thing: Object, context: Context) -> Plan:
    """The plan of an Agent or AgentFleet; of any other kind, one of nothing."""
    try:
        spec = read(thing)
    except msgspec.ValidationError as error:
        return Plan(problems=(Problem("RenderFailed", f"spec: {error}"),))
    if spec is None:
        return Plan()
    named = references(thing)
    if found := problems(thing, spec, context):
        return Plan(problems=found, references=named)
    try:
        if isinstance(spec, AgentSpec):
            return Plan(tuple(agent.objects(thing, spec, context)), references=named)
        return replace(fleet.planned(thing, spec, context), references=named)
    except DurationError as error:
        return Plan(problems=(Problem("RenderFailed", f"spec: {error}"),), references=named)
