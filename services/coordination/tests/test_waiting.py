"""Who waits for what: wakes that are remembered, passed on, and never lost. No server."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from libs.errors import ExhaustedError, UnavailableError

from ..waiting import Waiter, Waiting
from .conftest import until

A, B = "demo/a", "demo/b"


@pytest.fixture
def waiting():
    return Waiting()


@pytest.fixture
async def stack():
    with ExitStack() as stack:
        yield stack


def parked(stack, waiting, *queues, holder="h", shard=None):
    waiter = stack.enter_context(waiting.waiter(queues or (A,), holder, shard))
    waiter.arm()
    return waiter


def woken(waiter: Waiter) -> bool:
    return waiter.woken is not None and waiter.woken.done()


async def test_a_wake_before_the_wait_is_remembered(waiting, stack):
    waiter = parked(stack, waiting)
    waiting.wake(A, 1)  # between the last look and the wait
    async with asyncio.timeout(1):
        await waiter.wait(60)


async def test_as_many_are_woken_as_there_is_work_the_last_parked_first(waiting, stack):
    waiters = [parked(stack, waiting) for _ in range(4)]
    waiting.wake(A, 2)
    assert [woken(waiter) for waiter in waiters] == [False, False, True, True]
    waiting.wake(A, 10)
    assert all(map(woken, waiters))
    assert waiting.parked(A) == 0


async def test_a_wake_of_another_queue_or_of_no_work_wakes_nobody(waiting, stack):
    waiter = parked(stack, waiting)
    waiting.wake(B, 1)
    waiting.wake(A, 0)
    assert not woken(waiter)


async def test_a_wake_without_a_name_wakes_all(waiting, stack):
    waiters = [parked(stack, waiting, A), parked(stack, waiting, B), parked(stack, waiting, A, B)]
    waiting.wake("", 0)
    assert all(map(woken, waiters))


async def test_a_waiter_of_two_queues_is_woken_once(waiting, stack):
    both, other = parked(stack, waiting, A, B), parked(stack, waiting, B)
    waiting.wake(A, 1)
    assert (woken(both), woken(other)) == (True, False)
    waiting.wake(B, 1)
    assert woken(other)


async def test_one_that_leaves_before_it_looked_passes_its_wake_on(waiting, stack):
    stays = parked(stack, waiting)
    with waiting.waiter((A,), "gone") as gone:
        gone.arm()
        waiting.wake(A, 1)
        assert (woken(gone), woken(stays)) == (True, False)
    assert woken(stays)


async def test_a_wake_that_comes_during_the_last_look_is_passed_on_too(waiting, stack):
    stays = parked(stack, waiting)
    with waiting.waiter((A,), "busy") as busy:
        busy.arm()
        waiting.wake(A, 1)  # the look that goes on here may have begun too early to see it
    assert woken(stays)


async def test_one_that_looked_since_its_wake_passes_nothing_on(waiting, stack):
    stays = parked(stack, waiting)
    with waiting.waiter((A,), "h") as waiter:
        waiter.arm()
        waiting.wake(A, 1)
        waiter.arm()  # and looks
    assert not woken(stays)
    assert waiting.parked(A) == 1


async def test_nobody_is_left_behind_by_those_who_leave(waiting):
    with waiting.waiter((A, B), "h") as waiter:
        waiter.arm()
        assert (waiting.parked(A), waiting.parked(B)) == (1, 1)
    assert (waiting.parked(A), waiting.parked(B)) == (0, 0)
    waiting.wake(A, 5)


async def test_a_drain_rouses_everybody_and_refuses_watchers(waiting, stack):
    waiter = parked(stack, waiting)
    event = stack.enter_context(waiting.watch(frozenset({A})))
    waiting.check()
    waiting.drain()
    assert woken(waiter)
    assert event.is_set()
    assert waiting.draining
    with pytest.raises(UnavailableError):
        waiting.check()


async def test_watches_hear_of_their_queues_only(waiting, stack):
    of_a = stack.enter_context(waiting.watch(frozenset({A})))
    of_b = stack.enter_context(waiting.watch(frozenset({B})))
    of_all = stack.enter_context(waiting.watch(None))
    waiting.wake(A, 0)
    assert (of_a.is_set(), of_b.is_set(), of_all.is_set()) == (True, False, True)
    waiting.wake("", 0)
    assert of_b.is_set()


async def test_caps_hold_for_a_holder_for_all_and_for_watches_and_are_given_back():
    waiting = Waiting(most=3, most_of_holder=2, most_watches=1)
    with ExitStack() as stack:
        for holder in ("a", "a", "b"):
            parked(stack, waiting, holder=holder)
        with pytest.raises(ExhaustedError, match="2 a holder"):
            parked(stack, waiting, holder="a")
        with pytest.raises(ExhaustedError, match="3 here"):
            parked(stack, waiting, holder="c")
        stack.enter_context(waiting.watch(None))
        with pytest.raises(ExhaustedError, match="watches"):
            stack.enter_context(waiting.watch(frozenset({A})))
    with ExitStack() as stack:
        for holder in ("a", "a", "c"):
            parked(stack, waiting, holder=holder)
        stack.enter_context(waiting.watch(frozenset({A})))


async def test_a_wake_reaches_all_who_wait_for_a_shard_since_it_does_not_say_which(waiting, stack):
    shards = [parked(stack, waiting, shard=n) for n in range(3)]
    others = [parked(stack, waiting), parked(stack, waiting, B, shard=0)]
    assert (waiting.parked(A), waiting.shards(A)) == (4, {0, 1, 2})
    waiting.wake(A, 0)
    assert not any(map(woken, shards))
    waiting.wake(A, 1)
    assert all(map(woken, shards))
    assert [woken(other) for other in others] == [True, False]
    waiting.wake("", 0)
    assert woken(others[1])


async def test_a_wake_right_after_another_reaches_those_who_wait_for_shards_a_little_later(waiting, stack):
    waiter = parked(stack, waiting, shard=0)
    waiting.wake(A, 1)
    waiter.arm()
    waiting.wake(A, 1)
    waiting.wake(A, 1)
    assert not woken(waiter)
    async with asyncio.timeout(5):
        await waiter.wait(60)
    waiter.arm()

    async def calm() -> bool:
        return not waiting._paced

    await until(calm)
    assert not woken(waiter)  # the two wakes were one
    waiting.wake(A, 1)
    assert woken(waiter)


async def test_a_wake_of_a_shard_is_not_passed_on_since_all_have_had_it(waiting, stack):
    others = [parked(stack, waiting), parked(stack, waiting, shard=1)]
    with ExitStack() as leaving:
        parked(leaving, waiting, shard=0)
        waiting.wake(A, 1)
        assert all(map(woken, others))
        for other in others:
            other.arm()
    assert not any(map(woken, others))
    assert waiting._paced == {A: False}


async def test_lost_wakes_of_shards_are_made_up_for_all_in_turn(waiting, stack):
    waiters = [parked(stack, waiting, holder=str(n), shard=n) for n in range(150)]
    looking = asyncio.create_task(waiting.run())
    async with asyncio.timeout(10):
        await waiters[99].wait(60)
        assert not any(map(woken, waiters[100:]))
        waiters[0].arm()
        await waiters[149].wait(60)
    looking.cancel()
