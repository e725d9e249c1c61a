"""Which pods are a target's, and what Kubernetes says of them.

Whoever may create pods may write labels, so these only narrow the search: a pod is an agent's if the live
owners above it, each by uid, lead to a workload that the operator recorded in the status of the Agent or
AgentFleet. Whether it runs what that workload says is asked when it wants its certificate; without one nobody
is believed at its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.cluster import Cluster, Object, controller_of
from libs.cluster.kinds import AGENT, AGENT_FLEET, JOB, POD, REPLICA_SET
from libs.errors import NotFoundError
from libs.mesh import AGENT as AGENT_COMPONENT

from .verbs import Kind, Target

CONTAINER = "agent"
"""The container that the agent's process is in."""
_LABELS = {Kind.AGENT: "agentctl.dev/agent", Kind.FLEET: "agentctl.dev/fleet"}
_KINDS = {Kind.AGENT: AGENT, Kind.FLEET: AGENT_FLEET}
_BETWEEN = {(kind.api_version, kind.name): kind for kind in (REPLICA_SET, JOB)}
"""What a workload may put between itself and its pods."""

Workload = tuple[str, str, str]  # kind, name, uid


@dataclass(frozen=True, slots=True)
class Pod:
    """An agent's pod."""

    namespace: str
    agent: str
    """The name of its workload, which its certificate carries."""
    name: str
    uid: str
    phase: str
    ip: str
    is_going: bool
    """Whether its deletion has begun."""
    began: str
    """When its agent's process did, as the node says; empty while there is none."""

    @property
    def runs(self) -> bool:
        """Whether there is somebody to ask."""
        return self.phase == "Running" and bool(self.ip)

    @property
    def id(self) -> str:
        """What its certificate says, under the trust domain."""
        return f"/ns/{self.namespace}/agent/{self.agent}/pod/{self.name}/{self.uid}"

    @property
    def address(self) -> str:
        """host:port of its AgentService."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{host}:{AGENT_COMPONENT.port}"


@dataclass(frozen=True, slots=True)
class Exit:
    """How an agent's process ended."""

    code: int
    reason: str = ""


async def find(cluster: Cluster, target: Target) -> list[Pod]:
    """The target's pods by name, whatever their phase. NotFoundError without the object, or without the pod
    that it names."""
    thing = await _declared(cluster, target)
    listing = await cluster.list(POD, target.namespace, selector(target))
    recorded = _recorded(thing)
    between: dict[str, Workload | None] = {}
    pods = []
    for pod in listing.items:
        if target.pod and pod["metadata"]["name"] != target.pod:
            continue
        workload = await _workload(cluster, pod, recorded, between)
        if workload:
            pods.append(_pod(pod, workload[1]))
    if target.pod and not pods:
        raise NotFoundError(f"no pod {target.pod} of {target.kind} {target.namespace}/{target.name}")
    return sorted(pods, key=lambda pod: pod.name)


def selector(target: Target) -> str:
    """The labels that the target's pods have, among others perhaps."""
    return f"{_LABELS[target.kind]}={target.name}"


def exit_of(pod: Pod, now: Object) -> Exit | None:
    """How the process that ran in the pod when it was found ended; None if it has not yet."""
    container = _agent_in(now)
    for state in ("state", "lastState"):
        ended = (container.get(state) or {}).get("terminated")
        if pod.began and ended and ended.get("startedAt") == pod.began:
            return Exit(ended.get("exitCode", 0), ended.get("reason") or "")
    return None


def is_as_found(pod: Pod, now: Object) -> bool:
    """Whether it is the same pod, and the process that ran in it when it was found runs."""
    return now["metadata"]["uid"] == pod.uid and _began(now) == pod.began


async def _declared(cluster: Cluster, target: Target) -> Object:
    try:
        return await cluster.get(_KINDS[target.kind], target.namespace, target.name)
    except NotFoundError:
        raise NotFoundError(f"no {_KINDS[target.kind].name} {target.namespace}/{target.name}") from None


def _recorded(thing: Object) -> set[Workload]:
    workloads: Sequence[Object] = (thing.get("status") or {}).get("workloads") or ()
    return {(each["kind"], each["name"], each["uid"]) for each in workloads}


async def _workload(
    cluster: Cluster, thing: Object, recorded: set[Workload], between: dict[str, Workload | None]
) -> Workload | None:
    """The recorded workload above a pod, if there is one."""
    owner = controller_of(thing)
    if owner is None:
        return None
    named = owner["kind"], owner["name"], owner["uid"]
    if named in recorded:
        return named
    kind = _BETWEEN.get((owner["apiVersion"], owner["kind"]))
    if kind is None:
        return None
    if owner["uid"] not in between:
        between[owner["uid"]] = None
        try:
            found = await cluster.get(kind, thing["metadata"]["namespace"], owner["name"])
        except NotFoundError:
            return None
        above = controller_of(found)
        if found["metadata"]["uid"] == owner["uid"] and above:
            workload = above["kind"], above["name"], above["uid"]
            between[owner["uid"]] = workload if workload in recorded else None
    return between[owner["uid"]]


def _pod(pod: Object, agent: str) -> Pod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    return Pod(
        namespace=metadata["namespace"],
        agent=agent,
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase") or "Pending",
        ip=status.get("podIP") or "",
        is_going="deletionTimestamp" in metadata,
        began=_began(pod),
    )


def _began(pod: Object) -> str:
    running = (_agent_in(pod).get("state") or {}).get("running") or {}
    return running.get("startedAt") or ""


def _agent_in(pod: Object) -> Object:
    containers: Sequence[Object] = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in containers if each.get("name") == CONTAINER), {})
