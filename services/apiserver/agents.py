"""Reaching the agent in a pod: nobody but the pod of that uid is believed at its address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceStub
from libs import pki
from libs.errors import InvalidError, MeshError
from libs.identity import Identity, Principal
from libs.mesh import AGENT
from libs.rpc.client import dial
from libs.rpc.rotation import pace

from .pods import Pod

if TYPE_CHECKING:
    from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

Dial: TypeAlias = "Callable[[Pod], AbstractAsyncContextManager[AgentServiceAsyncStub]]"
"""The agent of a pod, while the block runs. InvalidError if its name is none that a server can have."""


def by_mesh(identity: Identity, address: Callable[[Pod], str] = lambda pod: pod.address) -> Dial:
    """A connection for each time."""
    domain, seconds = pki.own(identity).domain, pace(identity)

    @asynccontextmanager
    async def dialled(pod: Pod) -> AsyncIterator[AgentServiceAsyncStub]:
        try:
            server = Principal.parse(f"spiffe://{domain}{pod.id}")
            server.dns_name  # noqa: B018  (it may have none)
        except ValueError as error:
            raise InvalidError(str(error)) from None
        async with dial(AGENT, address(pod), identity, server=server, check_seconds=seconds) as channel:
            yield AgentServiceStub(channel)

    return dialled


def brief(error: MeshError) -> str:
    """Why a call failed, without gRPC's account of each address that it tried."""
    return str(error).rpartition("last error: ")[2].removeprefix("UNKNOWN: ")


@dataclass(frozen=True, slots=True)
class _Idle:
    agent: AgentServiceAsyncStub
    stack: AsyncExitStack
    """Closes the connection."""
    timer: asyncio.TimerHandle


class Keeping:
    """Keeps connections for `seconds` after their last use, at most so many, the last used ones: a TLS
    handshake costs more than all else of a verb. One on which something failed is not kept."""

    def __init__(self, dial: Dial, *, seconds: float = 60.0, most: int = 256) -> None:
        self._dial = dial
        self._seconds = seconds
        self._most = most
        self._idle: dict[tuple[str, str], _Idle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def dial(self, pod: Pod) -> AsyncIterator[AgentServiceAsyncStub]:
        """A `Dial`. Nobody else uses the connection meanwhile."""
        key = pod.uid, pod.address
        idle = self._idle.pop(key, None)
        async with idle.stack if idle else AsyncExitStack() as stack:
            if idle:
                idle.timer.cancel()
                agent = idle.agent
            else:
                agent = await stack.enter_async_context(self._dial(pod))
            yield agent
            self._drop(key)  # somebody else's, who was here at the same time
            timer = asyncio.get_running_loop().call_later(self._seconds, self._drop, key)
            self._idle[key] = _Idle(agent, stack.pop_all(), timer)
            if len(self._idle) > self._most:
                self._drop(next(iter(self._idle)))

    async def close(self) -> None:
        """Closes those that are not in use."""
        for key in list(self._idle):
            self._drop(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _drop(self, key: tuple[str, str]) -> None:
        if idle := self._idle.pop(key, None):
            idle.timer.cancel()
            task = asyncio.create_task(idle.stack.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
