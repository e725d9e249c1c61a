"""Schemas that only go forward, and that several replicas may bring forward at once."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
from psycopg import sql

from ..errors import UnavailableError

_MIGRATING = 0x61677463  # an advisory lock of ours
_MINIMUM = re.compile(r"^-- minimum: (\d+)$", re.MULTILINE)


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
