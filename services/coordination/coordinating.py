"""The service as a whole, given its settings: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup
from prometheus_client import REGISTRY

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs.enrol import enrolled
from libs.errors import UnavailableError
from libs.mesh import COORDINATION
from libs.rpc.boundary import Limits
from libs.rpc.server import serving

from .metrics import QueueMetrics
from .server import Coordination
from .settings import Settings
from .store import Store, Wake
from .store.memory import MemoryStore
from .waiting import Waiting

_log = logging.getLogger(__name__)


Opener = Callable[[Settings, Wake], AbstractAsyncContextManager[Store]]


@asynccontextmanager
async def open_store(settings: Settings, wake: Wake) -> AsyncIterator[Store]:
    """The store that the settings name."""
    if settings.store == "memory":
        _log.warning("the store is memory: one replica only, and nothing survives a restart")
        yield MemoryStore(wake)
        return
    from libs import postgres  # 15 MiB of driver that the memory store does without

    from .store.postgres import PostgresStore

    database: AbstractAsyncContextManager[str]
    if settings.store == "embedded":
        assert settings.data_dir is not None  # Settings has checked
        database = postgres.embedded(settings.data_dir)
    else:
        assert settings.database_file is not None
        database = nullcontext(settings.database_file.read_text().strip())
    async with database as conninfo, PostgresStore.open(conninfo, wake) as store:
        yield store


def _background(tasks: TaskGroup) -> Callable[[Coroutine[object, object, None]], None]:
    async def finish(work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except UnavailableError as error:  # then the leases run out by themselves
            _log.warning("could not take grants back: %s", error)

    def begin(work: Coroutine[object, object, None]) -> None:
        tasks.start_soon(finish, work)

    return begin


@dataclass(frozen=True)
class Coordinating:
    """A coordination service that serves."""

    address: str
    check: Callable[[], Awaitable[None]]
    """UnavailableError while it cannot do its job."""


@asynccontextmanager
async def coordinating(
    settings: Settings, opener: Opener = open_store, *, folder: str = ""
) -> AsyncIterator[Coordinating]:
    """The whole service while the block runs: identity (in `folder` below tls_dir), store, servicer."""
    waiting = Waiting()
    async with (
        enrolled(settings, COORDINATION.name, folder=folder) as identity,
        opener(settings, waiting.wake) as store,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(store.run)
        tasks.start_soon(waiting.run)
        metrics = QueueMetrics()
        REGISTRY.register(metrics)
        tasks.start_soon(metrics.keep, store)
        servicer = Coordination(store, waiting, _background(tasks))
        try:
            async with serving(
                COORDINATION,
                identity,
                lambda server: pb_grpc.add_CoordinationServiceServicer_to_server(servicer, server),
                host=settings.host,
                port=settings.port,
                front=settings.front,
                limits=Limits(drain_seconds=settings.drain.total_seconds()),
                on_drain=[waiting.drain],
                ready=store.check,
            ) as served:
                yield Coordinating(served.address, store.check)
        finally:
            REGISTRY.unregister(metrics)
        tasks.cancel_scope.cancel()
