"""Where objects are: the local plane's ResourceService, or a Kubernetes by its kubeconfig. One face."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import Exit, FailedError, warn
from .reach import cluster_at, component_at, default_kubeconfig
from .session import Settings

if TYPE_CHECKING:
    from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceAsyncStub
    from libs.cluster import Cluster
    from libs.cluster.kinds import Kind

Object = dict[str, Any]
MANAGER = "agentctl"
"""The field manager of what manifests say."""
_TOKEN_SECONDS = 600  # the shortest that Kubernetes issues
_BOOKKEEPING = ("resourceVersion", "managedFields", "generation")


@dataclass(frozen=True)
class Target:
    """What the options of a command named. Neither: the local plane, or else the default kubeconfig."""

    kubeconfig: Path | None = None
    context: str = ""


class World(abc.ABC):
    """Objects by kind, namespace and name. Errors are those of the mesh."""

    name: str

    @abc.abstractmethod
    async def apply(
        self, thing: Object, *, dry_run: bool = False, manager: str = MANAGER
    ) -> tuple[Object, str]:
        """The object after it, and what became of it: created, configured or unchanged. What admission warns
        of is on stderr."""

    @abc.abstractmethod
    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """The object. NotFoundError."""

    @abc.abstractmethod
    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> tuple[list[Object], str]:
        """All of them, and the revision to watch from."""

    @abc.abstractmethod
    def watch(self, kind: Kind, namespace: str, labels: str, since: str) -> AsyncIterator[tuple[str, Object]]:
        """ADDED, MODIFIED or DELETED, and the object."""

    @abc.abstractmethod
    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Deletes it and what it owns. NotFoundError."""

    @abc.abstractmethod
    def logs(
        self, namespace: str, pod: str, *, follow: bool, tail: int | None, previous: bool
    ) -> AsyncIterator[bytes]:
        """A pod's output."""

    @abc.abstractmethod
    async def token(self, namespace: str, account: str, audience: str) -> str:
        """A token of a ServiceAccount for that audience, good for ten minutes. NotFoundError."""


class Plane(World):
    """The local plane."""

    def __init__(self, stub: ResourceServiceAsyncStub) -> None:
        self.name = "local plane"
        self._stub = stub

    async def apply(
        self, thing: Object, *, dry_run: bool = False, manager: str = MANAGER
    ) -> tuple[Object, str]:
        from agentctl.resource.v1 import resource_service_pb2 as pb
        from libs.documents import document_of, struct_of

        request = pb.ApplyRequest(object=struct_of(thing), dry_run=dry_run, field_manager=manager)
        reply = await self._stub.Apply(request)
        for warning in reply.warnings:
            warn(warning)
        verb = "created" if reply.created else "configured" if reply.changed else "unchanged"
        return document_of(reply.object), verb

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        from agentctl.resource.v1 import resource_service_pb2 as pb
        from libs.documents import document_of

        request = pb.GetRequest(kind=kind.name, namespace=namespace, name=name)
        return document_of((await self._stub.Get(request)).object)

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> tuple[list[Object], str]:
        from agentctl.resource.v1 import resource_service_pb2 as pb
        from libs.documents import document_of

        found: list[Object] = []
        revision, token = "", ""
        while True:
            page = await self._stub.List(
                pb.ListRequest(kind=kind.name, namespace=namespace, label_selector=labels, page_token=token)
            )
            found += map(document_of, page.objects)
            revision, token = revision or page.revision, page.next_page_token
            if not token:
                return found, revision

    async def watch(
        self, kind: Kind, namespace: str, labels: str, since: str
    ) -> AsyncIterator[tuple[str, Object]]:
        from agentctl.resource.v1 import resource_service_pb2 as pb
        from libs.documents import document_of

        request = pb.WatchRequest(kind=kind.name, namespace=namespace, label_selector=labels, revision=since)
        async for change in self._stub.Watch(request):
            name = pb.ChangeType.Name(change.type).removeprefix("CHANGE_TYPE_")
            if name != "BOOKMARK":
                yield name, document_of(change.object)

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        from agentctl.resource.v1 import resource_service_pb2 as pb

        await self._stub.Delete(pb.DeleteRequest(kind=kind.name, namespace=namespace, name=name))

    async def logs(
        self, namespace: str, pod: str, *, follow: bool, tail: int | None, previous: bool
    ) -> AsyncIterator[bytes]:
        from agentctl.resource.v1 import resource_service_pb2 as pb

        request = pb.GetLogsRequest(
            namespace=namespace, pod=pod, follow=follow, tail_lines=tail or 0, previous=previous
        )
        async for piece in self._stub.GetLogs(request):
            yield piece.data

    async def token(self, namespace: str, account: str, audience: str) -> str:
        from agentctl.resource.v1 import resource_service_pb2 as pb

        request = pb.CreateTokenRequest(namespace=namespace, service_account=account, audience=audience)
        request.lifetime.FromSeconds(_TOKEN_SECONDS)
        return (await self._stub.CreateToken(request)).token


