"""Reads, live and by uid, what `attest` decides from. No cache: a pod that is gone gets nothing."""

from __future__ import annotations

from libs.cluster import Bearer, Cluster, Object, controller_of
from libs.cluster.kinds import AGENT, AGENT_FLEET, POD, Kind, kind_of
from libs.errors import NotFoundError

from .attest import Lineage, UnattestedError

_DEPTH = 4  # ReplicaSet, Deployment, AgentFleet, and one too many


async def lineage(cluster: Cluster, bearer: Bearer) -> Lineage:
    """The pod that a token is bound to, and what controls it, up to the Agent or AgentFleet. UnattestedError
    if there is no such pod, or if one of its owners is gone."""
    namespace = bearer.service_account[0]
    if not (bearer.pod and bearer.pod_uid and namespace):
        raise UnattestedError("the token is bound to no pod")
    pod = await _live(cluster, POD, namespace, bearer.pod, bearer.pod_uid)
    owners: list[Object] = []
    below = pod
    while (reference := controller_of(below)) is not None and len(owners) < _DEPTH:
        try:
            kind = kind_of(reference["apiVersion"], reference["kind"])
        except KeyError:
            raise UnattestedError(f"a {reference['kind']} controls it") from None
        below = await _live(cluster, kind, namespace, reference["name"], reference["uid"])
        owners.append(below)
        if kind in (AGENT, AGENT_FLEET):
            break
    return Lineage(pod, owners)


async def _live(cluster: Cluster, kind: Kind, namespace: str, name: str, uid: str) -> Object:
    try:
        thing = await cluster.get(kind, namespace, name)
    except NotFoundError:
        raise UnattestedError(f"{kind.name} {namespace}/{name} is gone") from None
    if thing["metadata"]["uid"] != uid:
        raise UnattestedError(f"{kind.name} {namespace}/{name} is another one by now")
    return thing | {"kind": kind.name}
