"""KEDA and the HPAs of many ScaledObjects, as a scaler sees them: plain gRPC, all on one connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from externalscaler import externalscaler_pb2 as pb
from externalscaler.externalscaler_pb2_grpc import ExternalScalerStub
from libs.identity import Identity

from ..latency import Histogram

if TYPE_CHECKING:
    from externalscaler.externalscaler_pb2_grpc import ExternalScalerAsyncStub

HPA_SECONDS = 15.0
ITEMS = "agentctl-items"


@asynccontextmanager
async def connection(address: str, identity: Identity) -> AsyncIterator[ExternalScalerAsyncStub]:
    """One connection with this certificate."""
    credentials = grpc.ssl_channel_credentials(
        identity.root.read_bytes(), identity.key.read_bytes(), identity.certificate.read_bytes()
    )
    options = [
        ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        yield ExternalScalerStub(channel)


@dataclass
class Turn:
    """A word of a stream that somebody waits for."""

    active: bool
    heard: asyncio.Future[float]


@dataclass
class Keda:
    """Both streams of each object, and the calls of its HPA."""

    stub: ExternalScalerAsyncStub
    refs: Sequence[pb.ScaledObjectRef]
    pushes: int = 0
    """Messages of StreamIsActive, heartbeats included."""
    asks: Histogram = field(default_factory=Histogram)
    """Seconds of each GetMetrics."""
    _turns: dict[int, Turn] = field(default_factory=dict)
    _streams: list[asyncio.Task[None]] = field(default_factory=list)

    async def connect(self, tasks: asyncio.TaskGroup) -> float:
        """Opens all streams, which go on in `tasks`; seconds until each has said its first word."""
        began = time.monotonic()
        opened = [asyncio.Event() for _ in range(2 * len(self.refs))]
        for number, ref in enumerate(self.refs):
            self._streams.append(tasks.create_task(self._activity(number, ref, opened[2 * number])))
            self._streams.append(tasks.create_task(self._specs(ref, opened[2 * number + 1])))
        for event in opened:
            await event.wait()
        return time.monotonic() - began

    def close(self) -> None:
        """Ends the streams."""
        for stream in self._streams:
            stream.cancel()

    def turn(self, number: int, active: bool) -> asyncio.Future[float]:
        """When the stream of that object says this next, by the monotonic clock."""
        heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._turns[number] = Turn(active, heard)
        return heard

    async def ask(self, seconds: float) -> None:
        """What the HPAs ask in so long: each its metric every 15 s, evenly spread."""
        begun, step = time.monotonic(), HPA_SECONDS / len(self.refs)
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(seconds / step)):
                await asyncio.sleep(max(0.0, begun + number * step - time.monotonic()))
                tasks.create_task(self._ask(self.refs[number % len(self.refs)]))

    async def _ask(self, ref: pb.ScaledObjectRef) -> None:
        began = time.monotonic()
        await self.stub.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref, metricName=ITEMS))
        self.asks.record(time.monotonic() - began)

    async def _activity(self, number: int, ref: pb.ScaledObjectRef, opened: asyncio.Event) -> None:
        async for message in self.stub.StreamIsActive(ref):
            now = time.monotonic()
            self.pushes += 1
            opened.set()
            turn = self._turns.get(number)
            if turn and turn.active == message.result:
                del self._turns[number]
                turn.heard.set_result(now)

    async def _specs(self, ref: pb.ScaledObjectRef, opened: asyncio.Event) -> None:
        async for _ in self.stub.StreamMetricSpec(ref):
            opened.set()
