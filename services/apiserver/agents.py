"""Reaching the agent in a pod: nobody but the pod of that uid is believed at its address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceStub
from libs import pki
from libs.errors import InvalidError
from libs.identity import Identity, Principal
from libs.mesh import AGENT
from libs.rpc.client import dial

from .pods import Pod

if TYPE_CHECKING:
    from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

Dial: TypeAlias = "Callable[[Pod], AbstractAsyncContextManager[AgentServiceAsyncStub]]"
"""The agent of a pod, while the block runs. InvalidError if its name is none that a server can have."""


def by_mesh(identity: Identity, address: Callable[[Pod], str] = lambda pod: pod.address) -> Dial:
    """A connection for each time: with it a call costs a few milliseconds, and there is nothing to keep."""
    domain = pki.own(identity).domain

    @asynccontextmanager
    async def dialled(pod: Pod) -> AsyncIterator[AgentServiceAsyncStub]:
        try:
            server = Principal.parse(f"spiffe://{domain}{pod.id}")
            server.dns_name  # noqa: B018  (it may have none)
        except ValueError as error:
            raise InvalidError(str(error)) from None
        async with dial(AGENT, address(pod), identity, server=server) as channel:
            yield AgentServiceStub(channel)

    return dialled
