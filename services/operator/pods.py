"""What the end of a pod means for what it holds elsewhere. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from libs.cluster import Object, key_of

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


def _is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _node_said_so(pod: Object) -> bool:
    # The garbage collector of pods sets phase Failed on pods of lost nodes, and says so in this condition.
    return not any(
        condition.get("type") == "DisruptionTarget" and condition.get("reason") == "DeletionByPodGC"
        for condition in (pod.get("status") or {}).get("conditions") or ()
    )
