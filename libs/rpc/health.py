"""grpc.health.v1: whether calls are welcome now. It answers for the server and for each of its services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc as pb_grpc

from libs.errors import NotFoundError


class Health(pb_grpc.HealthServicer):
    """One state for all services, since they share a process. Watches end when the server stops."""

    def __init__(self) -> None:
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
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: object, context: object) -> object:
        statuses = {
            service: pb.HealthCheckResponse(status=self._status(service)) for service in self._services
        }
        return pb.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # stubs are older

    async def Watch(
        self, request: pb.HealthCheckRequest, context: object
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        told = None
        while True:
            changed = self._changed
            if (status := self._status(request.service)) != told:
                told = status
                yield pb.HealthCheckResponse(status=status)
            elif self._stopped:
                return
            else:
                await changed.wait()

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        return pb.HealthCheckResponse.SERVING if self._ready else pb.HealthCheckResponse.NOT_SERVING
