"""Keeps the picture by one stream of coordination's, again and again from the start when it breaks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import MeshError, UnavailableError
from libs.rpc.client import Channel

from . import metrics
from .demand import Demand
from .picture import Picture

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 1.0  # without a message, then we ask whether anybody is there
_ANSWER_SECONDS = 2.0
_FULL = 2000  # queues in a message; a first picture ends with one that has fewer
_BACKOFF_SECONDS = (0.1, 2.0)  # the first and the longest


class Feed:
    """Writes `picture` from what the other end of `channel` says. Silence is no sign, since quiet queues have
    no news: now and then it asks for the health of coordination, which asks its store."""

    def __init__(self, channel: Channel, picture: Picture, interval: timedelta) -> None:
        self._channel = channel
        self._picture = picture
        self._coordination: Any = pb_grpc.CoordinationServiceStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)
        self._interval = Duration()
        self._interval.FromTimedelta(interval)

    async def run(self) -> None:
        """Until cancelled."""
        pause, longest = _BACKOFF_SECONDS
        while True:
            began = self._now()
            try:
                await self._follow()
            except MeshError as error:
                metrics.BREAKS.inc()
                _log.warning("the stream of coordination broke, trying again: %s", error)
            if self._now() - began > longest:
                pause, _ = _BACKOFF_SECONDS
            if not self._picture.is_fresh:
                await self._channel.renew()  # whoever is at the other end may answer nothing for long
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, longest)

    async def _follow(self) -> None:
        """One stream, until it breaks. MeshError."""
        stream = self._coordination.WatchQueues(pb.WatchQueuesRequest(min_interval=self._interval))
        reading = asyncio.ensure_future(stream.read())
        parts: dict[str, Demand] | None = {}  # of the first picture, while it is not whole
        try:
            while True:
                await asyncio.wait({reading}, timeout=_QUIET_SECONDS)
                if reading.cancelled():  # by our channel, which closes the connection of an old certificate
                    raise UnavailableError("its connection was closed")
                if reading.done():
                    if (message := reading.result()) is grpc.aio.EOF:
                        raise UnavailableError("it ended")
                    reading = asyncio.ensure_future(stream.read())
                    parts = self._take(parts, self._demands(message.queues), len(message.queues) >= _FULL)
                else:
                    await self._check()
                    if parts is None:
                        self._picture.confirm()
                    elif parts:  # a shorter message may be on its way, or never come: all parts were full
                        self._picture.replace(parts, is_whole=False)
        finally:
            stream.cancel()
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()  # that the stream broke is known

    def _take(
        self, parts: dict[str, Demand] | None, demands: dict[str, Demand], has_more: bool
    ) -> dict[str, Demand] | None:
        """Takes a message in; what is there of a first picture that is not whole, None once it is."""
        if parts is None:
            self._picture.update(demands)
            return None
        parts |= demands
        if has_more:
            return parts
        self._picture.replace(parts)
        return None

    async def _check(self) -> None:
        """Whether coordination can do its job. MeshError."""
        answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_SECONDS)
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise UnavailableError("coordination says that it is not ready")

    def _demands(self, queues: Iterable[work_pb2.Queue]) -> dict[str, Demand]:
        now = self._picture.now()
        return {queue.name: _demand(queue, now) for queue in queues}

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _demand(queue: work_pb2.Queue, now: float) -> Demand:
    since = None
    if queue.HasField("oldest_ready_age"):
        since = now - queue.oldest_ready_age.ToTimedelta().total_seconds()
    return Demand(queue.ready_count, queue.leased_count, since)
