"""The clockwork costs little while nothing happens, and misses nothing by it."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
import pytest

from ..store.postgres import PostgresStore
from ..store.postgres.session import Link
from ..store.postgres.upkeep import IDLE_SECONDS, MOST, PROOF_SECONDS, SWEEP_SECONDS, Upkeep
from ..work import ItemFilter, State
from .conftest import ALL, ANNA, Queue, Wakes, item, opened, running, until

pytestmark = pytest.mark.postgres

FAR = 3_600_000  # ms


class Scripted(Link):
    """Answers looks as the test says, at once."""

    def __init__(self, *answers: list[Any] | Exception) -> None:
        super().__init__("", lambda: None)
        self.answers = list(answers)

    async def run(self, statement: LiteralString, params: Any) -> list[Any]:
        if "sweep" not in statement:
            return [(False,)]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def told(due_ms: int | None, *, written: bool = True) -> tuple[Any, ...]:
    return (-1, int(written), None, None, due_ms, False, None)


def upkeep(*answers: list[Any] | Exception) -> Upkeep:
    return Upkeep(Scripted(*answers), lambda *_: None)


class Counted(PostgresStore):
    """Counts what it asks beside its lanes and its clockwork, and each statement of the clockwork."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked = self.looks = 0
        run = self._upkeep._link.run

        async def counted(statement: LiteralString, params: Any) -> list[Any]:
            self.looks += 1
            return await run(statement, params)

        self._upkeep._link.run = counted  # type: ignore[method-assign]

    async def _direct(self, *arguments: Any) -> list[Any]:
        self.asked += 1
        return await super()._direct(*arguments)


@asynccontextmanager
async def at_rest(own: str):
    """A store whose clockwork does not run, and does not mean to."""
    async with PostgresStore.open(own, Wakes()) as store:
        yield store, Queue(store, "demo/work")


async def due(own: str, ahead: str = "1 day") -> tuple[int, int | None]:
    """What a look says of itself: whether it was written, and ms until something is due."""
    async with await psycopg.AsyncConnection.connect(own, autocommit=True) as connection:
        await connection.execute("set search_path = coordination")
        asked = await connection.execute(
            "select status, ms from sweep_2('-infinity', 1000, %s::text::interval) where n = -1", (ahead,)
        )
        ((written, ms),) = await asked.fetchall()
        return written, ms


@pytest.mark.parametrize(
    ("answer", "least", "most"),
    [
        pytest.param([told(None)], IDLE_SECONDS, IDLE_SECONDS, id="nothing is near"),
        pytest.param([told(300)], 0.3, math.inf, id="something is"),
        pytest.param([told(0)], SWEEP_SECONDS, math.inf, id="something was skipped"),
        pytest.param([], SWEEP_SECONDS, SWEEP_SECONDS, id="another replica looks"),
        pytest.param([(0, MOST, 0, 0, 0, False, "n/q"), told(None)], 0, 0, id="there was too much"),
    ],
)
async def test_look_says_when_to_look_again(answer, least, most):
    it = upkeep(answer)
    assert least <= await it._look(it._clock()) <= most


async def test_change_is_followed_by_a_look_that_began_after_it():
    """Also one that comes while a look is under way, which may not have seen it."""
    it = upkeep()
    it._next = it._clock() + IDLE_SECONDS

    async def look(now: float) -> float:
        if not looked:
            it.stir()
        looked.append(now)
        if len(looked) == 2:
            raise asyncio.CancelledError
        return math.inf

    looked: list[float] = []
    it._look = look  # type: ignore[method-assign]
    it.stir()
    assert it._next <= it._clock() + SWEEP_SECONDS
    with pytest.raises(asyncio.CancelledError):
        await it.run()
    assert len(looked) == 2


