"""StatefulSets: pods <name>-0, -1, …, each made when those before are ready, removed last first.

A template change replaces one pod at a time, from the last one, while all others are ready.
https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/ (OrderedReady, or Parallel).
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.cluster import Object
from libs.cluster.kinds import POD, STATEFUL_SET

from .declared import check
from .host import Host
from .objects import digest, is_deleted, is_ended, is_ready, owned, pod_from, write_status

REVISION = "controller-revision-hash"


@dataclass(frozen=True)
class Plan:
    """The ordinals to make now, and the pods to delete."""

    create: list[int]
    delete: list[Object]


async def reconcile(host: Host, namespace: str, name: str) -> float | None:
    """One pass; seconds until the next one is wanted, None if only when something changes. NotFoundError."""
    thing = await host.cluster.get(STATEFUL_SET, namespace, name)
    if is_deleted(thing):
        return None
    check(STATEFUL_SET, thing)
    pods = {_ordinal(pod): pod for pod in await owned(host.cluster, POD, thing)}
    template = thing["spec"]["template"]
    revision = digest(template)
    wanted = plan(thing, pods, revision)
    for pod in wanted.delete:
        await host.cluster.delete(POD, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    possible = wanted.create[: await host.room()] if wanted.create else []
    for ordinal in possible:
        labels = {
            REVISION: revision,
            "statefulset.kubernetes.io/pod-name": f"{name}-{ordinal}",
            "apps.kubernetes.io/pod-index": str(ordinal),
        }
        made = pod_from(template, thing, f"{name}-{ordinal}", labels)
        made["spec"] |= {"hostname": f"{name}-{ordinal}", "subdomain": thing["spec"].get("serviceName", name)}
        await host.cluster.create(made)
    await write_status(host.cluster, STATEFUL_SET, thing, status(thing, list(pods.values()), revision))
    return 1.0 if len(possible) < len(wanted.create) else None


def plan(thing: Object, pods: dict[int, Object], revision: str) -> Plan:
    """The next step; `pods` are those that there are, by ordinal, also ended and stopping ones."""
    spec = thing["spec"]
    replicas = spec.get("replicas", 1)
    ended = [pod for pod in pods.values() if is_ended(pod) and not is_deleted(pod)]
    if ended:
        return Plan([], ended)
    surplus = [pods[ordinal] for ordinal in sorted(pods, reverse=True) if ordinal >= replicas]
    absent = [ordinal for ordinal in range(replicas) if ordinal not in pods]
    if spec.get("podManagementPolicy") == "Parallel":
        leaving = [pod for pod in surplus if not is_deleted(pod)]
        return Plan(absent, leaving or ([] if absent else _outdated(spec, pods, revision, replicas)))
    for ordinal in range(replicas):
        if ordinal not in pods:
            return Plan([ordinal], [])
        if is_deleted(pods[ordinal]):
            return Plan([], [])
        if not is_ready(pods[ordinal]):
            # one of an old template that may never become ready must not stop its own repair
            return Plan([], _outdated(spec, {ordinal: pods[ordinal]}, revision, replicas))
    if surplus:
        return Plan([], [] if is_deleted(surplus[0]) else [surplus[0]])
    return Plan([], _outdated(spec, pods, revision, replicas))


def status(thing: Object, pods: list[Object], revision: str) -> Object:
    """The StatefulSet's status."""
    active = [pod for pod in pods if not is_ended(pod)]
    ready = sum(is_ready(pod) and not is_deleted(pod) for pod in active)
    updated = sum(_is_of(pod, revision) for pod in active)
    before = thing.get("status", {}).get("currentRevision", revision)
    done = updated == len(active)
    return {
        "observedGeneration": thing["metadata"].get("generation", 1),
        "replicas": len(active),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "updatedReplicas": updated,
        "currentReplicas": updated if done else len(active) - updated,
        "currentRevision": revision if done else before,
        "updateRevision": revision,
    }


def _outdated(spec: Object, pods: dict[int, Object], revision: str, replicas: int) -> list[Object]:
    """The last pod of another revision, if it is its turn."""
    strategy = spec.get("updateStrategy", {})
    if strategy.get("type") == "OnDelete":
        return []
    first = (strategy.get("rollingUpdate") or {}).get("partition", 0)
    old = [each for each in sorted(pods, reverse=True) if not _is_of(pods[each], revision) and each >= first]
    if not old or any(is_deleted(pod) for pod in pods.values()):
        return []
    others_ready = all(is_ready(pods[each]) for each in pods if each != old[0] and each < replicas)
    return [pods[old[0]]] if others_ready else []


def _is_of(pod: Object, revision: str) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(REVISION) == revision)


def _ordinal(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])
