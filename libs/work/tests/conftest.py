"""A client of a fake coordination service, over mTLS on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs.testing.mesh import Mesh
from libs.work import Client, connect

from .fake import FakeCoordination


@pytest.fixture
def server() -> FakeCoordination:
    return FakeCoordination()  # type: ignore[abstract]  # what it lacks is UNIMPLEMENTED


@pytest.fixture
async def client(server: FakeCoordination, tmp_path: Path) -> AsyncIterator[Client]:
    mesh = Mesh(tmp_path)

    def register(to):
        pb_grpc.add_CoordinationServiceServicer_to_server(server, to)

    async with mesh.serve(register) as served:
        async with connect(served.address, mesh.identity("agent"), timeout=5.0) as client:
            yield client
        server.running.set()
        server.down = False
