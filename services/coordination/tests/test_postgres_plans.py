"""Work per flush does not depend on what the planner believes: an empty table, one that was filled and never
analysed, one in which everything is leased, and one whose old row versions nobody may remove.

What is asserted is the effect of a plan: how many rows and index entries PostgreSQL touched.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ..store.postgres import PostgresStore
from ..work import AckOrder, Lease
from .conftest import ANNA, Queue, Wakes, item

pytestmark = pytest.mark.postgres

_COUNTS = """
    select (select coalesce(sum(seq_scan), 0) from pg_stat_user_tables
            where relname ~ '^(item|settled|dedupe)'),
        (select coalesce(sum(idx_tup_read), 0) from pg_stat_user_indexes
            where relname ~ '^(item|settled|dedupe)')"""


@pytest.fixture
async def own(dsn):
    """A database of this test alone, never analysed."""
    name = f"t{uuid4().hex[:12]}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield make_conninfo(dsn, dbname=name)
        await connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def touched(store, database) -> tuple[int, int]:
    """Sequential scans and index entries read so far, by anybody."""
    for lane in (store._submits, store._claims, store._settles):
        connection = lane._link._connection
        if connection is not None:
            await connection.execute("select pg_stat_force_next_flush()")
            await connection.execute("select 1")
    scans, entries = (await (await database.execute(_COUNTS)).fetchone()) or (0, 0)
    return int(scans), int(entries)


async def fill(queue: Queue, count: int) -> None:
    for _ in range(count // 1000):
        await queue.add(*(item() for _ in range(1000)))


async def cycle(queue: Queue) -> None:
    """A hundred items through every hot verb."""
    await queue.add(*(item() for _ in range(100)))
    grants = await queue.claim(100)
    leases = [Lease(grant.id, grant.token) for grant in grants]
    await queue.store.renew(ANNA, leases, 60_000)
    await queue.store.release(ANNA, leases[50:], "")
    await queue.store.ack(ANNA, [AckOrder(lease.id, lease.token) for lease in leases[:50]])


@pytest.mark.parametrize("state", ["empty", "never analysed", "all leased", "held snapshot"])
async def test_invariant_11_a_flush_costs_what_it_changes(own, namespace, state):
    """Invariant 11: no full scan on any path."""
    async with (
        PostgresStore.open(own, Wakes()) as store,
        await psycopg.AsyncConnection.connect(own, autocommit=True) as database,
    ):
        queue = Queue(store, f"{namespace}/work")
        holder: Any = None
        if state != "empty":
            await fill(queue, 10_000)
        if state == "all leased":
            while await queue.claim(1000):
                pass
        if state == "held snapshot":
            holder = await psycopg.AsyncConnection.connect(own)
            await holder.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await holder.execute("select count(*) from coordination.item")
            while grants := await queue.claim(1000):
                await store.ack(ANNA, [AckOrder(grant.id, grant.token) for grant in grants])
        await cycle(queue)  # warm: plans made, marks set
        scans, entries = await touched(store, database)
        for _ in range(5):
            await cycle(queue)
        more_scans, more_entries = await touched(store, database)
        if holder is not None:
            await holder.close()
    assert more_scans == scans
    # 500 items, each looked up a few times by each of five verbs; a look over the table would be 50,000.
    assert more_entries - entries < 15_000
