"""Which names an Agent's or AgentFleet's pods go by, and how long what is made of them may be."""

from __future__ import annotations

from libs.cluster import Object, key_of
from libs.cluster.kinds import AGENT_FLEET

COORDINATOR = "-coordinator"
"""What the agent name of a fleet's coordinator ends with."""

LONGEST_LABEL = 63
"""Of a label's value and of a part of a DNS name."""
LONGEST_STATEFUL_SET = 52
"""Its pods bear its name and 11 characters more in a label."""
LONGEST_SCALED_OBJECT = 54
"""KEDA's label of what it makes is this name after keda-hpa-."""
LONGEST_CRON_JOB = 52
"""The API server's rule: the names of its Jobs are longer."""
LONGEST_DNS_NAME = 253


def agent_names(thing: Object) -> frozenset[str]:
    """The agent names that its pods go by. No other Agent or AgentFleet of the namespace may use them."""
    name = key_of(thing)[1]
    spec = thing.get("spec")
    has_coordinator = thing["kind"] == AGENT_FLEET.name and isinstance(spec, dict) and spec.get("coordinator")
    return frozenset({name, name + COORDINATOR} if has_coordinator else {name})
