"""The service as a whole, given a cluster: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentctl.management.v1 import management_service_pb2_grpc as pb_grpc
from libs.cluster import Cluster
from libs.cluster.readiness import Readiness
from libs.enrol import enrolled
from libs.mesh import APISERVER
from libs.rpc.boundary import Limits
from libs.rpc.server import serving

from .agents import Keeping, by_mesh
from .management import Management
from .server import ManagementServer
from .settings import Settings


@dataclass(frozen=True)
class Managing:
    """An apiserver that serves."""

    address: str
    """host:port of ManagementService."""
    edge: str
    """host:port of the aggregated API; empty if it is not served."""
    check: Callable[[], Awaitable[None]]
    """UnavailableError while it cannot do its job."""


@asynccontextmanager
async def managing(settings: Settings, cluster: Cluster, *, folder: str = "") -> AsyncIterator[Managing]:
    """The whole service while the block runs: identity (in `folder` below tls_dir), servicer, HTTPS edge."""
    async with AsyncExitStack() as stack:
        identity = await stack.enter_async_context(enrolled(settings, APISERVER.name, folder=folder))
        agents = Keeping(by_mesh(identity))
        stack.push_async_callback(agents.close)
        management = Management(cluster, agents.dial)
        ready = Readiness(cluster, identity).check
        servicer = ManagementServer(management)
        served = await stack.enter_async_context(
            serving(
                APISERVER,
                identity,
                lambda server: pb_grpc.add_ManagementServiceServicer_to_server(servicer, server),
                host=settings.host,
                port=settings.port,
                front=settings.front,
                limits=Limits(drain_seconds=settings.drain.total_seconds()),
                ready=ready,
            )
        )
        if settings.edge_port is None:
            yield Managing(served.address, "", ready)
            return
        from .http import serve_edge  # what it stands on is not small, and only clusters need it

        async with serve_edge(management, cluster, identity, settings) as (edge, callers):

            async def check() -> None:
                await ready()
                callers.check()

            yield Managing(served.address, edge.address, check)
