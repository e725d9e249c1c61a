"""The plan of an AgentFleet: its workers, and its coordinator if it has one."""

from __future__ import annotations

from libs.cluster import Object, key_of
from libs.cluster.kinds import DEPLOYMENT
from libs.resources.fleet import Coordinator, FleetSpec

from . import environment, scaling, shards
from .agent import PROGRESS_SECONDS
from .context import Context, Plan, Queue
from .disruption import budget
from .owned import AGENT_LABEL, labels, owned
from .pod import pod_template, rolling
from .reading import content_of, coordinator_of
from .scaling import REPLICAS, Says


def planned(thing: Object, spec: FleetSpec, context: Context) -> Plan:
    """What should be there: the workers and what is theirs, the coordinator, the queue."""
    namespace, name = key_of(thing)
    queue = spec.work.queue or name
    wait = shards.waits(spec, queue, context)
    found = [] if wait else _workers(thing, spec, context)
    if spec.scaling.mode == "shard":
        found = [shards.service(thing), *found]
    found.append(budget(thing, spec))
    if spec.coordinator:
        found.append(_front(thing, spec.coordinator, f"{namespace}/{queue}", context))
    return Plan(
        tuple(found), keeps=shards.kept(name, wait), waits=wait, queue=queue_for(thing, spec, context)
    )


def queue_for(thing: Object, spec: FleetSpec, context: Context) -> Queue:
    """What coordination is told about its queue, whatever else may be wrong with the fleet."""
    name = key_of(thing)[1]
    queue = spec.work.queue or name
    wait = shards.waits(spec, queue, context)
    return Queue(
        queue,
        spec.work.max_attempts,
        (name, coordinator_of(name)) if spec.coordinator else (name,),
        shards.wanted(spec),
        reshards=bool(wait and wait.reason == shards.RESHARDING and shards.are_gone(context)),
    )


def _workers(thing: Object, spec: FleetSpec, context: Context) -> list[Object]:
    namespace, name = key_of(thing)
    queue = f"{namespace}/{spec.work.queue or name}"
    told = environment.of_worker(spec, queue, context.shards)
    pod = pod_template(
        labels(thing, name), spec.template, told, context, queue=queue, drain=spec.work.drain or ""
    )
    pod = rolling(pod, content_of(spec.template, context.hashes))
    if spec.scaling.mode == "shard":
        return [shards.stateful_set(thing, spec, pod)]
    count = scaling.count(spec, context)
    body = _deployment(name, pod)
    if count.by is Says.OPERATOR:  # what is held follows what is there: nothing is made from it
        body["replicas"] = count.replicas
    workers = owned(thing, name, DEPLOYMENT, name, {"spec": body}, {REPLICAS: count.by.value})
    if count.replicas is None:
        return [workers, scaling.scaled_object(thing, spec, context)]
    return [scaling.counted(workers, count.replicas, count.by)]


def _front(thing: Object, coordinator: Coordinator, queue: str, context: Context) -> Object:
    name, part = coordinator_of(key_of(thing)[1]), coordinator.template
    pod = pod_template(labels(thing, name), part, environment.of_coordinator(queue), context)
    pod = rolling(pod, content_of(part, context.hashes))
    body = {"replicas": coordinator.replicas, **_deployment(name, pod)}
    return owned(thing, name, DEPLOYMENT, name, {"spec": body})


def _deployment(agent: str, pod: Object) -> Object:
    return {
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": {AGENT_LABEL: agent}},
        "template": pod,
    }
