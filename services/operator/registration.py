"""What an API server knows of us: the APIService of the management verbs, and whom the webhooks trust.

While an APIService has no backend, no namespace of the cluster can be deleted: it stays Terminating, with the
condition NamespaceDeletionDiscoveryFailure. So ours is there only while the apiserver answers: withdrawn when
it has been away for a while, put back when its Service has a ready endpoint. It belongs to the apiserver's
ClusterRole, and goes with it when the installation is removed. The webhooks are static manifests; of them we
own the caBundle alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable

from libs.cluster import Cluster, Object
from libs.cluster.kinds import (
    API_SERVICE,
    CLUSTER_ROLE,
    ENDPOINT_SLICE,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    Kind,
)
from libs.errors import MeshError, NotFoundError
from libs.mesh import APISERVER

_log = logging.getLogger(__name__)

GROUP, VERSION = "management.agentctl.dev", "v1alpha1"
NAME = f"{VERSION}.{GROUP}"
"""Of the APIService."""
WEBHOOKS = "agentctl-admission"
"""The name of both webhook configurations."""
OWNER = "agentctl-apiserver"
"""The ClusterRole that the APIService belongs to."""
AWAY_SECONDS = 15.0
"""How long the apiserver may be away before its APIService is withdrawn."""

_MANAGER = "agentctl-registration"
_PORT = 443
_LOOK_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 300.0  # between attempts that never made it available


class Registration:
    """For the replica that leads. `roots` gives our root certificates as PEM, now: two during a rotation."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        roots: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._roots = roots
        self._clock = clock
        self._sleep = sleep
        self._away_since: float | None = None
        self._pause = 0.0
        self._not_before = float("-inf")
        self._trouble = ""

    async def run(self) -> None:
        """Looks again and again, for ever."""
        while True:
            try:
                await self.look()
                self._trouble = ""
            except MeshError as error:
                if str(error) != self._trouble:
                    _log.warning("registration: %s; trying again", error)
                self._trouble = str(error)
            await self._sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """One round. MeshError if some of it could not be done; the rest is."""
        bundle = b64encode(self._roots().encode()).decode()
        outcomes = await asyncio.gather(
            self._announce(bundle),
            self._trust(VALIDATING_WEBHOOKS, bundle),
            self._trust(MUTATING_WEBHOOKS, bundle),
            return_exceptions=True,
        )
        for outcome in filter(None, outcomes):
            raise outcome

    async def _announce(self, bundle: str) -> None:
        now, found = self._clock(), await self._find(API_SERVICE, NAME)
        if found is None:
            self._away_since = None
            if now >= self._not_before and await self._is_served():
                await self._put(bundle)
                _log.info("registered %s", NAME)
            return
        if not _is_at(found["spec"].get("service"), self._namespace):
            return  # somebody else's
        if _is_available(found):
            self._away_since, self._pause = None, 0.0
        elif self._away_since is None:
            self._away_since = now
        elif now >= self._away_since + AWAY_SECONDS:
            await self._withdraw(now)
            return
        if found["spec"].get("caBundle") != bundle:
            await self._put(bundle)

    async def _withdraw(self, now: float) -> None:
        await self._cluster.delete(API_SERVICE, "", NAME)
        _log.warning("withdrew %s: the apiserver has not answered for %d s", NAME, AWAY_SECONDS)
        self._away_since = None
        self._not_before = now + self._pause
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)

    async def _put(self, bundle: str) -> None:
        """Makes the APIService as it should be; nothing where there is nobody whom it could belong to."""
        owner = await self._find(CLUSTER_ROLE, OWNER)
        if owner is None:
            return
        reference = {
            "apiVersion": CLUSTER_ROLE.api_version,
            "kind": CLUSTER_ROLE.name,
            "name": OWNER,
            "uid": owner["metadata"]["uid"],
        }
        metadata = {
            "name": NAME,
            "labels": {"app.kubernetes.io/part-of": "agentctl"},
            "ownerReferences": [reference],
        }
        spec = {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "service": {"namespace": self._namespace, "name": APISERVER.name, "port": _PORT},
            "caBundle": bundle,
        }
        await self._cluster.apply(_thing(API_SERVICE, metadata, spec=spec), _MANAGER)

    async def _is_served(self) -> bool:
        """Whether the Service has a ready endpoint."""
        labels = f"kubernetes.io/service-name={APISERVER.name}"
        slices = (await self._cluster.list(ENDPOINT_SLICE, self._namespace, labels)).items
        endpoints = (endpoint for each in slices for endpoint in each.get("endpoints") or ())
        return any((endpoint.get("conditions") or {}).get("ready") for endpoint in endpoints)

    async def _trust(self, kind: Kind, bundle: str) -> None:
        """Our roots are those that the configuration's webhooks of ours trust."""
        found = await self._find(kind, WEBHOOKS)
        clients = {each["name"]: each["clientConfig"] for each in (found or {}).get("webhooks") or ()}
        ours = {
            name: client for name, client in clients.items() if _is_at(client.get("service"), self._namespace)
        }
        if all(client.get("caBundle") == bundle for client in ours.values()):
            return
        trusting = [{"name": name, "clientConfig": {"caBundle": bundle}} for name in ours]
        await self._cluster.apply(_thing(kind, {"name": WEBHOOKS}, webhooks=trusting), _MANAGER)
        _log.info("%s %s trusts our roots", kind.name, WEBHOOKS)

    async def _find(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self._cluster.get(kind, "", name)
        except NotFoundError:
            return None


def _thing(kind: Kind, metadata: Object, **parts: object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **parts}


def _is_at(service: Object | None, namespace: str) -> bool:
    """Whether it is a Service of that namespace."""
    return (service or {}).get("namespace") == namespace


def _is_available(api_service: Object) -> bool:
    conditions = (api_service.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)
