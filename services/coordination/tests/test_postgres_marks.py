"""What a replica's marks hide from its claims, and that it is found all the same (invariants 6 and 9).

Another replica is played by a connection of the test: it commits when the test says so, and notifies nobody.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from ..store.postgres import arrays, verbs
from ..work import AckOrder, NewItem
from .conftest import ANNA, Queue, item

pytestmark = pytest.mark.postgres


@pytest.fixture
async def queue(postgres_store, namespace):
    await postgres_store.configure(f"{namespace}/work", {"max_backlog": 10_000})
    return Queue(postgres_store, f"{namespace}/work")


@pytest.fixture
async def other(dsn):
    """A connection of another replica."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("set search_path = coordination")
        arrays.register(connection)
        yield connection


async def run(other: psycopg.AsyncConnection[Any], verb: Any, entries: list[Any]) -> list[Any]:
    cursor = other.cursor(binary=True)
    await cursor.execute(verb.statement, verb.encode(entries))
    return await cursor.fetchall()


@asynccontextmanager
async def submitting(other: psycopg.AsyncConnection[Any], queue: Queue, *news: NewItem):
    """The items have their places; they are committed at the end."""
    cursor = await other.execute("select id from queue where name = %s", (queue.name,))
    ((id,),) = await cursor.fetchall()
    async with other.transaction():
        verb = verbs.submit(lambda *_: None)
        await run(other, verb, [verbs.Submission(id, queue.name, new) for new in news])
        yield


async def marked(queue: Queue, **changes: Any) -> None:
    """Move the mark of the queue's replica beyond the places given out so far."""
    await queue.add(item(**changes))
    await queue.ack(await queue.take())


async def test_invariant_06_item_committed_after_a_later_one_was_granted_is_found(queue, other):
    late = item()
    await marked(queue)
    async with submitting(other, queue, late):
        await marked(queue)
        assert await queue.claim() == []
    assert (await queue.take()).id == late.id


async def test_invariant_06_all_of_several_hidden_items_are_found_in_their_order(queue, other):
    hidden = [item(priority=5), item(priority=5), item(), item()]
    await marked(queue, priority=5)
    await marked(queue)
    async with submitting(other, queue, *hidden):
        await marked(queue, priority=5)
        await marked(queue)
    new = await queue.add()
    first = await queue.ask(2)
    assert ([grant.id for grant in first.grants], first.more) == ([new.id for new in hidden[:2]], True)
    assert [grant.id for grant in await queue.claim(10)] == [*(new.id for new in hidden[2:]), *new]


async def test_invariant_06_heir_of_an_ordering_key_settled_elsewhere_is_found(queue, other):
    """It keeps its place, which may be far below the mark."""
    first, heir = await queue.add(item(ordering_key="x"), item(ordering_key="x"))
    grant = await queue.take()
    assert grant.id == first
    await marked(queue)
    acked = (ANNA, AckOrder(grant.id, grant.token))
    await run(other, verbs.ack(lambda *_: None), [acked])
    assert (await queue.take()).id == heir


async def test_look_for_the_item_of_a_key_takes_nothing_away_from_who_shares_the_flush(queue):
    """A claim for a dedupe key that nobody holds, beside one for anything."""
    (only,) = await queue.add(item())
    by_key, any_ = await asyncio.gather(queue.claim(dedupe_key="nobody's"), queue.claim())
    assert (by_key, [grant.id for grant in any_]) == ([], [only])


async def test_item_is_taken_by_one_who_asks_for_its_key_or_for_anything(queue):
    keyed, plain = await queue.add(item(dedupe_key="k"), item())
    asked = [queue.claim(dedupe_key="k"), queue.claim(dedupe_key="k"), queue.claim()]
    grants = await asyncio.gather(*asked)
    taken = [grant.id for some in grants for grant in some]
    assert len(taken) == len(set(taken))
    assert (grants[2][0].id, keyed in taken) in [(keyed, True), (plain, True)]
