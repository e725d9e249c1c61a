"""The service as a whole, given a cluster: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentctl.management.v1 import management_service_pb2_grpc as pb_grpc
from libs.cluster import Cluster
from libs.enrol import enrolled
from libs.errors import UnavailableError
from libs.identity import Identity
from libs.mesh import APISERVER
from libs.rpc.boundary import Limits
from libs.rpc.server import serving

from .agents import Keeping, by_mesh
from .management import Management
from .server import ManagementServer
from .settings import Settings

_FRESH_SECONDS = 5.0  # for which the cluster's answer to a probe is good


@dataclass(frozen=True)
class Managing:
    """An apiserver that serves."""

    address: str
    """host:port of ManagementService."""
    edge: str
    """host:port of the aggregated API; empty if it is not served."""
    check: Callable[[], Awaitable[None]]
    """UnavailableError while it cannot do its job."""


class Readiness:
    """Whether we could do a verb now: the cluster answers, and we have a certificate to reach agents with."""

    def __init__(
        self, cluster: Cluster, identity: Identity, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._clock = clock
        self._answered_at = float("-inf")

    async def check(self) -> None:
        """UnavailableError. Probes are many, so the cluster is asked now and then only."""
        if not self._identity.certificate.exists():
            raise UnavailableError("there is no certificate yet")
        if self._clock() - self._answered_at > _FRESH_SECONDS:
            await self._cluster.version()
            self._answered_at = self._clock()


@asynccontextmanager
async def managing(settings: Settings, cluster: Cluster, *, folder: str = "") -> AsyncIterator[Managing]:
    """The whole service while the block runs: identity (in `folder` below tls_dir), servicer, HTTPS edge."""
    async with AsyncExitStack() as stack:
        identity = await stack.enter_async_context(enrolled(settings, APISERVER.name, folder=folder))
        agents = Keeping(by_mesh(identity))
        stack.push_async_callback(agents.close)
        management = Management(cluster, agents.dial)
        check = Readiness(cluster, identity).check
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
                ready=check,
            )
        )
        edge = ""
        if settings.edge_port is not None:
            from .http import serve_edge  # what it stands on is not small, and only clusters need it

            serves = await stack.enter_async_context(serve_edge(management, cluster, identity, settings))
            edge = serves.address
        yield Managing(served.address, edge, check)
