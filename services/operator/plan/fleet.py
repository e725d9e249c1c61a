"""The workloads of an AgentFleet: its workers, and its coordinator if it has one."""

from __future__ import annotations

from libs.cluster import Object, key_of
from libs.cluster.kinds import DEPLOYMENT
from libs.resources.fleet import FleetSpec, WorkerTemplate

from . import environment
from .agent import PROGRESS_SECONDS
from .context import Context, Queue
from .owned import AGENT_LABEL, labels, owned
from .pod import pod_template, rolling
from .reading import content_of, coordinator_of


def objects(thing: Object, spec: FleetSpec, context: Context) -> list[Object]:
    """The workers' Deployment, then the coordinator's."""
    namespace, name = key_of(thing)
    full = f"{namespace}/{spec.work.queue or name}"
    told = environment.of_worker(spec, full)
    worker = pod_template(labels(thing, name), spec.template, told, context, queue=full)
    found = [_deployment(thing, name, replicas(spec), worker, spec.template, context)]
    if spec.coordinator:
        front, part = coordinator_of(name), spec.coordinator.template
        told = environment.of_coordinator(full)
        pod = pod_template(labels(thing, front), part, told, context)
        found.append(_deployment(thing, front, spec.coordinator.replicas, pod, part, context))
    return found


def queue(thing: Object, spec: FleetSpec) -> Queue:
    """The fleet's queue, and who may use it."""
    name = key_of(thing)[1]
    agents = (name, coordinator_of(name)) if spec.coordinator else (name,)
    return Queue(spec.work.queue or name, spec.work.max_attempts, agents)


def replicas(spec: FleetSpec) -> int:
    """How many workers: as `kubectl scale` said, between the two bounds."""
    scaling = spec.scaling
    asked = scaling.min_replicas if spec.replicas is None else spec.replicas
    return max(scaling.min_replicas, min(asked, scaling.max_replicas))


def _deployment(
    thing: Object, agent: str, count: int, pod: Object, part: WorkerTemplate, context: Context
) -> Object:
    body = {
        "replicas": count,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": {AGENT_LABEL: agent}},
        "template": rolling(pod, content_of(part, context.hashes)),
    }
    return owned(thing, agent, DEPLOYMENT, agent, {"spec": body})
