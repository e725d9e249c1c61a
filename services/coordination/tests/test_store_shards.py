"""What every store promises of queues with shards: part of the suite of `test_store`, one sentence a test."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from shutil import copy

import psycopg
import pytest

from libs.errors import InvalidError, PreconditionError, QueueInUseError, ShardRequiredError, StaleShardError
from libs.postgres import migrate

from ..store.memory import MemoryStore
from ..store.postgres import MIGRATIONS, PostgresStore, verbs
from ..store.postgres.watermarks import Watermarks
from ..work import (
    MAX_EPOCH,
    AckOrder,
    ClaimOrder,
    Grant,
    ItemFilter,
    Lease,
    Shard,
    Sharding,
    State,
    item_hash,
)
from .conftest import ALL, ANNA, BEN, Queue, Wakes, item, until


async def divide(queue: Queue, count: int) -> Sharding:
    return (await queue.store.configure(queue.name, {"shards": Sharding(count)})).policy.shards


async def shards_of(queue: Queue) -> list[Shard | None]:
    """All claims that fit the queue now."""
    now = (await queue.stats()).policy.shards
    return [Shard(n, now.count, now.epoch) for n in range(now.count)] or [None]


async def drained(queue: Queue) -> dict[str, int | None]:
    """Everything that is ready, acked: id → shard that it was claimed by."""
    found: dict[str, int | None] = {}
    for shard in await shards_of(queue):
        while grants := await queue.claim(1000, shard=shard):
            for grant in grants:
                assert grant.id not in found
                found[grant.id] = None if shard is None else shard.index
            verdicts = await queue.store.ack(ANNA, [AckOrder(g.id, g.token) for g in grants])
            assert {v.status for v in verdicts} == {1}
    return found


def place(id: str, count: int) -> int:
    return item_hash(None, None, id) % count


async def test_a_new_queue_has_no_shards_and_the_epoch_grows_with_each_change_of_the_count(queue):
    assert (await queue.stats()).policy.shards == Sharding(0, 0)
    seen = [await divide(queue, count) for count in (3, 3, 5, 0, 0, 3)]
    assert [(s.count, s.epoch) for s in seen] == [(3, 1), (3, 1), (5, 2), (0, 3), (0, 3), (3, 4)]
    stats = await queue.store.configure(queue.name, {"max_attempts": 2})
    assert stats.policy.shards == Sharding(3, 4)


async def test_a_change_that_names_an_epoch_is_made_at_that_epoch_only(queue):
    for count in (3, 5):
        await divide(queue, count)
    for epoch in (1, 3):
        with pytest.raises(StaleShardError, match="5 shards, epoch 2"):
            await queue.store.configure(queue.name, {"shards": Sharding(4, epoch), "max_attempts": 2})
    policy = (await queue.stats()).policy
    assert (policy.shards, policy.max_attempts) == (Sharding(5, 2), 5)
    for _ in range(2):  # the second as after a lost answer
        stats = await queue.store.configure(queue.name, {"shards": Sharding(4, 2)})
        assert stats.policy.shards == Sharding(4, 3)
    none = queue.sibling("none")
    with pytest.raises(StaleShardError, match="0 shards, epoch 0"):
        await none.store.configure(none.name, {"shards": Sharding(4, 2)})
    assert await none.store.queues([none.name], None) == []


async def test_a_queue_is_not_divided_anew_while_items_of_it_are_held(queue):
    other = queue.sibling("other")
    await other.add()
    await other.take()
    await divide(queue, 1)
    await queue.add(item(), item(), item())
    acked, released, expired = await queue.claim(3, shard=Shard(0, 1, 1))
    for held, end in ((3, queue.ack(acked)), (2, queue.release(released)), (1, queue.renew(expired, 100))):
        with pytest.raises(QueueInUseError, match=f"{held} items are held; stop who works on it first"):
            await divide(queue, 2)
        await end
    stats = await queue.store.configure(queue.name, {"shards": Sharding(1), "max_attempts": 2})
    assert stats.policy.shards == Sharding(1, 1)
    await queue.becomes(expired.id, State.READY)
    assert await divide(queue, 2) == Sharding(2, 2)
    assert (await drained(queue)).keys() == {released.id, expired.id}


async def test_a_claim_that_is_taken_back_no_longer_keeps_the_shards_from_changing(queue):
    await queue.add()
    grant = await queue.take()
    await queue.store.take_back(ANNA, [Lease(grant.id, grant.token)])
    assert await divide(queue, 2) == Sharding(2, 1)


async def test_a_store_without_memory_begins_above_the_epochs_of_earlier_runs():
    before = time.time_ns() // 1_000_000
    queue = Queue(MemoryStore(Wakes()), "team/work")
    epochs = [(await divide(queue, count)).epoch for count in (3, 5)]
    assert before < epochs[0] < epochs[1] < MAX_EPOCH


async def test_a_claim_gets_items_of_its_shard_only_and_all_of_them(queue):
    await divide(queue, 5)
    ids = await queue.add(*(item() for _ in range(60)))
    found = await drained(queue)
    assert found == {id: place(id, 5) for id in ids}
    assert len(set(found.values())) == 5


async def test_the_shard_key_decides_else_the_dedupe_key_else_the_id(queue):
    await divide(queue, 1000)
    news = [item(shard_key="k", dedupe_key="d"), item(dedupe_key="d2"), item()]
    ids = await queue.add(*news)
    keys = ("k", "d2", ids[2])
    expected = [item_hash(None, None, key) % 1000 for key in keys]
    assert [(await queue.item(id)).shard for id in ids] == expected
    (now,) = {(s.count, s.epoch) for s in await shards_of(queue) if s}
    for id, index in zip(ids, expected, strict=True):
        grant = await queue.take(shard=Shard(index, *now))
        assert grant.id == id


async def test_an_item_tells_its_shard_in_every_state_and_none_without_shards(queue):
    (id,) = await queue.add(item(priority=7))
    assert (await queue.item(id)).shard is None
    await divide(queue, 4)
    index = place(id, 4)
    (now,) = {(s.count, s.epoch) for s in await shards_of(queue) if s}
    assert (await queue.item(id)).shard == index
    (listed,) = (await queue.store.list_items(queue.name, ItemFilter(), ALL, size=5, token="")).items
    assert (listed.shard, listed.priority) == (index, 7)
    grant = await queue.take(shard=Shard(index, *now))
    assert ((await queue.item(id)).shard, (await queue.item(id)).priority) == (index, 7)
    await queue.ack(grant)
    settled = await queue.item(id)
    assert (settled.state, settled.shard, settled.priority) == (State.SUCCEEDED, index, 7)


async def test_what_is_ready_in_shards_is_counted_listed_and_aged(queue):
    await divide(queue, 3)
    ids = await queue.add(*(item(priority=n % 10) for n in range(30)))
    stats = await queue.stats()
    assert (stats.ready, stats.backlog) == (30, 30)
    assert stats.oldest_ready_age_ms is not None
    page = await queue.store.list_items(queue.name, ItemFilter(), ALL, size=100, token="")
    assert [found.id for found in page.items] == ids


@pytest.mark.parametrize(
    "shard", [Shard(0, 3, 2), Shard(0, 4, 1), Shard(0, 2, 1), Shard(2, 3, MAX_EPOCH)], ids=str
)
async def test_a_claim_of_another_count_or_epoch_is_refused_and_grants_nothing(queue, shard):
    await divide(queue, 3)
    await queue.add(*(item() for _ in range(20)))
    with pytest.raises(StaleShardError, match="3 shards, epoch 1"):
        await queue.claim(20, shard=shard)
    assert (await queue.stats()).ready == 20


async def test_a_queue_with_shards_grants_nothing_without_one_nor_by_dedupe_key(queue):
    await divide(queue, 3)
    await queue.add(item(dedupe_key="d"))
    for asked in ({}, {"dedupe_key": "d"}):
        with pytest.raises(ShardRequiredError, match="3 shards, epoch 1") as raised:
            await queue.claim(**asked)
        assert isinstance(raised.value, PreconditionError)
        assert raised.value.reason == "SHARD_REQUIRED"
    assert (await queue.stats()).ready == 1


async def test_a_claim_of_a_shard_of_a_queue_without_any_is_stale_and_of_none_such_waits(queue):
    await queue.add()
    for epochs in (1, 2):
        with pytest.raises(StaleShardError) as raised:
            await queue.claim(shard=Shard(0, 1, epochs))
        assert raised.value.reason == "STALE_SHARD"
        await divide(queue, 3)
        await divide(queue, 0)
    assert await queue.sibling("none").claim(shard=Shard(0, 1, 1)) == []


async def test_a_paused_queue_refuses_a_stale_shard_and_grants_nothing_to_the_right_one(queue):
    await divide(queue, 1)
    await queue.add()
    await queue.store.pause(queue.name, paused=True)
    with pytest.raises(StaleShardError):
        await queue.claim(shard=Shard(0, 2, 1))
    assert await queue.claim(shard=Shard(0, 1, 1)) == []
    await queue.store.pause(queue.name, paused=False)
    await queue.take(shard=Shard(0, 1, 1))


async def test_a_shard_is_worked_by_priority_then_by_age(queue):
    await divide(queue, 2)
    news = [item(priority=n % 3, shard_key="k" if n % 4 else "other") for n in range(40)]
    await queue.add(*news)
    index = item_hash("k", None, "") % 2
    keys = {key for key in ("k", "other") if item_hash(key, None, "") % 2 == index}
    expected = sorted(
        (n for n, new in enumerate(news) if new.shard_key in keys), key=lambda n: (-news[n].priority, n)
    )
    got: list[Grant] = []
    while grants := await queue.claim(7, shard=Shard(index, 2, 1)):
        got += grants
    assert [grant.id for grant in got] == [news[n].id for n in expected]


async def test_more_speaks_of_the_shard_and_bytes_are_cut_there_too(queue):
    await divide(queue, 2)
    mine = [item(shard_key="k", payload=b"x" * 1000) for _ in range(3)]
    other = next(
        key for key in map(str, range(99)) if (item_hash(key, None, "") ^ item_hash("k", None, "")) & 1
    )
    await queue.add(*mine, *(item(shard_key=other) for _ in range(5)))
    shard = Shard(item_hash("k", None, "") % 2, 2, 1)
    first = await queue.ask(3, max_bytes=2500, shard=shard)
    assert ([g.id for g in first.grants], first.more) == ([new.id for new in mine[:2]], True)
    second = await queue.ask(1, shard=shard)
    assert ([g.id for g in second.grants], second.more) == ([mine[2].id], False)


async def test_a_repeat_of_a_claim_gets_its_grants_until_the_queue_is_divided_anew(queue):
    await divide(queue, 1)
    await queue.add()
    asked = {"shard": Shard(0, 1, 1), "request_id": "r", "request_args": 1}
    grant = await queue.take(**asked)
    with pytest.raises(QueueInUseError):
        await divide(queue, 2)
    assert [(g.id, g.token) for g in await queue.claim(**asked)] == [(grant.id, grant.token)]
    with pytest.raises(InvalidError):
        await queue.claim(**{**asked, "request_args": 2})
    await queue.release(grant)
    await divide(queue, 2)
    with pytest.raises(StaleShardError):
        await queue.claim(**asked)


async def test_the_head_of_an_ordering_key_may_be_in_another_shard_than_the_next(queue):
    await divide(queue, 8)
    ids = await queue.add(*(item(ordering_key="o") for _ in range(12)))
    found: dict[str, int | None] = {}
    while more := await drained(queue):
        found |= more
    assert list(found.items()) == [(id, place(id, 8)) for id in ids]


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 5), (5, 2), (2, 0)])
async def test_a_change_of_shards_loses_and_doubles_nothing_whatever_state_it_is_in(queue, before, after):
    await divide(queue, before)
    await queue.store.configure(queue.name, {"min_lease_ms": 100})

    async def held(shape: str, count: int) -> list[Grant]:
        await queue.add(*(item(labels={"is": shape}) for _ in range(count)))
        return [g for shard in await shards_of(queue) for g in await queue.claim(count, shard=shard)]

    dead = await held("dead", 6)
    for grant in dead:
        await queue.fail(grant, retryable=False)
    backing = await held("failed", 6)
    for grant in backing:
        await queue.fail(grant, retry_after_ms=1500)
    released, acked, kept = await held("released", 6), await held("acked", 6), await held("kept", 6)
    blocked = await queue.add(*(item(ordering_key=f"o{n % 2}") for n in range(6)))
    delayed = await queue.add(*(item(delay_ms=1500) for _ in range(6)))
    ready = await queue.add(*(item(priority=n % 3) for n in range(20)))
    news = {*ready, *delayed, *blocked, *(g.id for g in (*backing, *released, *kept))}

    with pytest.raises(QueueInUseError, match="18 items"):
        await divide(queue, after)
    for grant in released:
        await queue.release(grant)
    for grant in acked:
        assert (await queue.ack(grant)).status == 1
    with pytest.raises(QueueInUseError, match="6 items"):
        await divide(queue, after)
    for grant in kept:
        await queue.renew(grant, 100)
    for grant in kept:
        await queue.becomes(grant.id, State.READY)
    await divide(queue, after)
    found: dict[str, int | None] = {}
    async with asyncio.timeout(8):
        while found.keys() != news:
            more = await drained(queue)
            assert not more.keys() & found.keys()
            found |= more
            await asyncio.sleep(0.02)
    assert found == {id: place(id, after) if after else None for id in news}

    again = await queue.store.redrive(queue.name, ItemFilter(), limit=100, per_second=0)
    assert set(again.ids) == {grant.id for grant in dead}
    assert await drained(queue) == {id: place(id, after) if after else None for id in again.ids}
    stats = await queue.stats()
    assert (stats.backlog, stats.dead) == (0, 0)


async def test_a_change_of_shards_keeps_the_order_of_those_that_were_ready(queue):
    news = [item(priority=n % 2) for n in range(200)]
    await queue.add(*news[:100])
    for count in (3, 2, 0, 4):
        await divide(queue, count)
        if count == 2:
            await queue.add(*news[100:])
    expected = [new.id for new in sorted(news, key=lambda new: -new.priority)]
    for shard in await shards_of(queue):
        assert shard is not None
        got = [grant.id for grant in await queue.claim(200, shard=shard)]
        assert got == [id for id in expected if place(id, 4) == shard.index]


async def test_a_backlog_of_thousands_comes_into_the_shards_in_order(queue):
    ids = [id for _ in range(3) for id in await queue.add(*(item() for _ in range(1000)))]
    await divide(queue, 2)
    for shard in await shards_of(queue):
        assert shard is not None
        mine = [id for id in ids if place(id, 2) == shard.index]
        first = await queue.ask(10, shard=shard)
        assert ([grant.id for grant in first.grants], first.more) == (mine[:10], True)
        for grant in first.grants:
            await queue.ack(grant)
    await divide(queue, 0)
    rest = await drained(queue)
    assert len(rest) == 2980
    assert (await queue.stats()).ready == 0


@pytest.mark.parametrize("before", [0, 2])
async def test_waiters_are_woken_when_the_shards_change(queue, wakes, before):
    await divide(queue, before)
    wakes.calls.clear()
    await divide(queue, before + 1)
    await wakes.heard(queue.name, ready=True)


async def test_submits_and_claims_while_the_shards_change_lose_and_double_nothing(queue):
    done: Counter[str] = Counter()
    ids: list[str] = []

    async def produce() -> None:
        for n in range(40):
            ids.extend(await queue.add(*(item(delay_ms=n % 2) for _ in range(5))))

    async def work(holder: str) -> None:
        for _ in range(60):
            for shard in await shards_of(queue):
                try:
                    grants = await queue.claim(10, shard=shard, holder=holder)
                except (StaleShardError, ShardRequiredError):
                    continue
                if grants:  # nobody holds an item by an epoch that is over
                    now = (await queue.stats()).policy.shards
                    now.check(queue.name, shard)
                verdicts = await queue.store.ack(holder, [AckOrder(g.id, g.token) for g in grants])
                done.update(g.id for g, v in zip(grants, verdicts, strict=True) if v.status == 1)

    async def resize() -> None:
        for count in (3, 5, 2, 0, 1, 4, 0, 3):
            while (await queue.stats()).policy.shards.count != count:
                with suppress(QueueInUseError):
                    await divide(queue, count)
                await asyncio.sleep(0.01)

    await asyncio.gather(*(produce() for _ in range(4)), work(ANNA), work(BEN), resize())
    async with asyncio.timeout(8):
        while done.keys() != set(ids):
            done.update((await drained(queue)).keys())
    assert set(done.values()) == {1}
    stats = await queue.stats()
    assert (stats.backlog, stats.settled_total) == (0, len(ids))


@pytest.mark.postgres
async def test_replicas_that_know_older_shards_submit_so_that_nothing_is_lost(twins):
    here, there = twins
    ids = await here.add(*(item() for _ in range(10)))
    for count in (3, 5, 2, 0, 4):
        await there.stats()
        await divide(here, count)
        there.store._store._policies.update(here.store._store._policies)  # as old as can be
        await divide(here, count + 1)
        ids += await there.add(*(item() for _ in range(10)))
    assert await drained(there) == {id: place(id, 5) for id in ids}


@pytest.mark.postgres
async def test_a_replica_that_knows_older_shards_changes_them_by_the_present_epoch(twins):
    here, there = twins
    await here.store.policy(here.name)
    await divide(there, 3)
    stats = await here.store.configure(here.name, {"shards": Sharding(5, 1)})
    assert stats.policy.shards == Sharding(5, 2)


@pytest.mark.postgres
async def test_a_claim_while_a_large_backlog_is_moved_answers_at_once_and_says_ask_again(
    two_stores, namespace
):
    queue = Queue(two_stores[0], f"{namespace}/work")
    await queue.add(*(item() for _ in range(1000)))
    await divide(queue, 2)
    asked = [await queue.ask_once(shard=Shard(0, 2, 1)) for _ in range(3)]
    assert [(len(granted.grants), granted.more) for granted in asked] == [(0, True), (0, True), (1, True)]


@pytest.mark.postgres
async def test_what_a_budget_left_in_a_second_shard_wakes_who_waits():
    woken: list[tuple[str, int, int | None]] = []
    verb = verbs.claim(lambda *call: woken.append(call), Watermarks(), lambda *_: None)
    entries = [
        verbs.claiming(1, None, ClaimOrder("team/work", ANNA, 1, 1, None, shard=Shard(n, 2, 1)))
        for n in range(2)
    ]
    rest = (5, 1, 1000, 0, 1, b"", b"{}", None, None, None, 0, "team/work")
    granted = [(slot, item().id, slot, *rest) for slot in (1, 2)]
    verb.decode(entries, [*granted, (2, None, None, -3, None)])
    assert woken == [("team/work", 1, None)]


@pytest.mark.postgres
async def test_a_migration_refuses_to_change_functions_that_are_not_as_it_knows_them(own, tmp_path):
    for step in MIGRATIONS.glob("000*.sql"):
        copy(step, tmp_path)
    await migrate(own, tmp_path, "coordination")
    async with await psycopg.AsyncConnection.connect(own, autocommit=True) as database:
        await database.execute("set search_path = coordination")
        ((text,),) = await (
            await database.execute("select pg_get_functiondef('claim_2'::regproc)")
        ).fetchall()
        assert "and not q.paused" in text
        await database.execute(text.replace("and not q.paused", "and q.paused is false"))
    with pytest.raises(psycopg.errors.RaiseException, match="looks in vain for"):
        await migrate(own, MIGRATIONS, "coordination")


@pytest.mark.postgres
async def test_items_that_another_replicas_claim_puts_in_their_shard_wake_those_who_wait_there(twins, wakes):
    here, there = twins

    async def heard(times: int) -> bool:
        return bool(wakes.calls.count((here.name, 50)) == times)

    await here.add(*(item() for _ in range(50)))
    await divide(here, 2)
    wakes.calls.clear()
    await there.ask(shard=Shard(0, 2, 1))
    await until(lambda: heard(2))  # by the claim's own replica, and by the other


@pytest.mark.postgres
async def test_sql_hashes_and_divides_as_the_service_does(dsn, two_stores):
    keys = ["", "a", "foobar", "ä" * 128, *(item().id for _ in range(50))]
    async with await psycopg.AsyncConnection.connect(dsn) as database:
        await database.execute("set search_path = coordination")
        for key in keys:
            for count in (1, 2, 3, 7, 1000, 1024):
                asked = "select shard_1(fnv_1(%s), %s)"
                ((index,),) = await (await database.execute(asked, (key.encode(), count))).fetchall()
                assert index == item_hash(key or None, None, "") % count


@pytest.mark.postgres
async def test_programs_that_know_no_shards_neither_drop_them_nor_claim_past_them(own, namespace):
    async with (
        PostgresStore.open(own, Wakes()) as store,
        await psycopg.AsyncConnection.connect(own, autocommit=True) as database,
    ):
        queue = Queue(store, f"{namespace}/work")
        await queue.add(*(item() for _ in range(4)))
        await divide(queue, 2)
        await database.execute("set search_path = coordination")
        await database.execute("update queue set policy = policy - 'shards' || '{\"max_attempts\": 9}'")
        assert (await queue.stats()).policy.shards == Sharding(2, 1)
        for verb in ("claim_1", "claim_2"):
            asked = (
                f"select * from {verb}(array[(select id from queue)], '{{1}}', '{{1}}', array_fill(0::int8,"
                " array[10]), '{1}', '{h}', '{null}', '{9999}', null, null, null, null, null)"
            )
            assert await (await database.execute(asked)).fetchall() == []
        assert len(await drained(queue)) == 4


@pytest.mark.postgres
async def test_a_claim_of_a_shard_costs_what_it_takes_whatever_stands_in_the_others(own, namespace):
    async with (
        PostgresStore.open(own, Wakes()) as store,
        await psycopg.AsyncConnection.connect(own, autocommit=True) as database,
    ):
        queue = Queue(store, f"{namespace}/work")
        now = await divide(queue, 2)
        keys = {item_hash(key, None, "") % 2: key for key in map(str, range(20))}
        for _ in range(10):
            await queue.add(*(item(shard_key=keys[0]) for _ in range(1000)))
        await queue.add(*(item(shard_key=keys[1]) for _ in range(60)))
        mine = Shard(1, now.count, now.epoch)
        await queue.claim(shard=mine)

        async def read() -> tuple[int, int]:
            await store._claims._link.run("select pg_stat_force_next_flush()::text", ())
            await store._claims._link.run("select 1", ())
            counted = (
                "select (select sum(seq_scan)::int from pg_stat_user_tables where relname = 'item'),"
                " (select sum(idx_tup_read)::int from pg_stat_user_indexes where relname = 'item')"
            )
            ((scans, entries),) = await (await database.execute(counted)).fetchall()
            return scans, entries

        rounds = []  # the sweep and the autovacuum read too, now and then
        for _ in range(5):
            scans, before = await read()
            for _ in range(10):
                await queue.take(shard=mine)
            more_scans, after = await read()
            rounds.append((more_scans - scans, after - before))
    assert min(rounds)[0] == 0
    assert min(entries for _, entries in rounds) < 300
