"""The ways to the server, each channel on a connection of its own.

`connected` is the mesh's own `dial`. `bare` is gRPC with the same identities and without what makes a client
of the mesh comfortable: it repeats nothing, traces nothing, and its errors are gRPC's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from libs import mesh, pki
from libs.errors import UnavailableError
from libs.identity import Identity
from libs.rpc.client import dial

from .tally import Client

_CONNECT_SECONDS = 5
_RPC_SECONDS = 30.0
_ROTATION_SECONDS = 3600.0  # no step lasts that long; looking costs the generator
_BARE = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.enable_channelz", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", 4 << 20),
)


@dataclass(frozen=True)
class Target:
    """The coordination service to measure, and who we are to it."""

    address: str
    identity: Identity
    parked_at: str = ""
    """Another replica, where `wake` parks its claims."""


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
        await _come_up(channel, target)
        yield channel


@asynccontextmanager
async def bare(target: Target, client: Client = Client.GRPCIO) -> AsyncIterator[grpc.aio.Channel]:
    """The cheapest channel whose connection is up. UnavailableError if it does not come up."""
    identity = target.identity
    name = f"{mesh.COORDINATION.name}.cp.{pki.own(identity).domain}"
    if client is Client.LEAN:
        from .lean import connect  # needs a package that only agentctl[load] has

        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                lean: Any = await connect(target.address, identity, name)
        except OSError as error:  # TimeoutError is one
            raise UnavailableError(f"no connection to {target.address}: {error}") from error
        try:
            yield lean
        finally:
            lean.close()
        return
    credentials = grpc.ssl_channel_credentials(
        identity.root.read_bytes(), identity.key.read_bytes(), identity.certificate.read_bytes()
    )
    options = [("grpc.ssl_target_name_override", name), *_BARE]
    async with grpc.aio.secure_channel(target.address, credentials, options) as channel:
        await _come_up(channel, target)
        yield channel


async def reach(target: Target) -> None:
    """UnavailableError unless the server can be connected to."""
    async with connected(target):
        return


async def _come_up(channel: grpc.aio.Channel, target: Target) -> None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            up = await _settled(channel)
    except TimeoutError:
        up = False
    if not up:
        raise UnavailableError(f"no connection to {target.address}")


async def _settled(channel: grpc.aio.Channel) -> bool:
    """Waits until the first attempt to connect has an end; whether it is a good one."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return False
        await channel.wait_for_state_change(state)
    return True