class Kubernetes(World):
    """A cluster with our CRDs."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster

    async def apply(
        self, thing: Object, *, dry_run: bool = False, manager: str = MANAGER
    ) -> tuple[Object, str]:
        from libs.cluster.kinds import kind_of
        from libs.errors import NotFoundError

        kind = kind_of(thing["apiVersion"], thing["kind"])
        metadata = thing["metadata"]
        try:
            before = await self._cluster.get(kind, metadata.get("namespace", ""), metadata["name"])
        except NotFoundError:
            before = None
        after = await self._cluster.apply(thing, manager, dry_run=dry_run)
        if before is None:
            return after, "created"
        return after, "unchanged" if _content(before) == _content(after) else "configured"

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return await self._cluster.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> tuple[list[Object], str]:
        listing = await self._cluster.list(kind, namespace, labels)
        return listing.items, listing.revision

    async def watch(
        self, kind: Kind, namespace: str, labels: str, since: str
    ) -> AsyncIterator[tuple[str, Object]]:
        async for change in self._cluster.watch(kind, namespace, labels, since=since):
            if change.type != "BOOKMARK":
                yield change.type, change.object

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        await self._cluster.delete(kind, namespace, name)

    async def logs(
        self, namespace: str, pod: str, *, follow: bool, tail: int | None, previous: bool
    ) -> AsyncIterator[bytes]:
        from libs.cluster import Log

        log = Log(namespace, pod, follow=follow, tail=tail, previous=previous)
        async for data in self._cluster.logs(log):
            yield data

    async def token(self, namespace: str, account: str, audience: str) -> str:
        return await self._cluster.issue_token(namespace, account, audience, _TOKEN_SECONDS)


@asynccontextmanager
async def open_world(settings: Settings, target: Target) -> AsyncIterator[World]:
    """The world that the options mean. FailedError if there is none; errors of the mesh come as ours."""
    endpoint = settings.state.running().get("plane")
    use_kubernetes = bool(target.kubeconfig or target.context) or not endpoint
    kubeconfig = target.kubeconfig or default_kubeconfig(settings)
    if use_kubernetes and kubeconfig is None:
        raise FailedError(
            "no plane is running here, and there is no kubeconfig: start one with `agentctl up`, "
            "or name a cluster by --kubeconfig or KUBECONFIG",
            Exit.UNAVAILABLE,
        )
    if use_kubernetes:
        async with cluster_at(kubeconfig, target.context, warned=warn) as (cluster, where):
            yield Kubernetes(cluster, where)
    else:
        from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceStub
        from libs.mesh import PLANE

        async with component_at(settings, PLANE, str(endpoint)) as channel:
            yield Plane(ResourceServiceStub(channel))


def _content(thing: Object) -> Object:
    metadata = {name: value for name, value in thing["metadata"].items() if name not in _BOOKKEEPING}
    return {**thing, "metadata": metadata}
