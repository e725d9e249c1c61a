"""The service as a whole, given its settings: `__main__` runs it alone, a plane beside others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentctl.admission.v1 import admission_service_pb2_grpc as pb_grpc
from libs import pki
from libs.cluster import Cluster
from libs.cluster.readiness import Readiness
from libs.enrol import enrolled
from libs.mesh import ADMISSION
from libs.rpc.boundary import Limits
from libs.rpc.edge import edge
from libs.rpc.server import serving

from .context import Policy
from .gathering import Gatherer
from .http import MOST_BYTES, Webhooks
from .reviewing import Reviewer
from .server import AdmissionServer
from .settings import Settings


@dataclass(frozen=True)
class Admitting:
    """An admission service that serves."""

    address: str
    """host:port of gRPC."""
    edge: str
    """host:port of the webhooks; "" without any."""
    check: Callable[[], Awaitable[None]]
    """UnavailableError while it cannot do its job."""


@asynccontextmanager
async def admitting(settings: Settings, cluster: Cluster, *, folder: str = "") -> AsyncIterator[Admitting]:
    """The whole service while the block runs: identity (in `folder` below tls_dir), servicer, webhooks.
    These have a reviewer of their own, since whoever reaches their port may ask it."""
    async with AsyncExitStack() as stack:
        identity = await stack.enter_async_context(enrolled(settings, ADMISSION.name, folder=folder))
        policy = Policy(settings.allowed_images, pki.own(identity).domain, settings.namespace)
        check = Readiness(cluster, identity).check
        servicer = AdmissionServer(Reviewer(Gatherer(cluster, policy)))
        drain = settings.drain.total_seconds()
        webhooks = ""
        if settings.edge_port is not None:
            app = Webhooks(Reviewer(Gatherer(cluster, policy)), check).app()
            up = await stack.enter_async_context(
                edge(
                    app,
                    identity,
                    host=settings.host,
                    port=settings.edge_port,
                    max_body=MOST_BYTES,
                    drain_seconds=drain,
                )
            )
            webhooks = up.address
        served = await stack.enter_async_context(
            serving(
                ADMISSION,
                identity,
                lambda server: pb_grpc.add_AdmissionServiceServicer_to_server(servicer, server),
                host=settings.host,
                port=settings.port,
                front=settings.front,
                limits=Limits(drain_seconds=drain),
                ready=check,
            )
        )
        yield Admitting(served.address, webhooks, check)
