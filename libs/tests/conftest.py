"""A mesh, and a server of all four kinds of call on each front."""

from __future__ import annotations

import pytest

from libs.testing.echo import CALLERS, Echo
from libs.testing.mesh import Mesh


@pytest.fixture
def mesh(tmp_path):
    return Mesh(tmp_path)


@pytest.fixture(params=["h2corn", "grpcio"])
def front(request):
    return request.param


@pytest.fixture
async def echo():
    return Echo()


@pytest.fixture
def serve(mesh, echo, front):
    """`serving` of the echo service on the front under test; takes the options of `serving`."""
    return lambda **options: mesh.serve(echo.register, front=front, **{"callers": CALLERS, **options})


@pytest.fixture
async def served(serve):
    async with serve() as server:
        yield server


@pytest.fixture
async def channel(mesh, served):
    async with mesh.dial_as("user", served) as channel:
        yield channel
