"""A gateway over real TLS, a provider on loopback that does what a test says, and stores of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from libs.cluster.kinds import NAMESPACE as NAMESPACES
from libs.cluster.local import open_local
from libs.postgres import embedded
from libs.testing.loop import BACKEND
from libs.testing.mesh import NAMESPACE, Mesh

from ..store import Store
from ..store.memory import MemoryStore
from ..store.postgres import PostgresStore
from .world import StubProvider, World


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return BACKEND


@pytest.fixture(scope="session")
def data_folder() -> Iterator[Path]:
    """Where the server of the tests may keep its data."""
    # Not under pytest's own folder: a server started by root runs as another user, who may not enter that.
    with TemporaryDirectory(prefix="agentctl-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


@pytest.fixture(scope="session")
async def dsn(data_folder: Path) -> AsyncIterator[str]:
    """One PostgreSQL and one database for all tests: each has a namespace of its own in it."""
    async with embedded(data_folder) as dsn:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute("ALTER SYSTEM SET fsync = off")  # no test here cuts the power
            await connection.execute("SELECT pg_reload_conf()")
        yield dsn


@pytest.fixture
async def postgres_store(dsn: str) -> AsyncIterator[Store]:
    async with PostgresStore.open(dsn, timedelta(days=7)) as store:
        yield store


@pytest.fixture
def memory_store() -> Store:
    return MemoryStore()


@pytest.fixture(
    params=[
        pytest.param("memory_store", id="memory"),
        pytest.param("postgres_store", id="postgres", marks=pytest.mark.postgres),
    ]
)
def store(request: pytest.FixtureRequest) -> Store:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def namespace() -> str:
    return f"n{uuid4().hex[:12]}"


@pytest.fixture
async def provider() -> AsyncIterator[StubProvider]:
    async with StubProvider.serve() as provider:
        yield provider


@pytest.fixture
async def world(tmp_path: Path, provider: StubProvider) -> AsyncIterator[World]:
    """A namespace with pool `main` of the provider, and agent `writer` and fleet `crew` that name it."""
    async with open_local(tmp_path / "home") as cluster, AsyncExitStack() as stack:
        await cluster.create({"apiVersion": "v1", "kind": NAMESPACES.name, "metadata": {"name": NAMESPACE}})
        world = World(cluster, Mesh(tmp_path), stack, provider)
        await world.populate()
        yield world
