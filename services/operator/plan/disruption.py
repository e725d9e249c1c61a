"""How many of a fleet's workers a drain of nodes may take at once."""

from __future__ import annotations

from libs.cluster import Object, key_of
from libs.cluster.kinds import POD_DISRUPTION_BUDGET
from libs.resources.fleet import FleetSpec

from .owned import AGENT_LABEL, owned


def budget(thing: Object, spec: FleetSpec) -> Object:
    """Of its workers. One that is not ready may always go."""
    name = key_of(thing)[1]
    body = {
        "maxUnavailable": "25%" if spec.scaling.mode == "claim" else 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {AGENT_LABEL: name}},
    }
    return owned(thing, name, POD_DISRUPTION_BUDGET, name, {"spec": body})
