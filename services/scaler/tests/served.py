"""A scaler over a coordination whose queues a test sets, and a caller that is like KEDA: plain gRPC, one
connection for everything, its certificate from files, the server's name that of its Service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as coordination_pb_grpc
from agentctl.coordination.v1 import work_pb2
from externalscaler import externalscaler_pb2 as pb
from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs.identity import Identity
from libs.mesh import COORDINATION, SCALER
from libs.rpc.boundary import Limits
from libs.rpc.server import Serving, serving
from libs.testing import ca
from libs.testing.mesh import Mesh

from ..picture import Picture
from ..server import Scaler

NEVER = 3600.0  # seconds between heartbeats that no test waits for


def ref(
    name: str = "docs", namespace: str = "demo", metadata: Mapping[str, str] | None = None
) -> pb.ScaledObjectRef:
    """What KEDA sends: the trigger's metadata, its own keys among them."""
    theirs = {"scalerAddress": "scaler.agentctl-system.svc:7417", "enableTLS": "true"}
    return pb.ScaledObjectRef(name=name, namespace=namespace, scalerMetadata={**theirs, **(metadata or {})})


@dataclass
class Clock:
    """A clock that stands still."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class FakeCoordination(coordination_pb_grpc.CoordinationServiceServicer):
    """Says what a test sets, in as many parts as coordination does."""

    def __init__(self) -> None:
        self.queues: dict[str, work_pb2.Queue] = {}
        self.has_store = asyncio.Event()  # not set: whoever asks the store waits
        self.has_store.set()
        self.asked: list[coordination_pb.WatchQueuesRequest] = []
        self.looks = 0  # at what nobody should poll
        self._watches: set[asyncio.Queue[work_pb2.Queue]] = set()

    def put(
        self, name: str, ready: int = 0, leased: int = 0, age: float | None = None, **counts: Any
    ) -> None:
        """The numbers of a queue from now on."""
        queue = work_pb2.Queue(name=name, ready_count=ready, leased_count=leased, **counts)
        if age is not None:
            queue.oldest_ready_age.CopyFrom(Duration(seconds=int(age), nanos=int(age % 1 * 1e9)))
        self.queues[name] = queue
        for news in self._watches:
            news.put_nowait(queue)

    async def check(self) -> None:
        """Whether the store answers, as health wants it."""
        await self.has_store.wait()

    async def GetQueues(self, request: Any, context: object) -> coordination_pb.GetQueuesResponse:
        self.looks += 1
        return coordination_pb.GetQueuesResponse(queues=self.queues.values())

    async def WatchQueues(
        self, request: coordination_pb.WatchQueuesRequest, context: object
    ) -> AsyncIterator[coordination_pb.WatchQueuesResponse]:
        self.asked.append(request)
        await self.has_store.wait()
        news: asyncio.Queue[work_pb2.Queue] = asyncio.Queue()
        self._watches.add(news)
        try:
            all = list(self.queues.values())
            for start in range(0, max(1, len(all)), 2000):
                yield coordination_pb.WatchQueuesResponse(queues=all[start : start + 2000])
            while True:
                queue = await news.get()
                await self.has_store.wait()
                yield coordination_pb.WatchQueuesResponse(queues=[queue])
        finally:
            self._watches.discard(news)

    def serve(self, mesh: Mesh, port: int) -> Any:
        """It serves there while the block runs."""

        def register(server: Any) -> None:
            coordination_pb_grpc.add_CoordinationServiceServicer_to_server(self, server)

        limits = Limits(drain_seconds=0.0)
        return mesh.serve(register, COORDINATION, port=port, limits=limits, ready=self.check)


class Pushes:
    """What a stream says, one after the other."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def next(self) -> Any:
        """The next message; None at the end, which is a good one."""
        async with asyncio.timeout(60):
            message = await self.call.read()
        return None if message is grpc.aio.EOF else message

    async def active(self) -> bool:
        """The next message of StreamIsActive."""
        message = await self.next()
        assert message is not None
        return bool(message.result)


@dataclass
class Keda:
    """KEDA's side of one connection."""

    stub: Any

    async def is_active(self, ref: pb.ScaledObjectRef) -> bool:
        return bool((await self.stub.IsActive(ref)).result)

    def stream(self, ref: pb.ScaledObjectRef) -> Pushes:
        return Pushes(self.stub.StreamIsActive(ref))

    def specs(self, ref: pb.ScaledObjectRef) -> Pushes:
        return Pushes(self.stub.StreamMetricSpec(ref))

    async def metrics(self, ref: pb.ScaledObjectRef, name: str = "") -> dict[str, tuple[int, float]]:
        """Both fields of each metric, by its name."""
        said = await self.stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref, metricName=name))
        return {each.metricName: (each.metricValue, each.metricValueFloat) for each in said.metricValues}


@asynccontextmanager
async def keda(address: str, identity: Identity) -> AsyncIterator[Keda]:
    """A connection as KEDA makes it."""
    credentials = grpc.ssl_channel_credentials(
        identity.root.read_bytes(), identity.key.read_bytes(), identity.certificate.read_bytes()
    )
    service_config = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    options = [("grpc.service_config", service_config), ("grpc.use_local_subchannel_pool", 1)]
    _, _, port = address.rpartition(":")
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        yield Keda(pb_grpc.ExternalScalerStub(channel))


@dataclass
class Plane:
    """A scaler with a picture that a test sets."""

    mesh: Mesh
    clock: Clock
    picture: Picture
    scaler: Scaler
    served: Serving
    stack: AsyncExitStack
    _callers: dict[str, Keda] = field(default_factory=dict)

    async def caller(self, role: str = "cp/keda") -> Keda:
        """A connection of this role; one a role."""
        if role not in self._callers:
            connection = keda(self.served.address, self.mesh.identity(role))
            self._callers[role] = await self.stack.enter_async_context(connection)
        return self._callers[role]


@asynccontextmanager
async def plane(mesh: Mesh, **options: Any) -> AsyncIterator[Plane]:
    """`options` are those of `Scaler`, and `front`."""
    clock = Clock()
    picture = Picture(clock)
    front = options.pop("front", "grpcio")
    scaler = Scaler(picture, **{"heartbeat_seconds": NEVER, **options})
    identity = ca.identity(mesh.authority, mesh.folder, "/cp/scaler", dns_names=("localhost",))
    async with (
        AsyncExitStack() as stack,
        serving(
            SCALER,
            identity,
            lambda server: pb_grpc.add_ExternalScalerServicer_to_server(scaler, server),
            front=front,
            limits=Limits(max_streams=5000),
            on_drain=[scaler.drain],
        ) as served,
    ):
        yield Plane(mesh, clock, picture, scaler, served, stack)


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Returns when it is so."""
    async with asyncio.timeout(60):
        while True:
            if await look():
                return
            await asyncio.sleep(0.01)


async def unavailable(keda: Keda, ref: pb.ScaledObjectRef) -> bool:
    """Whether it says that it does not know."""
    try:
        await keda.is_active(ref)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False
