"""The servicer: reads the trigger, looks at the picture, answers in KEDA's words.

Each answer comes from the whole reference that KEDA sends with the call. Nothing is kept under a name.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from externalscaler import externalscaler_pb2 as pb
from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs.errors import ExhaustedError

from . import metrics
from .demand import Trigger
from .picture import Picture

MAX_STREAMS = 20_000  # open at once, of both kinds
HEARTBEAT_SECONDS = 20.0  # most between two messages of StreamIsActive, while what they say is known


class Scaler(pb_grpc.ExternalScalerServicer):
    """KEDA's contract, over `picture`."""

    def __init__(
        self,
        picture: Picture,
        *,
        max_streams: int = MAX_STREAMS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._picture = picture
        self._max_streams = max_streams
        self._heartbeat_seconds = heartbeat_seconds
        self._streams = 0
        self._drained = asyncio.Event()

    def drain(self) -> None:
        """Ends all streams, well: after that KEDA asks again soon, and somebody else."""
        self._drained.set()
        self._picture.wake()

    async def IsActive(self, request: pb.ScaledObjectRef, context: object) -> pb.IsActiveResponse:
        demand = self._picture.demand(_trigger(request).queue)
        return pb.IsActiveResponse(result=demand.is_active)

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: object
    ) -> AsyncIterator[pb.IsActiveResponse]:
        queue = _trigger(request).queue
        said: bool | None = None  # None: say it again
        with self._stream("StreamIsActive"), self._picture.watch(queue) as moved:
            while not self._drained.is_set():
                moved.clear()
                demand = self._picture.find(queue)
                if demand is not None and (active := demand.is_active) != said:
                    said = active
                    metrics.PUSHES.labels("active" if active else "inactive").inc()
                    yield pb.IsActiveResponse(result=active)
                try:
                    # spread, since KEDA opens all of them at once
                    async with asyncio.timeout(self._heartbeat_seconds * random.uniform(0.5, 1)):
                        await moved.wait()
                except TimeoutError:
                    said = None

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: object) -> pb.GetMetricSpecResponse:
        return _specs(_trigger(request))

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: object) -> pb.GetMetricsResponse:
        trigger = _trigger(request.scaledObjectRef)
        demand = self._picture.demand(trigger.queue)
        values = trigger.values(demand, self._picture.now(), request.metricName)
        return pb.GetMetricsResponse(
            metricValues=[
                pb.MetricValue(metricName=name, metricValue=math.ceil(value), metricValueFloat=value)
                for name, value in values.items()
            ]
        )

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: object
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        specs = _specs(_trigger(request))
        with self._stream("StreamMetricSpec"):
            yield specs  # and no more: they come from the request alone
            await self._drained.wait()

    @contextmanager
    def _stream(self, method: str) -> Iterator[None]:
        if self._streams >= self._max_streams:
            raise ExhaustedError(f"{self._max_streams} streams are open, which is the most")
        self._streams += 1
        metrics.STREAMS.labels(method).inc()
        try:
            yield
        finally:
            self._streams -= 1
            metrics.STREAMS.labels(method).dec()


def _trigger(ref: pb.ScaledObjectRef) -> Trigger:
    return Trigger.of(ref.namespace, ref.name, ref.scalerMetadata)


def _specs(trigger: Trigger) -> pb.GetMetricSpecResponse:
    return pb.GetMetricSpecResponse(
        metricSpecs=[
            pb.MetricSpec(metricName=name, targetSize=math.ceil(target), targetSizeFloat=target)
            for name, target in trigger.targets().items()
        ]
    )
