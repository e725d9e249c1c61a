"""grpc.health.v1: whether calls are welcome now. It answers for the server and for each of its services.

Nothing is asked while nobody wants to know.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import anyio
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc as pb_grpc

from libs.errors import NotFoundError, UnavailableError

_log = logging.getLogger(__name__)

_FRESH_SECONDS = 1.0


class Health(pb_grpc.HealthServicer):
    """One state for all services, since they share a process. Watches end when the server stops.

    `ready` raises UnavailableError, naming the reason, while calls are not welcome. What it said counts for a
    second.
    """

    def __init__(self, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        self._ask = ready
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")
        self._reason = ""
        self._services = {""}
        self._ready = False
        self._stopped = False
        self._changed = asyncio.Event()

    def know(self, services: Iterable[str]) -> None:
        """Answer for these too."""
        self._services.update(services)

    def set_ready(self, ready: bool) -> None:
        """SERVING or NOT_SERVING from now on; never again SERVING after `stop`."""
        self._ready = ready and not self._stopped
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """NOT_SERVING for good."""
        self._stopped = True
        self.set_ready(False)

    async def Check(self, request: pb.HealthCheckRequest, context: object) -> pb.HealthCheckResponse:
        if request.service not in self._services:
            raise NotFoundError(f"no service {request.service!r} here")
        await self._look()
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: object, context: object) -> object:
        await self._look()
        statuses = {
            service: pb.HealthCheckResponse(status=self._status(service)) for service in self._services
        }
        return pb.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # stubs are older

    async def Watch(
        self, request: pb.HealthCheckRequest, context: object
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        told = None
        while True:
            await self._look()
            changed = self._changed
            if (status := self._status(request.service)) != told:
                told = status
                yield pb.HealthCheckResponse(status=status)
            elif self._stopped:
                return
            else:
                with anyio.move_on_after(None if self._ask is None else _FRESH_SECONDS):
                    await changed.wait()

    async def _look(self) -> None:
        """Asks, unless the last answer is still fresh."""
        if self._ask is None or self._is_fresh():
            return
        async with self._asking:
            if self._is_fresh():
                return
            try:
                await self._ask()
            except UnavailableError as error:
                reason = str(error) or "not ready"
            else:
                reason = ""
            self._asked_at = time.monotonic()
            if reason and reason != self._reason:
                _log.warning("not ready: %s", reason)
            self._reason = reason
            self.set_ready(not reason)

    def _is_fresh(self) -> bool:
        return self._stopped or time.monotonic() - self._asked_at < _FRESH_SECONDS

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        return pb.HealthCheckResponse.SERVING if self._ready else pb.HealthCheckResponse.NOT_SERVING
