"""Agents that answer, in a local home."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.cluster.kinds import NAMESPACE as NAMESPACES
from libs.cluster.local import open_local
from libs.testing.mesh import NAMESPACE, Mesh

from .world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Empty at first, but for the namespace."""
    async with open_local(tmp_path / "home") as cluster, AsyncExitStack() as stack:
        await cluster.create({"apiVersion": "v1", "kind": NAMESPACES.name, "metadata": {"name": NAMESPACE}})
        yield World(cluster, Mesh(tmp_path), stack)
