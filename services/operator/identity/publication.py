"""The ConfigMap `agentctl-trust`: whom to trust, wherever somebody mounts it, and who is denied: in the
system namespace all, for the components; elsewhere those who could call the agents there."""

from __future__ import annotations

import asyncio
import logging

from libs.cluster import Cluster, Object, key_of
from libs.cluster.kinds import CONFIG_MAP, NAMESPACE, POD
from libs.errors import ConflictError, InvalidError, MeshError, NotFoundError
from libs.pki import TrustBundle

from .denials import Denials

_log = logging.getLogger(__name__)

NAME = "agentctl-trust"
_MANAGER = "agentctl-operator"
_LABELS = {"app.kubernetes.io/managed-by": "agentctl", "agentctl.dev/trust": "bundle"}
_SELECTOR = ",".join(f"{key}={value}" for key, value in _LABELS.items())
_COMPONENTS = "app.kubernetes.io/part-of=agentctl"
_AT_ONCE = 8


class Publication:
    """Keeps every copy of the bundle right, whoever changes or deletes one."""

    def __init__(self, cluster: Cluster, system_namespace: str) -> None:
        self._cluster = cluster
        self._system = system_namespace
        self._namespaces: set[str] = set()  # that have a copy
        self._home: list[Object] = []  # the system namespace, as an owner

    async def publish(self, namespace: str, bundle: TrustBundle, denials: Denials) -> None:
        """Writes the namespace's copy; nothing changes if it is right. Copies elsewhere belong to the system
        namespace: they go when it goes."""
        copy = self._copy(namespace, bundle, denials)
        if namespace != self._system:
            copy["metadata"]["ownerReferences"] = await self._owners()
        await self._cluster.apply(copy, _MANAGER)
        self._namespaces.add(namespace)

    async def keep(self, bundle: TrustBundle, denials: Denials) -> None:
        """Writes the system namespace's copy, and all others of ours that there are or were, if they are
        wrong. One that belongs to another system namespace is of another operator, and of its authority."""
        found = await self._cluster.list(CONFIG_MAP, labels=_SELECTOR)
        copies = {key_of(copy)[0]: copy.get("data") for copy in found.items if key_of(copy)[1] == NAME}

        def is_wrong(namespace: str) -> bool:
            right: Object = self._copy(namespace, bundle, denials)["data"]
            return copies.get(namespace) != right

        if is_wrong(self._system):
            await self.publish(self._system, bundle, denials)
            if self._system in copies:
                await self._nudge()
        [home] = await self._owners()
        self._namespaces |= {key_of(copy)[0] for copy in found.items if home["uid"] in _owners_of(copy)}
        wrong = sorted(filter(is_wrong, self._namespaces - {self._system}))
        for start in range(0, len(wrong), _AT_ONCE):
            some = wrong[start : start + _AT_ONCE]
            writes = (self.publish(each, bundle, denials) for each in some)
            outcomes = await asyncio.gather(*writes, return_exceptions=True)  # the others need theirs too
            for namespace, outcome in zip(some, outcomes, strict=True):
                self._mended(namespace, outcome)

    def _mended(self, namespace: str, outcome: BaseException | None) -> None:
        if isinstance(outcome, MeshError):  # most likely it is being deleted
            _log.warning("no trust bundle for the namespace %s: %s", namespace, outcome)
            self._namespaces.discard(namespace)
        elif outcome is not None:
            _log.error("no trust bundle for the namespace %s: a bug", namespace, exc_info=outcome)

    async def _owners(self) -> list[Object]:
        if not self._home:
            uid = (await self._cluster.get(NAMESPACE, "", self._system))["metadata"]["uid"]
            self._home = [{"apiVersion": "v1", "kind": "Namespace", "name": self._system, "uid": uid}]
        return self._home

    def _copy(self, namespace: str, bundle: TrustBundle, denials: Denials) -> Object:
        if namespace == self._system:
            return config_map(namespace, bundle, denials.text)
        return config_map(namespace, bundle, denials.text_in(namespace) or None)

    async def _nudge(self) -> None:
        """Touches the components' pods: a kubelet looks at a pod's mounted ConfigMaps when the pod changes,
        and otherwise only once a minute or so."""
        trust = await self._cluster.get(CONFIG_MAP, self._system, NAME)
        revision = trust["metadata"]["resourceVersion"]
        pods = await self._cluster.list(POD, self._system, _COMPONENTS)
        for namespace, name in map(key_of, pods.items):
            metadata = {
                "name": name,
                "namespace": namespace,
                "annotations": {"agentctl.dev/trust-revision": revision},
            }
            touched = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            try:
                await self._cluster.apply(touched, "agentctl-trust")
            except (ConflictError, InvalidError, NotFoundError):
                continue  # it is gone


def _owners_of(thing: Object) -> set[str]:
    owners = thing["metadata"].get("ownerReferences") or ()
    found = (owner.get("uid") for owner in owners if isinstance(owner, dict))
    return {uid for uid in found if isinstance(uid, str)}


def config_map(namespace: str, bundle: TrustBundle, denied: str | None) -> Object:
    """A namespace's copy."""
    data = dict(bundle.files) | ({} if denied is None else {"denied": denied})
    metadata = {"name": NAME, "namespace": namespace, "labels": _LABELS}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
