"""The ring: what watchers get, what they are told to have missed, and when they end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from libs.contract.events import MAX_FIELD, Ring


async def read(ring, after=0, prefixes=()):
    return [(event.sequence, dropped) async for event, dropped in ring.watch(after, prefixes)]


async def test_a_watcher_gets_what_is_there_and_then_what_comes():
    ring = Ring()
    ring.tell("agent.started")
    watching = ring.watch()
    assert (await anext(watching))[0].name == "agent.started"
    waiting = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    ring.tell("run.started", "r", trigger="item")
    event, dropped = await waiting
    assert (event.sequence, event.run_id, event.fields, dropped) == (2, "r", {"trigger": "item"}, 0)


async def test_every_watcher_ends_when_the_ring_is_closed():
    ring = Ring()
    reading = [asyncio.ensure_future(read(ring)) for _ in range(3)]
    await asyncio.sleep(0)
    ring.tell("agent.stopped")
    ring.close()
    assert await asyncio.gather(*reading) == [[(1, 0)]] * 3
    assert await read(ring, after=1) == []


async def test_a_slow_watcher_is_told_how_many_it_missed():
    ring = Ring(size=3)
    ring.tell("run.started")
    watching = ring.watch()
    await anext(watching)
    for _ in range(10):
        ring.tell("model.called")
    ring.close()
    assert [(event.sequence, dropped) async for event, dropped in watching] == [(9, 7), (10, 0), (11, 0)]


async def test_what_was_missed_is_told_with_the_next_event_that_is_wanted():
    ring = Ring(size=2)
    for _ in range(5):
        ring.tell("model.called")
    watching = ring.watch(prefixes=["run."])
    waiting = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    ring.tell("run.ended")
    event, dropped = await waiting
    assert (event.sequence, dropped) == (6, 3)


@given(
    size=st.integers(1, 8),
    names=st.lists(st.sampled_from(["run.started", "run.ended", "tool.called"]), max_size=20),
    after=st.integers(0, 25),
    prefixes=st.lists(st.sampled_from(["run.", "run.e", "tool", "x"]), max_size=2),
)
async def test_each_event_is_told_or_counted_as_missed(size, names, after, prefixes):
    ring = Ring(size)
    for name in names:
        ring.tell(name)
    ring.close()
    kept = list(range(1, len(names) + 1))[-size:]
    wanted = [
        n
        for n in kept
        if n > after and (not prefixes or any(names[n - 1].startswith(prefix) for prefix in prefixes))
    ]
    told = await read(ring, after, prefixes)
    assert [sequence for sequence, _ in told] == wanted
    if wanted:
        assert sum(dropped for _, dropped in told) == max(0, kept[0] - 1 - after)


def test_events_know_when_and_hold_short_text():
    now = 100.0
    ring = Ring(clock=lambda: now)
    now = 101.5
    event = ring.tell("tool.failed", reason="x" * 1000, count=3, bad="\ud800")
    assert event.at == timedelta(seconds=1.5)
    assert event.fields == {"reason": "x" * MAX_FIELD, "count": "3", "bad": "?"}
    assert ring.last == event.sequence == 1
