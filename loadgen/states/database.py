"""The PostgreSQL under a server of ours, for what only its administrator can do or see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from libs.postgres.postmaster import Postmaster

from ..child import ServerError
from ..server import Server

SCHEMA = "coordination"

Connection = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def administrator(server: Server) -> Iterator[Connection]:
    """A connection to its database as the superuser. ServerError if there is none."""
    found = Postmaster.of(server.data.resolve())
    if found is None:
        raise ServerError(f"no PostgreSQL runs in {server.data}")
    conninfo = make_conninfo(host=str(found.sockets), port=found.port, user="postgres", dbname="postgres")
    with psycopg.connect(conninfo, autocommit=True, connect_timeout=10) as connection:
        yield connection


def analysed_tables(connection: Connection) -> int:
    """How many of coordination's tables have ever been analysed or vacuumed, by whomever."""
    ((count,),) = connection.execute(
        "select count(*) from pg_stat_all_tables where schemaname = %s and"
        " coalesce(last_analyze, last_autoanalyze, last_vacuum, last_autovacuum) is not null",
        [SCHEMA],
    )
    return int(count)


def holds_snapshot(connection: Connection, holder: Connection) -> bool:
    """Whether the holder's transaction is idle and keeps old row versions from being removed."""
    ((holds,),) = connection.execute(
        "select state = 'idle in transaction' and backend_xmin is not null from pg_stat_activity"
        " where pid = %s",
        [holder.info.backend_pid],
    )
    return bool(holds)


def dead_rows(connection: Connection) -> int:
    """Row versions of items that are of no more use and still there."""
    ((count,),) = connection.execute(
        "select coalesce(sum(n_dead_tup), 0) from pg_stat_all_tables"
        " where schemaname = %s and relname = 'item'",
        [SCHEMA],
    )
    return int(count)


def item_bytes(connection: Connection) -> int:
    """The table of items with its indexes."""
    ((size,),) = connection.execute("select pg_total_relation_size('coordination.item')")
    return int(size)
