"""The service as a whole, given a cluster: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import anyio

from agentctl.modelgateway.v1 import modelgateway_service_pb2_grpc as pb_grpc
from libs.cluster import Cluster
from libs.enrol import enrolled
from libs.mesh import MODEL_GATEWAY
from libs.rpc.boundary import Limits as FrontLimits
from libs.rpc.callers import EdgeCallers
from libs.rpc.edge import edge
from libs.rpc.server import serving

from .calls import Gateway, Limits
from .http import MAX_BODY_BYTES, Api
from .objects import Objects
from .relay import Patience, Provider
from .server import ModelGateway
from .settings import Settings
from .store import Store
from .store.memory import MemoryStore

_log = logging.getLogger(__name__)

_SETTLING_SECONDS = 5.0


@dataclass(frozen=True)
class ModelServing:
    """A model gateway that serves."""

    address: str
    """host:port of ModelGatewayService."""
    edge: str
    """host:port of the OpenAI API."""
    check: Callable[[], Awaitable[None]]
    """UnavailableError while it cannot do its job. A store that is down is no reason: pools say what then."""


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[Store]:
    """The store that the settings name."""
    if settings.store == "memory":
        _log.warning("the store is memory: one replica only, and budgets begin anew at each start")
        yield MemoryStore(settings.retention.total_seconds())
        return
    from libs import postgres  # a driver that the memory store does without

    from .store.postgres import PostgresStore

    database: AbstractAsyncContextManager[str]
    if settings.store == "embedded":
        assert settings.data_dir is not None  # Settings has checked
        database = postgres.embedded(settings.data_dir)
    else:
        assert settings.database_file is not None
        database = nullcontext(settings.database_file.read_text().strip())
    async with database as conninfo, PostgresStore.open(conninfo, settings.retention) as store:
        yield store


@asynccontextmanager
async def model_serving(
    settings: Settings,
    cluster: Cluster,
    opener: Callable[[Settings], AbstractAsyncContextManager[Store]] = open_store,
    *,
    folder: str = "",
) -> AsyncIterator[ModelServing]:
    """The whole service while the block runs: identity (in `folder` below tls_dir), store, servicer, edge."""
    objects = Objects(cluster, settings.stand_in_url)
    patience = Patience(
        connect=settings.connect_timeout.total_seconds(),
        first_byte=settings.first_byte_timeout.total_seconds(),
        idle=settings.idle_timeout.total_seconds(),
        most_bytes=settings.max_answer,
    )
    limits = Limits(settings.call_timeout.total_seconds(), settings.assumed_output)

    async def check() -> None:
        objects.check()

    async with (
        enrolled(settings, MODEL_GATEWAY.name, folder=folder) as identity,
        opener(settings) as store,
        Provider.open(patience, settings.provider_ca_file) as provider,
        anyio.create_task_group() as tasks,
    ):
        gateway = Gateway(objects, store, provider, limits)
        callers = EdgeCallers(identity, settings.bearer_file)
        tasks.start_soon(objects.run)
        tasks.start_soon(gateway.run)
        servicer = ModelGateway(gateway, objects, store)
        async with (
            serving(
                MODEL_GATEWAY,
                identity,
                lambda server: pb_grpc.add_ModelGatewayServiceServicer_to_server(servicer, server),
                host=settings.host,
                port=settings.port,
                front=settings.front,
                limits=FrontLimits(drain_seconds=settings.drain.total_seconds()),
                ready=check,
            ) as served,
            edge(
                Api(gateway, objects, callers).app(),
                identity,
                host=settings.host,
                port=settings.edge_port,
                client_ca=callers.client_ca,
                max_body=MAX_BODY_BYTES + 1024,  # so that our own answer to a body over the cap is heard
                drain_seconds=settings.drain.total_seconds(),
            ) as opened,
        ):
            yield ModelServing(served.address, opened.address, check)
        await gateway.drain(_SETTLING_SECONDS)
        tasks.cancel_scope.cancel()
