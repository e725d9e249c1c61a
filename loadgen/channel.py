"""The way to the server: the mesh's own `dial`, each channel on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from libs import mesh
from libs.errors import UnavailableError
from libs.identity import Identity
from libs.rpc.client import dial

_CONNECT_SECONDS = 5
_RPC_SECONDS = 30.0
_ROTATION_SECONDS = 3600.0  # no step lasts that long; looking costs the generator


@dataclass(frozen=True)
class Target:
    """The coordination service to measure, and who we are to it."""

    address: str
    identity: Identity


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[grpc.aio.Channel]:
    """A channel whose connection is up. UnavailableError if it does not come up."""
    async with dial(
        mesh.COORDINATION,
        target.address,
        target.identity,
        timeout=_RPC_SECONDS,
        own_connection=True,
        check_seconds=_ROTATION_SECONDS,
    ) as channel:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                up = await _settled(channel)
        except TimeoutError:
            up = False
        if not up:
            raise UnavailableError(f"no connection to {target.address}")
        yield channel


async def reach(target: Target) -> None:
    """UnavailableError unless the server can be connected to."""
    async with connected(target):
        return


async def _settled(channel: grpc.aio.Channel) -> bool:
    """Waits until the first attempt to connect has an end; whether it is a good one."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return False
        await channel.wait_for_state_change(state)
    return True
