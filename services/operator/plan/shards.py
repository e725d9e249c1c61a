"""A fleet of mode shard: its StatefulSet and Service, and what happens before its queue is divided anew.

Coordination numbers each division with an epoch and serves claims of that one only. So the workers of one
division end before the next is asked for, and those of the next are made when its epoch is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from libs.cluster import Object, key_of
from libs.cluster.kinds import DEPLOYMENT, SCALED_OBJECT, SERVICE, STATEFUL_SET
from libs.resources.fleet import FleetSpec

from .context import Context, Problem, Reference
from .environment import GRPC_PORT
from .owned import AGENT_LABEL, owned
from .scaling import bounded

UNKNOWN = "ShardsUnknown"
RESHARDING = "Resharding"
REFUSED = "QueueRefused"
_SHOWN = 3


def wanted(spec: FleetSpec) -> int:
    """Into how many shards the fleet's queue is to be divided; 0: it is not."""
    if spec.scaling.mode == "claim":
        return 0
    return max(1, bounded(spec, spec.replicas or 0))


def waits(spec: FleetSpec, queue: str, context: Context) -> Problem | None:
    """Why there can be no workers as the spec has them yet. None: there can."""
    shards, there = wanted(spec), context.shards
    if owner := context.queue_owner:
        return Problem(REFUSED, f"queue {queue}: fleet {owner} has it, and shards are not shared")
    if there is None:
        why = f"how queue {queue} is divided is not known yet; until then its agents stay as they are"
        has_some = context.workers is not None and context.workers["kind"] == STATEFUL_SET.name
        return Problem(UNKNOWN, why) if shards or has_some else None
    if there.count == shards:
        return None
    first = context.queue_wait or "coordination has to do it"
    if not are_gone(context):
        first = f"its agents end first{_left(context.workers_alive)}"
    return Problem(RESHARDING, f"queue {queue} goes from {_said(there.count)} to {_said(shards)}: {first}")


def are_gone(context: Context) -> bool:
    """Whether the fleet has no worker, nor what may make one."""
    return context.workers is None and not context.workers_alive


def kept(name: str, wait: Problem | None) -> tuple[Reference, ...]:
    """What stays as it is meanwhile."""
    if wait is None or wait.reason != UNKNOWN:
        return ()
    return (DEPLOYMENT, name), (STATEFUL_SET, name), (SCALED_OBJECT, name)


def stateful_set(thing: Object, spec: FleetSpec, pod: Object) -> Object:
    """A worker for each shard. It has its index of its pod's own."""
    name = key_of(thing)[1]
    body = {
        "serviceName": name,
        "replicas": wanted(spec),
        "podManagementPolicy": "Parallel",  # a shard that is late keeps no other waiting
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": {AGENT_LABEL: name}},
        "template": pod,
    }
    return owned(thing, name, STATEFUL_SET, name, {"spec": body})


def service(thing: Object) -> Object:
    """The headless Service that gives each worker a name."""
    name = key_of(thing)[1]
    body = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {AGENT_LABEL: name},
        "ports": [{"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT, "protocol": "TCP"}],
    }
    return owned(thing, name, SERVICE, name, {"spec": body})


def _left(pods: Sequence[str]) -> str:
    more = ", …" if len(pods) > _SHOWN else ""
    return f", {len(pods)} are left: {', '.join(sorted(pods)[:_SHOWN])}{more}" if pods else ""


def _said(shards: int) -> str:
    return f"{shards} shard{'' if shards == 1 else 's'}" if shards else "no shards"