async def test_every_change_that_may_bring_something_due_is_followed_by_a_look(own):
    async with at_rest(own) as (store, queue):

        async def stirs(change: Any) -> Any:
            store._upkeep._next = math.inf
            done = await change
            assert store._upkeep._next <= store._upkeep._clock() + SWEEP_SECONDS
            return done

        await stirs(store.configure(queue.name, {"max_attempts": 2}))
        await stirs(queue.add(item(), item(), item(ordering_key="o"), item(ordering_key="o")))
        a, b = await stirs(queue.claim(2))
        await stirs(queue.renew(a, 1_000))
        await stirs(queue.fail(a))
        await stirs(queue.release(b))
        back = await queue.take()
        await stirs(store.take_back(ANNA, [back]))
        await stirs(queue.fail(await queue.take(), retryable=False))
        await stirs(store.redrive(queue.name, ItemFilter(), limit=9, per_second=0))
        await stirs(queue.fail(await queue.take(), retryable=False))
        await stirs(store.purge(queue.name, ItemFilter(), limit=9))
        head = await queue.take()
        await stirs(queue.ack(head))
        (last,) = (await store.list_items(queue.name, ItemFilter(), ALL, size=1, token="")).items
        await stirs(store.cancel([last.id], "", ALL))


async def test_call_that_changes_nothing_is_followed_by_no_look(own):
    async with at_rest(own) as (store, queue):
        await queue.add(item(delay_ms=FAR))
        store._upkeep._next = math.inf
        assert await queue.claim() == []
        await queue.stats()
        assert store._upkeep._next == math.inf


async def test_look_knows_the_end_of_a_lease_of_a_delay_of_a_lifetime_and_of_a_dead_letter(own):
    async with at_rest(own) as (store, queue):
        await store.configure(queue.name, {"dead_retention_ms": FAR, "max_lease_ms": 4 * FAR})
        assert (await due(own))[1] is None
        await queue.add(item())
        await queue.take(lease_ms=4 * FAR)
        assert 3 * FAR < ((await due(own))[1] or 0) <= 4 * FAR
        await queue.add(item(delay_ms=3 * FAR))
        assert 2 * FAR < ((await due(own))[1] or 0) <= 3 * FAR
        await queue.add(item(expires_in_ms=2 * FAR))
        assert FAR < ((await due(own))[1] or 0) <= 2 * FAR
        await queue.fail(await queue.take(), retryable=False)
        assert 0 < ((await due(own))[1] or 0) <= FAR
        assert (await due(own, ahead="500 ms"))[1] is None


async def test_what_became_due_in_a_quiet_time_is_served(own):
    async with PostgresStore.open(own, Wakes()) as store, running(store) as prompt:
        queue = Queue(prompt, "demo/work")
        await store.configure(queue.name, {"min_lease_ms": 100})
        clock = asyncio.get_running_loop().time

        async def quiet() -> bool:
            return store._upkeep._next - clock() > IDLE_SECONDS / 2

        await until(quiet)
        (id,) = await queue.add(item(delay_ms=300))
        grant = await queue.take_in_time(lease_ms=300)
        assert grant.id == id
        await until(quiet)
        assert (await queue.becomes(id, State.READY)).failures[0].error == "lease expired"


async def test_what_a_replica_that_is_gone_left_behind_is_served_by_another(own):
    async with opened(own, Wakes()) as left:
        async with opened(own, Wakes()) as gone:
            (id,) = await Queue(gone, "demo/work").add(item(delay_ms=200))
        await Queue(left, "demo/work").becomes(id, State.READY)


async def test_quiet_store_looks_seldom_and_answers_health_checks_by_its_looks(own):
    async with Counted.open(own, Wakes()) as store, running(store):
        assert isinstance(store, Counted)
        clock = asyncio.get_running_loop().time

        async def proven() -> bool:
            return store._upkeep.proven

        await until(proven)
        store.looks, began = 0, clock()
        while clock() - began < 2:
            if store._upkeep.proven:
                asked = store.asked
                await store.check()
                assert store.asked == asked
            await asyncio.sleep(0.05)
        # Looks by the clock, and the housekeeping; each is a commit or a round trip that nobody asked for.
        assert 1 <= store.looks <= 2 * (clock() - began) / IDLE_SECONDS


async def test_health_is_asked_for_where_no_look_proves_it(own):
    async with Counted.open(own, Wakes()) as store:
        assert isinstance(store, Counted)
        await store.check()
        assert store.asked == 1
        await store._upkeep._look(store._upkeep._clock())
        await store.check()
        assert store.asked == 1
        store._upkeep._proof -= PROOF_SECONDS
        await store.check()
        assert store.asked == 2
        await store._upkeep._look(store._upkeep._clock())
        await store._upkeep._link.drop()
        await store.check()
        assert store.asked == 3
