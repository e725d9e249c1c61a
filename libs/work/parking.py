"""Connections: one for calls, others for calls that wait, so that Renew and Ack never queue behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Self

from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceStub
from libs.identity import Identity
from libs.mesh import COORDINATION
from libs.rpc.client import dial

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub

_MOST_PARKED = 200


class Parking(AsyncExitStack):
    """Opens a further connection when 200 calls are parked on each of those there are."""

    stub: CoordinationServiceAsyncStub
    parked_stub: CoordinationServiceAsyncStub

    def __init__(self, address: str, identity: Identity, timeout: float) -> None:
        super().__init__()
        self._address = address
        self._identity = identity
        self._timeout = timeout
        self._free: list[CoordinationServiceAsyncStub] = []  # one entry per free place

    async def __aenter__(self) -> Self:
        self.stub = await self._open(own_connection=False)
        self.parked_stub = await self._open(own_connection=True)
        self._free = [self.parked_stub] * _MOST_PARKED
        return self

    @asynccontextmanager
    async def place(self) -> AsyncIterator[CoordinationServiceAsyncStub]:
        """A stub for one call that waits."""
        if not self._free:
            self._free += [await self._open(own_connection=True)] * _MOST_PARKED
        stub = self._free.pop()
        try:
            yield stub
        finally:
            self._free.append(stub)

    async def _open(self, *, own_connection: bool) -> CoordinationServiceAsyncStub:
        channel = await self.enter_async_context(
            dial(
                COORDINATION,
                self._address,
                self._identity,
                timeout=self._timeout,
                own_connection=own_connection,
            )
        )
        return CoordinationServiceStub(channel)
