from __future__ import annotations

import asyncio
import time

import pytest

from loadgen.audit import audit
from loadgen.calls import StubVerbs
from loadgen.channel import connected
from loadgen.ledger import Ledger, new_tag
from loadgen.loops import Window, run_clients
from loadgen.tally import Mode, Step, Tally

from .fake import fake_coordination


def step_of(**changes):
    fields = {
        "mode": Mode.SINGLE,
        "clients": 4,
        "connections": 2,
        "processes": 1,
        "warmup": 0.05,
        "duration": 0.3,
        "lease": 0.1,
        "queue": "load/test",
        "tag": new_tag(),
    }
    return Step(**{**fields, **changes})


async def run(target, step, patience=1.0):
    """The step in this process; what it measured and what the audit says."""
    tally = Tally(Ledger(step.tag, 0, step.payload))
    window = Window.of(step, time.monotonic())
    window = Window(window.start, window.measure, window.end, window.end + patience)
    async with connected(target) as channel:
        clients = [StubVerbs(step, channel, tally, window) for _ in range(step.clients)]
        await run_clients(step, clients, tally, window)
    return tally, await audit(target, step, [tally])


@pytest.mark.parametrize("claim_next", [False, True])
@pytest.mark.parametrize("batch", [1, 10])
async def test_an_honest_server_passes_and_everything_is_settled(serve, batch, claim_next):
    fake = fake_coordination()
    async with serve(fake) as target:
        tally, found = await run(target, step_of(batch=batch, claim_next=claim_next))
    assert found.lines() == []
    assert not tally.errors
    assert 0 < tally.cycles <= len(fake.results) == len(fake.queue_of) == fake.granted
    rpcs_a_cycle = 2 if claim_next else 3
    assert tally.rpcs * batch == pytest.approx(tally.cycles * rpcs_a_cycle, rel=0.2)
    assert sum(histogram.total for histogram in tally.latencies.values()) == tally.rpcs


@pytest.mark.parametrize(
    ("cheat", "kinds"),
    [
        ("lose", {"step cut short", "ledger"}),
        ("refuse", {"submit: SUBMIT_STATUS_FULL"}),
        ("change", {"claim: an item that is not ours, or changed", "step cut short", "ledger"}),
        ("twice", {"ledger", "GetQueues: settled_total"}),
        ("not ours", {"ack: LEASE_STATUS_LOST LOST_REASON_UNSPECIFIED", "ledger"}),
        ("leased", {"GetQueues: leased_count"}),
    ],
)
async def test_a_cheating_server_is_caught(serve, cheat, kinds):
    fake = fake_coordination(cheat)
    async with serve(fake) as target:
        _, found = await run(target, step_of())
    assert fake.cheat == "", "it never came to cheat"
    assert kinds <= set(found.counts)


async def test_a_result_that_changed_is_caught(serve):
    fake = fake_coordination()
    async with serve(fake) as target:
        step = step_of()
        tally = Tally(Ledger(step.tag, 0, step.payload))
        window = Window.of(step, time.monotonic())
        async with connected(target) as channel:
            await run_clients(step, [StubVerbs(step, channel, tally, window)], tally, window)
        for item_id in fake.results:
            fake.results[item_id] = b"another"
        found = await audit(target, step, [tally])
    assert set(found.counts) == {"WatchResults: another state or result"}


async def test_a_call_that_failed_is_counted_and_repeated(serve):
    async with serve(fake_coordination("time out")) as target:
        tally, found = await run(target, step_of())
    assert tally.errors == {"submit DEADLINE_EXCEEDED": 1}
    assert found.lines() == []


async def test_a_call_that_is_refused_for_good_ends_the_step(serve):
    async with serve(fake_coordination("deny")) as target:
        async with asyncio.timeout(10):
            _, found = await run(target, step_of())
    assert "no such queue" in found.examples["step cut short"]
