"""Builds the service from the environment and runs it until SIGTERM."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import anyio
import uvloop
from anyio.abc import TaskGroup
from prometheus_client import REGISTRY

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs import telemetry
from libs.errors import UnavailableError
from libs.identity import Identity
from libs.mesh import COORDINATION
from libs.rpc.boundary import Limits
from libs.rpc.server import serving, stopped
from libs.settings import SettingsError, describe, load

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


async def run(settings: Settings, opener: Opener = open_store) -> None:
    telemetry.start("coordination", settings.log_level)
    waiting = Waiting()
    async with opener(settings, waiting.wake) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        tasks.start_soon(waiting.run)
        metrics = QueueMetrics()
        REGISTRY.register(metrics)
        tasks.start_soon(metrics.keep, store)
        servicer = Coordination(store, waiting, _background(tasks))
        async with (
            telemetry.plain_port(settings.metrics_port, store.check, settings.host),
            serving(
                COORDINATION,
                Identity(settings.tls_dir),
                lambda server: pb_grpc.add_CoordinationServiceServicer_to_server(servicer, server),
                host=settings.host,
                port=settings.port,
                front=settings.front,
                limits=Limits(drain_seconds=settings.drain.total_seconds()),
                on_drain=[waiting.drain],
                ready=store.check,
            ),
        ):
            await stopped()
        tasks.cancel_scope.cancel()


def main(opener: Opener = open_store) -> None:
    if sys.argv[1:]:
        sys.stderr.write(f"configured by the environment only\n\n{describe(Settings, 'COORDINATION_')}\n")
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    try:
        settings = load(Settings, "COORDINATION_")
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    gc.freeze()
    # Only the young are looked through: calls leave no cycles, and a look at millions of items takes seconds.
    gc.set_threshold(10_000, 1_000_000, 1_000)
    try:
        uvloop.run(run(settings, opener))
    except UnavailableError as error:  # the store could not be opened
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
