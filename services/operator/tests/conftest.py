"""An operator on a real store, and what the rest of a cluster would do with what it makes.

With AGENTCTL_TEST_KUBECONFIG the tests that ask for `home` run on that API server too (marker `cluster`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.cluster.kinds import NAMESPACE
from libs.cluster.local import open_local

from .world import World
from .world import namespace as make_namespace

_KUBECONFIG = "AGENTCTL_TEST_KUBECONFIG"


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[World]:
    """A world in the local home, whose objects nobody but the test and the operator changes."""
    async with open_local(tmp_path / "home") as cluster:
        await cluster.create(make_namespace("demo"))
        yield World(cluster, "demo", tmp_path)


@pytest.fixture(params=["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
async def home(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A world in each home. On Kubernetes its own controllers are at work too."""
    if request.param == "local":
        async with open_local(tmp_path / "home") as cluster:
            await cluster.create(make_namespace("demo"))
            yield World(cluster, "demo", tmp_path)
        return
    if not (kubeconfig := os.environ.get(_KUBECONFIG)):
        pytest.skip(f"{_KUBECONFIG} names no cluster")
    from libs.cluster.kubernetes import connect

    namespace, system = (f"op-{uuid.uuid4().hex[:8]}-{part}" for part in ("demo", "system"))
    async with connect(Path(kubeconfig)) as real:
        for name in (namespace, system):
            await real.create(make_namespace(name))
        try:
            yield World(real, namespace, tmp_path, system, real=True)
        finally:
            for name in (namespace, system):
                await real.delete(NAMESPACE, "", name)
