"""What every store promises."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from libs.errors import InvalidError, UnavailableError

from ..budgets import Budget, Hold, Key, Record, Refusal, Request, Scope, Spend
from ..store import Store
from ..store.postgres import PostgresStore

RECORD = Record(
    namespace="",
    pool="main",
    agent="writer",
    fleet="",
    caller="spiffe://mesh.test/ns/demo/agent/writer/pod/writer-0/uid",
    model="m",
    operation=1,
    endpoint="first",
    status=200,
    error="",
    started_at=time.time(),
    seconds=0.5,
    first_byte=0.25,
    input_tokens=3,
    output_tokens=4,
    cached_tokens=1,
    estimated=False,
    attempts=1,
)


def budget(namespace: str, limit: int = 100, *, scope: Scope = Scope.POOL, name: str = "", window: int = 0):
    return Budget(Key(namespace, "main", scope, name, window), limit)


def asked(*budgets: Budget, tokens: int = 10, seconds: float = 60.0) -> Request:
    return Request(str(uuid4()), budgets, tokens, seconds)


def spent(hold: Hold | None, tokens: int, record: Record | None = None, *budgets: Budget) -> Spend:
    return Spend(str(uuid4()), record, tokens, hold, budgets)


async def held(store: Store, request: Request) -> Hold:
    hold = await store.reserve(request)
    assert isinstance(hold, Hold)
    return hold


async def levels(store: Store, namespace: str) -> list[tuple[int, int]]:
    return [(each.used, each.reserved) for each in await store.usage(namespace)]


async def test_what_is_reserved_counts_until_it_is_settled_by_what_was_used(store, namespace):
    hold = await held(store, asked(budget(namespace), tokens=60))
    assert await levels(store, namespace) == [(0, 60)]
    refused = await store.reserve(asked(budget(namespace), tokens=41))
    assert isinstance(refused, Refusal)
    assert (refused.used, refused.reserved, refused.budget.limit) == (0, 60, 100)
    await store.settle(spent(hold, 25))
    assert await levels(store, namespace) == [(25, 0)]
    await held(store, asked(budget(namespace), tokens=75))


async def test_all_budgets_or_none(store, namespace):
    wide, narrow = budget(namespace, 1000), budget(namespace, 5, scope=Scope.AGENT, name="writer")
    refused = await store.reserve(asked(wide, narrow))
    assert isinstance(refused, Refusal)
    assert refused.budget == narrow
    assert await levels(store, namespace) == []


async def test_a_window_has_an_end_and_says_it(store, namespace):
    hourly = budget(namespace, window=3600)
    await held(store, asked(hourly, tokens=100))
    refused = await store.reserve(asked(hourly, tokens=1))
    assert isinstance(refused, Refusal)
    (usage,) = await store.usage(namespace)
    assert usage.resets_at == hourly.key.end(refused.now)
    assert 0 < usage.resets_at - refused.now <= 3600


async def test_a_window_that_has_ended_allows_again_what_the_last_one_did_not(store, namespace):
    second = budget(namespace, window=1)
    hold = await held(store, asked(second, tokens=100))

    async def again():
        while isinstance(verdict := await store.reserve(asked(second, tokens=100)), Refusal):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return verdict

    async with asyncio.timeout(10):
        later = await again()
    assert later.buckets != hold.buckets
    await store.settle(spent(hold, 100))  # in the window in which it began


async def test_a_hold_of_a_dead_call_expires_and_a_late_settlement_is_booked_all_the_same(store, namespace):
    hold = await held(store, asked(budget(namespace), tokens=100, seconds=0.0))
    assert isinstance(await store.reserve(asked(budget(namespace), tokens=1)), Refusal)
    assert await store.tidy() >= 1
    assert await levels(store, namespace) == []
    await store.settle(spent(hold, 30))
    assert await levels(store, namespace) == [(30, 0)]


async def test_a_call_without_a_hold_is_charged_to_present_windows(store, namespace):
    await store.settle(spent(None, 7, None, budget(namespace), budget(namespace, window=3600)))
    assert await levels(store, namespace) == [(7, 0), (7, 0)]


async def test_of_many_at_once_no_more_are_held_than_fit(store, namespace):
    verdicts = await asyncio.gather(*(store.reserve(asked(budget(namespace), tokens=1)) for _ in range(256)))
    holds = [each for each in verdicts if isinstance(each, Hold)]
    assert len(holds) == 100
    await asyncio.gather(*(store.settle(spent(hold, 1)) for hold in holds))
    assert await levels(store, namespace) == [(100, 0)]


async def test_calls_are_listed_newest_first_in_pages(store, namespace):
    for n in range(5):
        await store.settle(
            spent(
                None, 0, replace(RECORD, namespace=namespace, input_tokens=n, fleet="crew" if n % 2 else "")
            )
        )
    first = await store.calls(namespace, size=3)
    second = await store.calls(namespace, size=3, token=first.next)
    assert [each.input_tokens for each in first.records + second.records] == [4, 3, 2, 1, 0]
    assert second.next == ""
    assert first.records[0] == replace(RECORD, namespace=namespace, input_tokens=4)
    assert [each.input_tokens for each in (await store.calls(namespace, agent="crew")).records] == [3, 1]
    assert (await store.calls(namespace, "other")).records == []
    with pytest.raises(InvalidError):
        await store.calls(namespace, token="x")


async def test_records_that_are_too_old_are_forgotten(store, namespace):
    old = replace(RECORD, namespace=namespace, started_at=time.time() - 8 * 86400)
    await store.settle(spent(None, 0, old))
    await store.tidy()
    assert (await store.calls(namespace)).records == []


@pytest.mark.postgres
async def test_what_is_told_twice_is_booked_once(postgres_store, namespace):
    spend = spent(None, 7, replace(RECORD, namespace=namespace), budget(namespace))
    await postgres_store.settle(spend)
    await postgres_store.settle(spend)
    assert await levels(postgres_store, namespace) == [(7, 0)]


@pytest.mark.postgres
async def test_replicas_that_reserve_and_settle_at_once_never_exceed_a_limit(dsn, namespace):
    budgets = [
        budget(namespace, 100),
        budget(namespace, 60, scope=Scope.AGENT, name="a"),
        budget(namespace, 60, scope=Scope.AGENT, name="b"),
    ]

    async def one(store: Store, agent: int) -> int:
        verdict = await store.reserve(asked(budgets[0], budgets[agent], tokens=1))
        if isinstance(verdict, Refusal):
            return 0
        await store.settle(spent(verdict, 1))
        return 1

    retention = timedelta(days=1)
    async with PostgresStore.open(dsn, retention) as a, PostgresStore.open(dsn, retention) as b:
        done = await asyncio.gather(*(one(s, agent) for _ in range(50) for s in (a, b) for agent in (1, 2)))
        assert sum(done) == 100
        used = {each.key.name: each.used for each in await a.usage(namespace)}
        assert used[""] == 100
        assert used["a"] + used["b"] == 100
        assert max(used["a"], used["b"]) <= 60


@pytest.mark.postgres
async def test_a_store_that_is_closed_or_cannot_be_reached_says_so(dsn, namespace):
    with pytest.raises(UnavailableError):
        async with PostgresStore.open("host=/nowhere dbname=x", timedelta(days=1)):
            pass
    async with PostgresStore.open(dsn, timedelta(days=1)) as store:
        pass
    with pytest.raises(UnavailableError):
        await store.reserve(asked(budget(namespace)))
