"""The embedded server, and schemas that several replicas migrate at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import anyio
import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ..postgres import SchemaError, StartError, embedded, migrate, sever

pytestmark = pytest.mark.postgres


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder / "data"


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that others may enter, unlike pytest's: a server that root starts runs as another user."""
    with TemporaryDirectory(prefix="agentctl-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def postmaster(data: Path) -> int:
    return int((data / "postmaster.pid").read_text().split()[0])


def has(path: Path) -> bool:
    return path.exists()


def modes(path: Path) -> dict[Path, int]:
    return {step: step.stat().st_mode for step in path.resolve().parents}


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


async def in_time(dsn: str, statement: str) -> list[tuple[object, ...]]:
    """The answer, as soon as there is one."""
    with anyio.fail_after(20):
        while True:
            try:
                return await ask(dsn, statement)
            except psycopg.OperationalError:
                await anyio.sleep(0.05)


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
        os.kill(postmaster(data), signal.SIGKILL)
        async with embedded(data) as again:
            assert await ask(again, "select n from survived") == [(1,)]


@pytest.mark.parametrize("name", ["data", "a folder, with spaces and a $HOME", "long" * 40])
async def test_embedded_server_that_is_killed_is_started_again_where_it_was(place, name):
    async with embedded(place / name) as dsn:
        await ask(dsn, "create table kept as select 7 as n")
        before = postmaster(place / name)
        os.kill(before, signal.SIGKILL)
        assert await in_time(dsn, "select n from kept") == [(7,)]
        assert postmaster(place / name) != before


async def test_embedded_server_that_is_stopped_is_not_started_again(place):
    async with embedded(place / "data") as dsn:
        os.kill(postmaster(place / "data"), signal.SIGINT)
        with anyio.fail_after(10):
            while (place / "data" / "postmaster.pid").exists():  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await anyio.sleep(1.5)  # it would have been by now
        with pytest.raises(psycopg.OperationalError):
            await ask(dsn, "select 1")


@pytest.mark.parametrize("name", ["data", "long" * 40])
async def test_embedded_server_is_reached_by_its_user_only_and_leaves_no_socket(place, name):
    before = modes(place / name)
    async with embedded(place / name) as dsn:
        sockets = Path(str(conninfo_to_dict(dsn)["host"]))
        found = [path.stat() for path in (place / name, sockets, sockets / ".s.PGSQL.5432")]
        assert {(each.st_mode & 0o777, each.st_uid) for each in found} == {(0o700, found[0].st_uid)}
        assert modes(place / name) == before
    assert not has(sockets / ".s.PGSQL.5432")
    assert has(sockets) == (sockets == place / name)


async def test_embedded_server_stops_when_the_last_process_that_uses_it_has_left(data):
    script = (
        "import asyncio, sys; from pathlib import Path; from libs.postgres import embedded\n"
        "async def use():\n"
        "    async with embedded(Path(sys.argv[1])):\n"
        "        print('in', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(use())"
    )
    async with embedded(data) as dsn:
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(data), stdout=asyncio.subprocess.PIPE
        )
        assert other.stdout is not None
        assert await other.stdout.readline() == b"in\n"
    try:
        server = postmaster(data)
        assert await ask(dsn, "select 1") == [(1,)]
    finally:
        other.kill()
        await other.communicate()
    async with embedded(data):
        assert postmaster(data) == server  # what the killed one has left is used
    assert not (data / "postmaster.pid").exists()


async def test_embedded_server_outlives_no_folder_that_is_removed(place):
    async with embedded(place / "data"):
        server = psutil.Process(postmaster(place / "data"))
        shutil.rmtree(place / "data")
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


async def test_embedded_server_that_cannot_start_says_why(place):
    for name, file in {"old": "PG_VERSION", "others": "letters"}.items():
        (place / name).mkdir()
        (place / name / file).write_text("9\n")
    with pytest.raises(StartError, match=r"did not start in .*MiB free.*ended with exit code"):
        async with embedded(place / "old"):
            pass
    with pytest.raises(StartError, match="neither empty nor a database"):
        async with embedded(place / "others"):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server is another user's")
async def test_root_is_told_which_folder_is_in_the_way_and_it_is_not_opened(tmp_path):
    before = modes(tmp_path / "data")
    with pytest.raises(StartError, match=r"may not enter .*: run `chmod o\+x .*` or choose another folder"):
        async with embedded(tmp_path / "data"):
            pass
    assert modes(tmp_path / "data") == before


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
