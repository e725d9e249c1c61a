"""The embedded server, and schemas that several replicas migrate at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psycopg
import pytest

from ..postgres import SchemaError, StartError, embedded, migrate, sever

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    # Not under pytest's own folder: a server started by root runs as another user, who may not enter that.
    with TemporaryDirectory(prefix="agentctl-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "data"


@pytest.fixture
async def dsn(data: Path) -> AsyncIterator[str]:
    async with embedded(data) as dsn:
        yield dsn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0001_first.sql").write_text("-- minimum: 1\ncreate table note (text text not null);")
    (tmp_path / "0002_second.sql").write_text("-- minimum: 1\nalter table note add column more text;")
    return tmp_path


@pytest.fixture
def schema() -> str:
    return f"s{uuid4().hex[:8]}"


async def ask(dsn: str, statement: str) -> list[tuple[object, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []


async def test_embedded_server_is_durable_and_listens_on_no_port(dsn):
    found = {name: (await ask(dsn, f"show {name}"))[0][0] for name in ("fsync", "listen_addresses")}
    assert found == {"fsync": "on", "listen_addresses": ""}


async def test_embedded_server_keeps_its_data_and_can_be_entered_twice(data):
    async with embedded(data) as first, embedded(data) as second:
        assert first == second
        await ask(first, "create table if not exists kept as select 7 as n")
    async with embedded(data) as again:
        assert await ask(again, "select n from kept") == [(7,)]


async def test_embedded_server_comes_back_after_a_kill(data):
    async with embedded(data) as dsn:
        await ask(dsn, "create table if not exists survived as select 1 as n")
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        async with embedded(data) as again:
            assert await ask(again, "select n from survived") == [(1,)]


async def test_embedded_server_that_cannot_start_says_why(tmp_path):
    (tmp_path / "PG_VERSION").write_text("9\n")
    with pytest.raises(StartError, match=r"did not start in .*MiB free"):
        async with embedded(tmp_path):
            pass


async def test_severed_connection_fails_at_once(dsn):
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    waiting = asyncio.create_task(connection.execute("select pg_sleep(60)"))
    await asyncio.sleep(0.05)
    sever(connection)
    with pytest.raises(psycopg.OperationalError):
        async with asyncio.timeout(5):
            await waiting
    await connection.close()


async def test_replicas_that_start_at_once_migrate_once(dsn, folder, schema):
    assert set(await asyncio.gather(*(migrate(dsn, folder, schema) for _ in range(5)))) == {2}
    rows = await ask(dsn, f"select version, name from {schema}.schema_version order by version")
    assert rows == [(1, "0001_first.sql"), (2, "0002_second.sql")]


async def test_a_file_that_fails_changes_nothing(dsn, folder, schema):
    (folder / "0003_bad.sql").write_text("create table half (n int); select 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await migrate(dsn, folder, schema)
    assert await ask(
        dsn, f"select max(version), to_regclass('{schema}.half') from {schema}.schema_version"
    ) == [(2, None)]


@pytest.mark.parametrize(("minimum", "allowed"), [(2, True), (3, False)])
async def test_newer_schema_is_used_only_where_it_allows_that(dsn, folder, schema, minimum, allowed):
    newer = folder / "0003_newer.sql"
    newer.write_text(f"-- minimum: {minimum}\ncreate table later (n int);")
    await migrate(dsn, folder, schema)
    newer.unlink()
    if allowed:
        assert await migrate(dsn, folder, schema) == 3
    else:
        with pytest.raises(SchemaError, match="needs a program that knows version 3; this one knows 2"):
            await migrate(dsn, folder, schema)
