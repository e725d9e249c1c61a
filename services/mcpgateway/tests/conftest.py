"""A gateway over real TLS, in a cluster with two namespaces, and MCP servers on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from libs.cluster.kinds import NAMESPACE as NAMESPACES
from libs.cluster.local import open_local
from libs.testing.loop import BACKEND
from libs.testing.mesh import NAMESPACE, Mesh

from .world import OTHER, World


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return BACKEND


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_local(tmp_path / "home") as cluster, AsyncExitStack() as stack:
        for name in (NAMESPACE, OTHER):
            await cluster.create({"apiVersion": "v1", "kind": NAMESPACES.name, "metadata": {"name": name}})
        yield World(cluster, Mesh(tmp_path), stack)


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> str:
    """Of callers: 2026-07-28 or 2025-11-25."""
    return str(request.param)
