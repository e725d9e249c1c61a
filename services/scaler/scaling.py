"""The service as a whole, given its settings: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from externalscaler import externalscaler_pb2_grpc as pb_grpc
from libs.enrol import enrolled
from libs.mesh import COORDINATION, SCALER
from libs.rpc.boundary import Limits
from libs.rpc.client import dial
from libs.rpc.server import serving

from . import metrics
from .feed import Feed
from .picture import Picture
from .server import MAX_STREAMS, Scaler
from .settings import Settings

_SPARE_STREAMS = 1000  # of a connection, for calls that end, while it carries all streams that may be open


@dataclass(frozen=True)
class Scaling:
    """A scaler that serves."""

    address: str
    check: Callable[[], Awaitable[None]]
    """UnavailableError while it does not know what there is to do."""


@asynccontextmanager
async def scaling(settings: Settings, *, folder: str = "") -> AsyncIterator[Scaling]:
    """The whole service while the block runs: identity (in `folder` below tls_dir), feed, servicer."""
    picture = Picture()
    scaler = Scaler(picture)
    metrics.FRESH.set_function(lambda: picture.is_fresh)

    async def check() -> None:
        picture.check()

    async with (
        enrolled(settings, SCALER.name, folder=folder) as identity,
        dial(COORDINATION, settings.coordination_address, identity, own_connection=True) as channel,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(Feed(channel, picture, settings.min_interval).run)
        async with serving(
            SCALER,
            identity,
            lambda server: pb_grpc.add_ExternalScalerServicer_to_server(scaler, server),
            host=settings.host,
            port=settings.port,
            front=settings.front,
            # KEDA has one connection for all that it asks
            limits=Limits(
                max_streams=MAX_STREAMS + _SPARE_STREAMS, drain_seconds=settings.drain.total_seconds()
            ),
            on_drain=[scaler.drain],
            ready=check,
        ) as served:
            yield Scaling(served.address, check)
        tasks.cancel_scope.cancel()
