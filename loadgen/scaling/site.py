"""The home that is watched: a local plane, or a Kubernetes whose coordination and scaler are forwarded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from externalscaler import externalscaler_pb2
from externalscaler.externalscaler_pb2_grpc import ExternalScalerStub
from libs.cluster.kinds import AGENT_FLEET, POD
from libs.errors import NotFoundError
from libs.identity import Identity
from libs.mesh import SCALER
from libs.rpc.client import dial
from libs.work import Client, connect

from ..management.corpus import fleet, surroundings
from ..provision.world import World, at_home, in_cluster

if TYPE_CHECKING:
    from externalscaler.externalscaler_pb2_grpc import ExternalScalerAsyncStub

    from ..provision.timeline import Object

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Cluster:
    """A Kubernetes, where its components can be reached from here, and an administrator's certificate."""

    kubeconfig: Path
    coordination: str
    scaler: str
    tls_dir: Path


@dataclass(frozen=True)
class Site:
    """What is measured, in one namespace."""

    world: World
    client: Client
    scaler: ExternalScalerAsyncStub
    namespace: str
    is_home: bool
    """Whether the local plane does what KEDA and Kubernetes do elsewhere."""

    async def declare(
        self, name: str, most: int, *, slots: int, cooldown: int, replicas: int | None = None
    ) -> None:
        """A fleet of 0 to `most` agents; `replicas` sets a number by hand. `cooldown` is seconds."""
        thing: Object = fleet(self.namespace, name, 0)
        scaling = {"minReplicas": 0, "maxReplicas": most, "cooldown": f"{cooldown}s"}
        thing["spec"] |= {"scaling": scaling, "work": {"slots": slots}}
        if replicas is not None:
            thing["spec"]["replicas"] = replicas
        await self.world.apply(thing)

    @asynccontextmanager
    async def fleet(self, name: str, most: int, **how: int | None) -> AsyncIterator[str]:
        """Declared while the block runs; the name of its queue. See `declare`."""
        for thing in surroundings(self.namespace):
            await self.world.apply(thing)
        try:
            await self.declare(name, most, **how)  # type: ignore[arg-type]
            yield f"{self.namespace}/{name}"
        finally:
            with suppress(NotFoundError):
                await self.world.delete(AGENT_FLEET, self.namespace, name)

    async def pods(self, name: str) -> int:
        """How many the fleet has, those that are ending included."""
        return await self.world.count(POD, self.namespace, f"agentctl.dev/agent={name}")

    async def empty(self, name: str, patience: float) -> None:
        """Returns when the fleet has no pods. TimeoutError after so many seconds."""
        async with asyncio.timeout(patience):
            while await self.pods(name):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)

    def trigger(self, name: str) -> externalscaler_pb2.ScaledObjectRef:
        """What KEDA sends for the fleet."""
        return externalscaler_pb2.ScaledObjectRef(name=name, namespace=self.namespace)


@asynccontextmanager
async def at(where: Cluster | Mapping[str, str], namespace: str) -> AsyncIterator[Site]:
    """The cluster, or the plane with these endpoints."""
    if isinstance(where, Cluster):
        world, coordination, scaler = in_cluster(where.kubeconfig), where.coordination, where.scaler
        identity = Identity(where.tls_dir)
    else:
        world, coordination, scaler = at_home(where), where["coordination"], where["scaler"]
        identity = Identity(Path(where["tls_dir"]))
    async with (
        world as opened,
        connect(coordination, identity) as client,
        dial(SCALER, scaler, identity) as channel,
    ):
        stub = ExternalScalerStub(channel)
        yield Site(opened, client, stub, namespace, not isinstance(where, Cluster))
