"""An agent in memory, served over real mTLS on loopback, and callers of every role."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from libs.contract.serving import agent_serving
from libs.mesh import AGENT
from libs.rpc.client import dial
from libs.testing.mesh import Mesh

from .memory_agent import MemoryAgent

ROLE = "agent/worker/uid-1"


@pytest.fixture
def mesh(tmp_path):
    return Mesh(tmp_path)


@pytest.fixture
def agent():
    return MemoryAgent()


@pytest.fixture(params=["h2corn", "grpcio"])
def front(request):
    return request.param


@pytest.fixture
def serve(mesh, agent, front):
    """`agent_serving` on free ports; takes its options."""
    return lambda **options: agent_serving(
        agent, mesh.identity(ROLE), **{"port": 0, "front": front, "check_seconds": 0.02, **options}
    )


@pytest.fixture
async def served(serve):
    async with serve() as served:
        yield served


@pytest.fixture
def call_as(mesh):
    """The agent's stub, called in a role."""

    @asynccontextmanager
    async def call(served, role="cp/apiserver", namespace="demo", **options):
        caller = mesh.identity(role, namespace)
        async with dial(AGENT, served.address, caller, server=mesh.principal(ROLE), **options) as channel:
            yield pb_grpc.AgentServiceStub(channel)

    return call


@pytest.fixture
async def stub(served, call_as):
    async with call_as(served) as stub:
        yield stub
