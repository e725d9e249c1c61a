"""The fake coordination service, served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs.testing import ca
from loadgen.channel import Target

from .fake import FakeCoordination


@pytest.fixture
def serve(tmp_path):
    """`async with serve(fake) as target`: the fake on a loopback port, and an administrator's way to it."""
    authority = ca.authority()
    server_identity = ca.identity(authority, tmp_path, "/cp/coordination")
    client_identity = ca.identity(authority, tmp_path, "/user/load")

    @asynccontextmanager
    async def serving(fake: FakeCoordination) -> AsyncIterator[Target]:
        server = grpc.aio.server()
        pb_grpc.add_CoordinationServiceServicer_to_server(fake, server)
        checks = health.aio.HealthServicer()
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        pair = (server_identity.key.read_bytes(), server_identity.certificate.read_bytes())
        credentials = grpc.ssl_server_credentials([pair], server_identity.root.read_bytes(), True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            yield Target(f"127.0.0.1:{port}", client_identity)
        finally:
            await server.stop(0)

    return serving
