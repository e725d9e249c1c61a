"""What a pod says about itself, and what its end means for what it holds elsewhere. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from libs.cluster import Object, controller_of, key_of
from libs.cluster.kinds import DEPLOYMENT, STATEFUL_SET

from .plan.owned import AGENT_LABEL, label


@dataclass(frozen=True, slots=True)
class Ended:
    """A pod that never runs again, as far as the cluster knows."""

    namespace: str
    agent: str
    pod: str
    uid: str
    certain: bool
    """Its node said so. Else it was deleted by force or its node is lost, and it may still be at work: its
    leases run out by themselves, and nobody gets its items before."""

    def __str__(self) -> str:
        return f"Pod {self.namespace}/{self.pod}"


def ended(old: Object | None, new: Object | None) -> Ended | None:
    """What this change of a pod ended, if it did."""
    if old is None or (new is not None and (_is_over(old) or not _is_over(new))):
        return None
    pod = new or old
    metadata = pod["metadata"]
    namespace, name = key_of(pod)
    certain = _is_over(pod) and _node_said_so(pod)
    return Ended(namespace, label(old, AGENT_LABEL), name, metadata["uid"], certain)


def is_alive(pod: Object) -> bool:
    """Whether it has not ended; one that is being deleted has not."""
    return not _is_over(pod)


def is_worker(pod: Object, fleet: str) -> bool:
    """Whether a workload of the fleet's name made it; what its labels say anybody may say. In the local home
    a Deployment makes pods itself."""
    owner = controller_of(pod)
    if owner is None:
        return False
    kind, name = owner["kind"], str(owner["name"])
    if kind == "ReplicaSet":
        return name.rpartition("-")[0] == fleet
    return kind in (DEPLOYMENT.name, STATEFUL_SET.name) and name == fleet


def told(pod: Object, variable: str) -> str:
    """What a pod, or the template of one, tells an agent (or its bridge) by this variable; "": nothing."""
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for each in container.get("env") or ():
            if each["name"] == variable:
                return str(each.get("value") or "")
    return ""


def _is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _node_said_so(pod: Object) -> bool:
    # The garbage collector of pods sets phase Failed on pods of lost nodes, and says so in this condition.
    return not any(
        condition.get("type") == "DisruptionTarget" and condition.get("reason") == "DeletionByPodGC"
        for condition in (pod.get("status") or {}).get("conditions") or ()
    )
