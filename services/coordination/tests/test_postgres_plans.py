"""Work per flush does not depend on what the planner believes: an empty table, one that was filled and never
analysed, one that was analysed before it was filled, one in which everything is leased, or dead, and one
whose old row versions nobody may remove.

What is asserted is the effect of a plan: how many rows and index entries PostgreSQL touched.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ..store.postgres import PostgresStore
from ..work import AckOrder, FailOrder, ItemFilter, Lease, NewItem
from .conftest import ALL, ANNA, Queue, Wakes, item

pytestmark = pytest.mark.postgres

_SCANS = "select sum(seq_scan) from pg_stat_user_tables where relname ~ '^(item|settled|dedupe)'"
_READ = "select indexrelname, idx_tup_read from pg_stat_user_indexes where relname ~ '^(item|settled|dedupe)'"


async def touched(store, database) -> tuple[int, Counter[str]]:
    """Sequential scans so far, and entries read of each index, by anybody."""
    for lane in (store._submits, store._claims, store._settles):
        connection = lane._link._connection
        if connection is not None:
            await connection.execute("select pg_stat_force_next_flush()")
            await connection.execute("select 1")
    ((scans,),) = await (await database.execute(_SCANS)).fetchall()
    return int(scans), Counter(dict(await (await database.execute(_READ)).fetchall()))


def keyed(count: int) -> list[NewItem]:
    """Items with a dedupe key and an ordering key of their own."""
    keys = [str(uuid4()) for _ in range(count)]
    return [item(dedupe_key=key, ordering_key=key) for key in keys]


async def fill(queue: Queue, count: int) -> None:
    for _ in range(count // 1000):
        await queue.add(*keyed(1000))


async def cycle(queue: Queue) -> None:
    """A hundred items through every verb that takes lists."""
    store, new = queue.store, [*keyed(50), *(item() for _ in range(50))]
    await queue.add(*new)
    await queue.add(*new)
    leases = [Lease(g.id, g.token) for g in await queue.claim(100, request_id=str(uuid4()))]
    await store.renew(ANNA, leases, 60_000)
    await store.ack(ANNA, [AckOrder(lease.id, lease.token) for lease in leases[:50]])
    await store.ack(ANNA, [AckOrder(lease.id, lease.token) for lease in leases[:50]])
    await store.release(ANNA, leases[50:60], "")
    await store.take_back(ANNA, leases[60:70])
    fatal = [FailOrder(lease.id, lease.token, "boom", retryable=False) for lease in leases[70:]]
    await store.fail(ANNA, fatal)
    await store.redrive(queue.name, ItemFilter(), limit=10, per_second=0)
    await store.purge(queue.name, ItemFilter(), limit=10)
    await store.cancel([lease.id for lease in leases[50:]], "", ALL)


@pytest.mark.parametrize(
    "state", ["empty", "never analysed", "analysed before", "all leased", "all dead", "held snapshot"]
)
async def test_invariant_11_a_flush_costs_what_it_changes(own, namespace, state):
    """Invariant 11: no full scan on any path."""
    async with (
        PostgresStore.open(own, Wakes()) as store,
        await psycopg.AsyncConnection.connect(own, autocommit=True) as database,
    ):
        queue = Queue(store, f"{namespace}/work")
        holder: Any = None
        if state == "analysed before":
            await fill(queue, 1000)
            while grants := await queue.claim(1000):
                await store.ack(ANNA, [AckOrder(grant.id, grant.token) for grant in grants])
            await database.execute("alter table coordination.item set (autovacuum_enabled = off)")
            await database.execute("analyze coordination.item, coordination.settled, coordination.dedupe")
            await cycle(queue)
        if state != "empty":
            await fill(queue, 10_000)
        if state == "all leased":
            while await queue.claim(1000):
                pass
        if state == "all dead":
            while grants := await queue.claim(1000):
                await store.fail(ANNA, [FailOrder(g.id, g.token, "", retryable=False) for g in grants])
        if state == "held snapshot":
            holder = await psycopg.AsyncConnection.connect(own)
            await holder.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await holder.execute("select count(*) from coordination.item")
            while grants := await queue.claim(1000):
                await store.ack(ANNA, [AckOrder(grant.id, grant.token) for grant in grants])
        await cycle(queue)  # warm: plans made, marks set
        store._lows._clock = lambda: 0.0  # the look at everything, due once a second, is not to be counted
        scans, before = await touched(store, database)
        for _ in range(5):
            await cycle(queue)
        more_scans, after = await touched(store, database)
        if holder is not None:
            await holder.close()
    assert more_scans == scans
    # 500 items, each looked up a few times by each of ten verbs; looks over the table would read 50,000 more.
    read = after - before
    assert read.total() < 45_000, read
