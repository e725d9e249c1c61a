"""The service as a whole, given a cluster: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from agentctl.mcpgateway.v1 import mcpgateway_service_pb2_grpc as pb_grpc
from libs.cluster import Cluster
from libs.enrol import enrolled
from libs.mesh import MCP_GATEWAY
from libs.rpc.boundary import Limits
from libs.rpc.callers import EdgeCallers
from libs.rpc.edge import edge
from libs.rpc.server import serving

from .guard import Guard, Policy, Resolve, system_resolve
from .http import Api
from .objects import Objects
from .server import McpGateway
from .sessions import MOST_BYTES, Sessions
from .settings import Settings
from .upstreams import Upstreams
from .web import Patience, Web


@dataclass(frozen=True)
class McpServing:
    """An MCP gateway that serves."""

    address: str
    """host:port of McpGatewayService."""
    edge: str
    """host:port of MCP over HTTPS."""
    check: Callable[[], Awaitable[None]]
    """UnavailableError while it cannot do its job. A server that is down is no reason."""


@asynccontextmanager
async def mcp_serving(
    settings: Settings, cluster: Cluster, *, folder: str = "", resolve: Resolve = system_resolve
) -> AsyncIterator[McpServing]:
    """The whole service while the block runs: identity (in `folder` below tls_dir), servicer, edge."""
    objects = Objects(cluster)
    guard = Guard(Policy(settings.allow_private, settings.allow_loopback), resolve)
    patience = Patience(
        connect=settings.connect_timeout.total_seconds(),
        idle=settings.idle_timeout.total_seconds(),
        call=settings.call_timeout.total_seconds(),
        most_bytes=settings.max_result,
    )

    async def check() -> None:
        objects.check()

    async with (
        enrolled(settings, MCP_GATEWAY.name, folder=folder) as identity,
        Web.open(guard, patience, settings.server_ca_file) as web,
        anyio.create_task_group() as tasks,
    ):
        upstreams = Upstreams(objects, web, settings.at_once)
        sessions = Sessions(upstreams)
        callers = EdgeCallers(identity, settings.bearer_file)
        tasks.start_soon(objects.run)
        servicer = McpGateway(objects, upstreams)
        drain = settings.drain.total_seconds()
        try:
            async with (
                sessions.run(),
                serving(
                    MCP_GATEWAY,
                    identity,
                    lambda server: pb_grpc.add_McpGatewayServiceServicer_to_server(servicer, server),
                    host=settings.host,
                    port=settings.port,
                    front=settings.front,
                    limits=Limits(drain_seconds=drain),
                    ready=check,
                ) as served,
                edge(
                    Api(objects, upstreams, sessions, callers).app(),
                    identity,
                    host=settings.host,
                    port=settings.edge_port,
                    client_ca=callers.client_ca,
                    max_body=MOST_BYTES + 1024,  # so that our own answer to a body over the cap is heard
                    drain_seconds=drain,
                ) as opened,
            ):
                try:
                    yield McpServing(served.address, opened.address, check)
                finally:
                    sessions.drain()
        finally:
            with anyio.CancelScope(shield=True):
                await upstreams.close()
        tasks.cancel_scope.cancel()
