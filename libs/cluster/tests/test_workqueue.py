"""The work queue by a clock of ours."""

from __future__ import annotations

import asyncio
import random

import anyio
import pytest

from libs.cluster.workqueue import WorkQueue

from .clock import settle


@pytest.fixture
async def queue(clock):
    return WorkQueue(clock, jitter=lambda: 1.0)


async def drain(queue):
    keys = []
    while queue.depth:
        keys.append(await queue.get())
        queue.done(keys[-1])
    return keys


async def test_keys_come_once_and_in_the_order_they_were_added(queue):
    for key in "abacb":
        queue.add(key)
    assert queue.depth == 3
    assert await drain(queue) == ["a", "b", "c"]


async def test_key_that_is_added_while_worked_on_comes_again_after_done_and_not_before(queue):
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.depth == 0
    queue.done("a")
    assert await drain(queue) == ["a"]


async def test_key_that_is_done_does_not_come_again_by_itself(queue):
    queue.add("a")
    assert await drain(queue) == ["a"]
    assert queue.depth == 0
    with pytest.raises(KeyError):
        queue.done("a")


async def test_key_that_was_added_again_goes_to_the_end(queue):
    queue.add("a")
    queue.add("b")
    await queue.get()
    queue.add("a")
    queue.add("c")
    queue.done("a")
    assert await drain(queue) == ["b", "c", "a"]


async def test_delayed_key_comes_when_its_earliest_delay_ends_and_once(queue, clock):
    queue.add_after("a", 5)
    queue.add_after("a", 2)
    queue.add_after("a", 9)
    await clock.advance(1.9)
    assert queue.depth == 0
    await clock.advance(0.1)
    assert await drain(queue) == ["a"]
    await clock.advance(100)
    assert queue.depth == 0


async def test_delay_that_ends_while_the_key_is_worked_on_waits_for_done(queue, clock):
    queue.add("a")
    await queue.get()
    queue.add_after("a", 1)
    await clock.advance(2)
    assert queue.depth == 0
    queue.done("a")
    assert queue.depth == 1


async def test_delay_of_nothing_is_no_delay(queue):
    queue.add_after("a", 0)
    assert queue.depth == 1


async def test_retries_back_off_twice_as_long_each_time_up_to_five_minutes_until_forgotten(queue, clock):
    waited = []
    for _ in range(16):
        queue.retry("a")
        waited.append(clock.until_next())
        await clock.advance(waited[-1])
        assert await drain(queue) == ["a"]
    assert waited[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert waited[-2:] == pytest.approx([300, 300])
    assert queue.failures("a") == 16
    queue.forget("a")
    queue.retry("a")
    await clock.advance(0.05)
    assert queue.depth == 1


async def test_backoff_waits_half_of_it_at_least(clock):
    queue: WorkQueue[str] = WorkQueue(clock, jitter=lambda: 0.0)
    queue.retry("a")
    await clock.advance(0.0249)
    assert queue.depth == 0
    await clock.advance(0.0001)
    assert queue.depth == 1


async def test_oldest_is_the_age_of_the_next_key(queue, clock):
    assert queue.oldest_seconds == 0
    queue.add("a")
    await clock.advance(3)
    queue.add("b")
    assert queue.oldest_seconds == pytest.approx(3)
    await queue.get()
    assert queue.oldest_seconds == 0
    queue.add("a")
    await clock.advance(4)
    await queue.get()
    queue.done("a")
    assert queue.oldest_seconds == pytest.approx(
        4
    )  # wanted again since then, though its worker finished only now


async def test_cancelled_get_loses_no_key(queue):
    for _ in range(3):
        waiting = [asyncio.ensure_future(queue.get()) for _ in range(2)]
        await settle()
        queue.add("a")
        waiting[0].cancel()
        assert await waiting[1] == "a"
        queue.done("a")


@pytest.mark.parametrize("seed", range(5))
async def test_workers_never_share_a_key_and_none_is_forgotten(clock, seed):
    """Whatever the order of adding, retrying and finishing: after the last add of a key it is worked on."""
    chance = random.Random(seed)
    queue: WorkQueue[int] = WorkQueue(clock)
    busy: set[int] = set()
    added: dict[int, int] = {}
    worked: dict[int, int] = {}

    async def work():
        while True:
            key = await queue.get()
            assert key not in busy
            busy.add(key)
            worked[key] = added[key]
            await clock.sleep(chance.random())
            busy.remove(key)
            if chance.random() < 0.3:
                queue.retry(key)
            queue.done(key)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(work)
        for step in range(300):
            key = chance.randrange(6)
            added[key] = step
            chance.choice([queue.add, lambda key: queue.add_after(key, chance.random())])(key)
            await clock.advance(chance.random() / 4)
        await clock.advance(1000)
        group.cancel_scope.cancel()
    assert worked == added
    assert queue.depth == 0
