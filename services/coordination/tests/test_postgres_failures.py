"""What only the PostgreSQL store can suffer: killed servers and connections, locks, restores."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import psycopg
import pytest
from psycopg import sql

from libs.errors import UnavailableError
from libs.postgres import embedded

from ..store.postgres import PostgresStore
from ..work import AckOrder, ClaimOrder, Held, NewItem, State, Submitted
from .conftest import ALL, ANNA, Queue, Wakes, data_folder, item, opened, until, worker

pytestmark = pytest.mark.postgres


@pytest.fixture
async def lone_store(own):
    async with opened(own, Wakes()) as store:
        yield store


@pytest.fixture
async def database(own):
    """A connection of somebody else to the store's database."""
    async with await psycopg.AsyncConnection.connect(own, autocommit=True) as connection:
        await connection.execute("set search_path = coordination")
        yield connection


async def ask(database, statement: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = await (await database.execute(statement)).fetchall()
    return rows


async def insist(call):
    """Repeat a call until the store is there to answer it, as every client does."""
    while True:
        try:
            return await call()
        except UnavailableError:
            await asyncio.sleep(0.02)


async def work(store, name: str, me: str, answered: set[str], acked: list[str], until_count: int) -> None:
    """Submit, claim and ack, repeating what was not answered, and note what was."""
    while len(acked) < until_count:
        new = [item() for _ in range(5)]
        verdicts = await insist(lambda new=new: store.submit(name, new))
        assert {v.status for v in verdicts} == {Submitted.ACCEPTED}
        answered.update(v.id for v in verdicts)
        order = ClaimOrder(name, me, 5, 1 << 20, 60_000, request_id=new[0].id, request_args=1)
        granted = await insist(lambda order=order: store.claim(order))
        acks = [AckOrder(grant.id, grant.token, b"done") for grant in granted.grants]
        if acks:
            done = await insist(lambda acks=acks: store.ack(me, acks))
            assert {v.status for v in done} == {Held.OK}
            acked.extend(ack.id for ack in acks)


async def test_killed_server_loses_nothing_that_was_answered(namespace):
    """Invariants 1, 3 and 6, through a crash in the middle of load; the store is not restarted."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(data_folder())
        dsn = await stack.enter_async_context(embedded(folder))
        store = await stack.enter_async_context(opened(dsn, Wakes()))
        queue = Queue(store, f"{namespace}/work")
        answered: set[str] = set()
        acked: list[str] = []
        async with asyncio.TaskGroup() as tasks:
            for n in range(8):
                me = worker(f"w-{n}", f"u{n}")
                tasks.create_task(work(store, queue.name, me, answered, acked, 4000))
            for goal in (500, 1500):
                await until(partial(reached, acked, goal), 60)
                os.kill(int((folder / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
                await stack.enter_async_context(embedded(folder))
        assert len(acked) == len(set(acked))
        left = answered - set(acked)
        found = {i.id: i.state for start in range(0, len(answered), 500)
                 for i in await store.items(sorted(answered)[start : start + 500], ALL)}  # fmt: skip
        assert found.keys() == answered
        assert {found[id] for id in acked} == {State.SUCCEEDED}
        assert all(found[id] in (State.READY, State.LEASED) for id in left)
        assert await no_drift(dsn)


async def reached(acked: list[str], goal: int) -> bool:
    return len(acked) >= goal


async def no_drift(dsn: str) -> bool:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("set search_path = coordination")
        return await ask(connection, "select * from audit_1()") == []


async def test_call_that_its_server_process_did_not_read_is_told_soon(own, namespace):
    """Invariants 6 and 13: it is ended while the call lies in its socket; the repeat succeeds."""
    async with PostgresStore.open(own, Wakes()) as store:
        queue = Queue(store, f"{namespace}/work")
        await queue.add(item(), item())
        await queue.ack(await queue.take())
        grant = await queue.take()
        link = store._settles._link
        assert link._connection is not None
        process = link._connection.info.backend_pid
        os.kill(process, signal.SIGSTOP)
        acking = asyncio.create_task(queue.ack(grant))

        async def sent() -> bool:
            return link._prepared._socket >= 0

        await until(sent)
        os.kill(process, signal.SIGTERM)
        os.kill(process, signal.SIGCONT)
        with pytest.raises(UnavailableError), anyio.fail_after(5):
            await acking
        assert (await queue.ack(grant)).status is Held.OK


async def test_idle_connections_that_were_ended_cost_no_call(lone_store, database, namespace):
    queue = Queue(lone_store, f"{namespace}/work")
    await queue.add()
    await queue.ack(await queue.take())
    await database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    await anyio.sleep(0.05)  # the news must reach our sockets
    await queue.add()
    await queue.ack(await queue.take())
    await queue.stats()


async def test_a_lock_held_for_long_costs_a_call_and_no_more(lone_store, own, namespace):
    """Invariant 13."""
    queue = Queue(lone_store, f"{namespace}/work")
    await queue.add()
    async with await psycopg.AsyncConnection.connect(own) as other:
        await other.execute("lock table coordination.item in access exclusive mode")
        with pytest.raises(UnavailableError), anyio.fail_after(9):
            await queue.claim()
        await other.rollback()
    assert await queue.take_in_time()


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_statement_outside_the_lanes_that_collides_is_run_again(lone_store, database, namespace, code):
    """Twice; what collides still is nobody's to wait for. A sequence counts, since no rollback undoes it."""
    queue = Queue(lone_store, f"{namespace}/work")
    await queue.add()
    await database.execute("create sequence tries")
    await database.execute(
        "create function collide() returns trigger language plpgsql as $$ begin"
        f" if nextval('coordination.tries') % 6 <> 3 then raise 'collided' using errcode = '{code}'; end if;"
        " return new; end $$"
    )
    await database.execute(
        "create trigger collide before update on queue for each row execute function collide()"
    )
    assert (await lone_store.pause(queue.name, paused=True)).paused
    assert await ask(database, "select last_value from tries") == [(3,)]
    with pytest.raises(UnavailableError, match="collided"):
        await lone_store.pause(queue.name, paused=False)
    assert await ask(database, "select last_value from tries") == [(6,)]
    assert await queue.claim() == []


async def test_invariant_01_tokens_start_above_all_others_after_a_restore(own, namespace, database):
    """Invariant 1: another cluster or timeline begins an epoch."""
    async with PostgresStore.open(own, Wakes()) as store:
        queue = Queue(store, f"{namespace}/work")
        await queue.add(item(), item())
        before = await queue.take()
    await database.execute("update meta set system_identifier = 1")
    await database.execute("alter sequence token restart with 8")  # as far as the backup knew
    async with PostgresStore.open(own, Wakes()) as store:
        queue = Queue(store, f"{namespace}/work")
        after = await queue.take()
    assert after.token >> 42 == (before.token >> 42) + 1
    assert await ask(database, "select epoch from meta") == [(2,)]


async def test_invariant_11_audit_finds_no_drift_and_would_tell(lone_store, database, namespace):
    """Invariant 11."""
    queue = Queue(lone_store, f"{namespace}/work")
    keyed = [item(ordering_key=f"o{n % 3}", dedupe_key=f"d{n}") for n in range(12)]
    await queue.add(*keyed, item(delay_ms=60_000))
    for grant in await queue.claim(2):
        await queue.ack(grant)
    await queue.fail(await queue.take(), retryable=False)
    await queue.release(await queue.take())
    assert await ask(database, "select * from audit_1()") == []
    await database.execute("insert into counter_delta (queue_id, ready) select min(id), 1 from queue")
    assert len(await ask(database, "select * from audit_1()")) == 1


async def test_results_of_a_day_without_partition_are_kept_and_dropped(lone_store, database, namespace):
    queue = Queue(lone_store, f"{namespace}/work")
    days = await ask(
        database,
        "select inhrelid::regclass::text from pg_inherits"
        " where inhparent = 'settled'::regclass and inhrelid::regclass::text <> 'settled_rest'",
    )
    async with database.transaction():  # all locks from the top, as the store's own upkeep takes them
        await database.execute("lock table settled, settled_rest in access exclusive mode")
        for (day,) in days:
            await database.execute(sql.SQL("drop table {}").format(sql.Identifier(day)))
    await queue.add()
    grant = await queue.take()
    await queue.ack(grant)
    assert await queue.state(grant.id) is State.SUCCEEDED
    await database.execute("update settled set drop_at = now()")

    async def gone() -> bool:
        return await ask(database, "select * from settled") == []

    await until(gone)


async def test_days_gone_by_are_dropped_whole(lone_store, database):
    await database.execute(
        "create table settled_20200101 partition of settled"
        " for values from ('2020-01-01Z') to ('2020-01-02Z')"
    )

    async def gone() -> bool:
        await database.execute("select partition_1()")
        return await ask(database, "select to_regclass('settled_20200101')") == [(None,)]

    await until(gone)


async def test_big_payloads_come_back_as_they_were(lone_store, namespace):
    queue = Queue(lone_store, f"{namespace}/work")
    sent = [NewItem(item().id, os.urandom(1 << 20), ANNA) for _ in range(3)]
    await queue.add(*sent)
    got = (await queue.ask(10, max_bytes=5 << 19)).grants
    assert [grant.payload for grant in got] == [new.payload for new in sent[:2]]


async def test_items_that_a_budget_left_among_the_granted_are_found_at_once(lone_store, namespace):
    """Two orders share a flush: what the first one's budget leaves is below what the second one takes."""
    queue = Queue(lone_store, f"{namespace}/work")
    ids = await queue.add(*(item(payload=b"x" * 1000) for _ in range(8)))
    asked = [queue.claim(4, max_bytes=1000), queue.claim(4, max_bytes=8000)]
    first = [grant.id for grants in await asyncio.gather(*asked) for grant in grants]
    rest = [grant.id for grant in await queue.claim(8, max_bytes=8000)]
    assert sorted(first + rest) == sorted(ids)


async def test_item_taken_by_its_key_hides_none_that_stand_before_it(lone_store, namespace):
    queue = Queue(lone_store, f"{namespace}/work")
    a, b, c = await queue.add(item(), item(), item(dedupe_key="k"))
    assert [grant.id for grant in await queue.claim(dedupe_key="k")] == [c]
    assert [grant.id for grant in await queue.claim(5)] == [a, b]
