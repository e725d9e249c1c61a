"""Applying, watching and deleting in either home."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.resource.v1 import resource_service_pb2 as pb
from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceStub
from libs.cluster import Cluster, Log
from libs.cluster.kinds import Kind, kind_of
from libs.documents import document_of, struct_of
from libs.identity import Identity
from libs.mesh import PLANE
from libs.rpc.client import dial
from libs.state import State

from .timeline import Object

if TYPE_CHECKING:
    from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceAsyncStub

EVERYTHING = "0"
"""To watch from: all that is there comes first."""

_MANAGER = "agentctl-loadgen"


class World(abc.ABC):
    """What the measurement needs of a home."""

    name: str

    @abc.abstractmethod
    async def apply(self, thing: Object) -> None:
        """Makes it as said."""

    @abc.abstractmethod
    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Deletes it."""

    @abc.abstractmethod
    async def revision(self, kind: Kind, namespace: str) -> str:
        """Where to watch from."""

    @abc.abstractmethod
    async def count(self, kind: Kind, namespace: str, labels: str) -> int:
        """How many there are."""

    @abc.abstractmethod
    async def logs(self, namespace: str, pod: str) -> str:
        """What a pod has printed until now."""

    @abc.abstractmethod
    def watch(self, kind: Kind, namespace: str, since: str) -> AsyncGenerator[Object, None]:
        """Each object that changes, deletions left out."""


class InCluster(World):
    """A Kubernetes."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster

    async def apply(self, thing: Object) -> None:
        await self._cluster.apply(thing, _MANAGER)

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        await self._cluster.delete(kind, namespace, name)

    async def revision(self, kind: Kind, namespace: str) -> str:
        return (await self._cluster.list(kind, namespace)).revision

    async def count(self, kind: Kind, namespace: str, labels: str) -> int:
        return len((await self._cluster.list(kind, namespace, labels)).items)

    async def logs(self, namespace: str, pod: str) -> str:
        parts = [part async for part in self._cluster.logs(Log(namespace, pod))]
        return b"".join(parts).decode(errors="replace")

    async def watch(self, kind: Kind, namespace: str, since: str) -> AsyncGenerator[Object, None]:
        async for change in self._cluster.watch(kind, namespace, since=since):
            if change.type in ("ADDED", "MODIFIED"):
                yield change.object


class AtHome(World):
    """The local plane."""

    def __init__(self, stub: ResourceServiceAsyncStub) -> None:
        self.name = "the local plane"
        self._stub = stub

    async def apply(self, thing: Object) -> None:
        await self._stub.Apply(pb.ApplyRequest(object=struct_of(thing)))

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        await self._stub.Delete(pb.DeleteRequest(kind=kind.name, namespace=namespace, name=name))

    async def revision(self, kind: Kind, namespace: str) -> str:
        return (await self._stub.List(pb.ListRequest(kind=kind.name, namespace=namespace))).revision

    async def count(self, kind: Kind, namespace: str, labels: str) -> int:
        request = pb.ListRequest(kind=kind.name, namespace=namespace, label_selector=labels)
        return len((await self._stub.List(request)).objects)

    async def logs(self, namespace: str, pod: str) -> str:
        request = pb.GetLogsRequest(namespace=namespace, pod=pod)
        parts = [part.data async for part in self._stub.GetLogs(request)]
        return b"".join(parts).decode(errors="replace")

    async def watch(self, kind: Kind, namespace: str, since: str) -> AsyncGenerator[Object, None]:
        request = pb.WatchRequest(kind=kind.name, namespace=namespace, revision=since)
        async for change in self._stub.Watch(request):
            if change.type in (pb.CHANGE_TYPE_ADDED, pb.CHANGE_TYPE_MODIFIED):
                yield document_of(change.object)


@asynccontextmanager
async def open_world(kubeconfig: Path | None, state_dir: Path | None) -> AsyncIterator[World]:
    """The Kubernetes of the kubeconfig, or the plane that runs on the state folder."""
    if kubeconfig:
        async with in_cluster(kubeconfig) as world:
            yield world
        return
    assert state_dir is not None  # the command has checked
    endpoints = State(state_dir).running()
    if not endpoints:
        raise FileNotFoundError(f"no plane runs on {state_dir}")
    async with at_home(endpoints) as world:
        yield world


@asynccontextmanager
async def in_cluster(kubeconfig: Path) -> AsyncIterator[World]:
    """The Kubernetes of the kubeconfig."""
    from libs.cluster.kubernetes import connect

    async with connect(kubeconfig) as cluster:
        yield InCluster(cluster, await cluster.version())


@asynccontextmanager
async def at_home(endpoints: Mapping[str, str]) -> AsyncIterator[World]:
    """The plane that listens there, as its administrator."""
    async with dial(PLANE, endpoints["plane"], Identity(Path(endpoints["tls_dir"]))) as channel:
        yield AtHome(ResourceServiceStub(channel))


def kind_of_object(thing: Object) -> Kind:
    """The kind of a manifest."""
    return kind_of(thing["apiVersion"], thing["kind"])
