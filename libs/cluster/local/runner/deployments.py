"""Deployments: pods of the current template, rolled over or recreated. Pods belong to it directly.

Each pass reads the pods from the store itself, so it never counts one twice. While the strategy is Recreate,
a pod that is still stopping counts: there are never two of a singleton.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from libs.cluster import Object
from libs.cluster.kinds import DEPLOYMENT, POD

from .declared import check
from .host import Host
from .objects import (
    condition,
    digest,
    is_deleted,
    is_ended,
    is_ready,
    owned,
    pod_from,
    suffix,
    write_status,
)  # fmt: skip

HASH = "pod-template-hash"


@dataclass(frozen=True)
class Plan:
    """What is to be done now: so many new pods, and which of the old ones go."""

    create: int
    delete: list[Object]


async def reconcile(host: Host, namespace: str, name: str) -> float | None:
    """One pass; seconds until the next one is wanted, None if only when something changes. NotFoundError."""
    deployment = await host.cluster.get(DEPLOYMENT, namespace, name)
    if is_deleted(deployment):
        return None
    check(DEPLOYMENT, deployment)
    pods = await owned(host.cluster, POD, deployment)
    for pod in pods:
        if is_ended(pod) and not is_deleted(pod):
            await host.cluster.delete(POD, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    pods = [pod for pod in pods if not is_ended(pod)]
    template = deployment["spec"]["template"]
    revision = digest(template)
    wanted = plan(deployment, pods, revision)
    for pod in wanted.delete:
        await host.cluster.delete(POD, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    possible = min(wanted.create, await host.room()) if wanted.create else 0
    for _ in range(possible):
        made = pod_from(template, deployment, f"{name}-{revision}-{suffix()}", {HASH: revision})
        await host.cluster.create(made)
    told = status(deployment, pods, revision, wanted.create - possible, host.now())
    await write_status(host.cluster, DEPLOYMENT, deployment, told)
    return 1.0 if possible < wanted.create else None


def plan(deployment: Object, pods: list[Object], revision: str) -> Plan:
    """The next step towards `replicas` ready pods of the revision, from the pods that have not ended."""
    spec = deployment["spec"]
    replicas = spec.get("replicas", 1)
    active = [pod for pod in pods if not is_deleted(pod)]
    new, old = _split(active, revision)
    if spec.get("strategy", {}).get("type") == "Recreate":
        if old and not spec.get("paused"):
            return Plan(0, old)
        return Plan(max(0, replicas - len(pods)), _surplus(new, len(active) - replicas))
    surge, missing = _allowances(spec, replicas)
    if spec.get("paused"):
        newest = new or old
        return Plan(max(0, replicas - len(active)), _surplus(newest, len(active) - replicas))
    gone = _surplus(new, len(new) - replicas)
    ready_new = [pod for pod in new if is_ready(pod) and pod not in gone]
    ready_old = [pod for pod in old if is_ready(pod)]
    gone += [pod for pod in old if not is_ready(pod)]
    gone += _surplus(ready_old, len(ready_new) + len(ready_old) - (replicas - missing))
    left = len(active) - len(gone)
    return Plan(max(0, min(replicas - len(new), replicas + surge - left)), gone)


def status(deployment: Object, pods: list[Object], revision: str, refused: int, now: str) -> Object:
    """The Deployment's status, from the pods that have not ended."""
    spec = deployment["spec"]
    replicas = spec.get("replicas", 1)
    active = [pod for pod in pods if not is_deleted(pod)]
    new, _ = _split(active, revision)
    ready = sum(map(is_ready, active))
    missing = _allowances(spec, replicas)[1] if spec.get("strategy", {}).get("type") != "Recreate" else 0
    available = ready >= replicas - missing
    complete = len(new) == len(active) == replicas and sum(map(is_ready, new)) == replicas
    conditions = [
        condition(
            deployment, "Available", available,
            "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable",
            f"{ready} of {replicas} pods are ready", now,
        ),
        condition(
            deployment, "Progressing", True, "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
            f"{len(new)} pods of revision {revision}", now,
        ),
    ]  # fmt: skip
    if refused:
        why = f"{refused} pods too many for this machine"
        conditions.append(condition(deployment, "ReplicaFailure", True, "TooManyPods", why, now))
    return {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "replicas": len(active),
        "updatedReplicas": len(new),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, replicas - ready),
        "terminatingReplicas": len(pods) - len(active),
        "conditions": conditions,
    }


def _split(pods: list[Object], revision: str) -> tuple[list[Object], list[Object]]:
    new = [pod for pod in pods if pod["metadata"].get("labels", {}).get(HASH) == revision]
    return new, [pod for pod in pods if pod not in new]


def _surplus(pods: list[Object], count: int) -> list[Object]:
    """`count` of them (none if negative): those that are not ready first, then the youngest."""
    by_youth = sorted(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
    return sorted(by_youth, key=is_ready)[: max(0, count)]


def _allowances(spec: Object, replicas: int) -> tuple[int, int]:
    """How many pods there may be above `replicas`, and how many ready ones below."""
    rolling = spec.get("strategy", {}).get("rollingUpdate") or {}
    surge = _share(rolling.get("maxSurge", 1), replicas, up=True)
    missing = _share(rolling.get("maxUnavailable", 0), replicas, up=False)
    return (surge, missing) if surge or missing else (1, 0)


def _share(value: int | str, replicas: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    share = replicas * float(value.rstrip("%")) / 100
    return math.ceil(share) if up else math.floor(share)
