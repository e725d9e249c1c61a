"""The worker: one round trip per item, leases kept or given up in time, and clean ends."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from libs.errors import DeniedError
from libs.work import Client, Fatal, Producer, Release, Result, Retry, Task, Work, Worker

from .fake import FakeCoordination

QUEUE = "demo/mail"
NOW = timedelta(0)
SOON = timedelta(seconds=5)


@asynccontextmanager
async def working(client: Client, handler, **options):
    worker = Worker(client, [QUEUE], **options)
    running = asyncio.create_task(worker.run(handler))
    try:
        yield worker
    finally:
        worker.drain(NOW)
        async with asyncio.timeout(10):
            await running


async def forever(task: Task) -> None:
    await asyncio.Event().wait()


class Stuck:
    """A handler that never ends; `all_begun` when so many have begun."""

    def __init__(self, count: int) -> None:
        self.all_begun = asyncio.Event()
        self._missing = count

    async def __call__(self, task: Task) -> None:
        self._missing -= 1
        if not self._missing:
            self.all_begun.set()
        await forever(task)


async def test_a_busy_worker_needs_one_round_trip_per_item(client: Client, server: FakeCoordination) -> None:
    await client.submit_all(QUEUE, [Work(b"%d" % n) for n in range(10)])

    async def echo(task: Task) -> bytes:
        return task.payload

    async with working(client, echo):
        await server.until(lambda: len(server.results) == 10)
    assert sorted(item.result for item in server.results) == sorted(b"%d" % n for n in range(10))
    assert len(server.of("Ack")) == 10
    assert len([request for request in server.of("Claim") if request.wait.seconds]) <= 2


async def test_no_more_is_held_than_there_are_slots(client: Client, server: FakeCoordination) -> None:
    await client.submit_all(QUEUE, [Work(b"%d" % n) for n in range(10)])
    most = 0

    async def look(task: Task) -> None:
        nonlocal most
        most = max(most, len(server.held))
        await asyncio.sleep(0.01)

    async with working(client, look, slots=3):
        await server.until(lambda: len(server.results) == 10)
    assert most == 3


async def test_how_a_handler_ends_is_what_becomes_of_the_item(
    client: Client, server: FakeCoordination
) -> None:
    async def handler(task: Task) -> Result:
        match task.payload:
            case b"retry":
                raise Retry("later", after=timedelta(seconds=7))
            case b"fatal":
                raise Fatal("never")
            case b"bug":
                raise KeyError("x")
            case b"inner":
                raise asyncio.CancelledError
            case b"large":
                return Result(bytes(2 << 20))
            case _:
                return Result(b"{}", "application/json")

    payloads = [b"retry", b"fatal", b"bug", b"inner", b"large", b"fine"]
    await client.submit_all(QUEUE, [Work(payload) for payload in payloads])
    async with working(client, handler, slots=2):
        await server.until(lambda: len(server.failures) == 5 and server.results)
    by_payload = {server.items[failure.item_id].payload: failure for failure in server.failures}
    assert by_payload[b"retry"].retry_after.seconds == 7
    assert [by_payload[name].retryable for name in payloads[:5]] == [True, False, True, True, False]
    assert by_payload[b"bug"].error == "KeyError: 'x'"
    assert by_payload[b"inner"].error.startswith("CancelledError")
    assert by_payload[b"large"].error.startswith("the result is not acceptable: result")
    (ack,) = [ack for request in server.of("Ack") for ack in request.acks]
    assert (ack.result, ack.result_content_type) == (b"{}", "application/json")


async def test_what_a_handler_gives_back_is_released_with_its_reason_and_counts_no_attempt(
    client: Client, server: FakeCoordination
) -> None:
    attempts = []

    async def handler(task: Task) -> bytes:
        attempts.append(task.attempt)
        if len(attempts) == 1:
            raise Release("no room here")
        return b"done"

    await client.submit(QUEUE, Work(b"x"))
    async with working(client, handler):
        await server.until(lambda: server.results)
    (request,) = server.of("Release")
    assert request.reason == "no room here"
    assert attempts == [1, 1]
    assert not server.failures


async def test_a_long_handler_keeps_its_lease(client: Client, server: FakeCoordination) -> None:
    server.lease = 0.3
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b")])
    deadlines: list[float] = []

    async def long(task: Task) -> bytes:
        deadlines.append(task.deadline)
        await server.until(lambda: len(server.of("Renew")) >= 5)
        deadlines.append(task.deadline)
        return b"done"

    async with working(client, long, slots=2):
        await server.until(lambda: len(server.results) == 2)
    assert max(deadlines) > min(deadlines) + server.lease
    assert {len(request.leases) for request in server.of("Renew")[:4]} == {2}


async def test_the_handler_ends_before_the_lease_of_a_frozen_server(
    client: Client, server: FakeCoordination
) -> None:
    server.lease = 0.4
    await client.submit(QUEUE, Work(b"a"))
    ended: asyncio.Future[tuple[bool, float]] = asyncio.get_running_loop().create_future()

    async def handler(task: Task) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        server.running.clear()
        try:
            await forever(task)
        finally:
            ended.set_result((task.lost, loop.time() - begun))

    async with working(client, handler):
        async with asyncio.timeout(5):
            lost, after = await ended
        server.running.set()
    assert lost
    assert 0.2 < after < server.lease
    assert not server.results
    assert not server.failures


async def test_a_lost_lease_cancels_the_handler(client: Client, server: FakeCoordination) -> None:
    server.lease = 0.3
    await client.submit(QUEUE, Work(b"a"))
    lost = asyncio.Event()

    async def handler(task: Task) -> None:
        server.held[task.id] += 1  # somebody else has it now
        try:
            await forever(task)
        finally:
            if task.lost:
                lost.set()

    async with working(client, handler):
        async with asyncio.timeout(5):
            await lost.wait()
    assert not server.released
    assert not server.failures


async def test_an_item_somebody_canceled_is_released(client: Client, server: FakeCoordination) -> None:
    server.lease = 0.3
    work = Work(b"a")
    await client.submit(QUEUE, work)
    server.cancel_requested.add(work.id)
    async with working(client, forever):
        await server.until(lambda: server.released)
    assert server.of("Release")[0].reason == "cancel was requested"


async def test_a_drain_lets_handlers_finish(client: Client, server: FakeCoordination) -> None:
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b")])
    begun, go = asyncio.Event(), asyncio.Event()

    async def handler(task: Task) -> bytes:
        begun.set()
        await go.wait()
        return b"done"

    worker = Worker(client, [QUEUE])
    running = asyncio.create_task(worker.run(handler))
    await begun.wait()
    worker.drain(SOON)
    go.set()
    async with asyncio.timeout(2):
        await running
    assert len(server.results) == 1
    assert len(server.ready) == 1
    assert not server.held


async def test_a_drain_releases_what_does_not_finish_in_time(
    client: Client, server: FakeCoordination
) -> None:
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b"), Work(b"c")])
    worker = Worker(client, [QUEUE], slots=5)
    stuck = Stuck(3)
    running = asyncio.create_task(worker.run(stuck))
    await stuck.all_begun.wait()
    worker.drain(timedelta(seconds=0.1))
    async with asyncio.timeout(2):
        await running
    assert not server.held
    assert sum(server.attempts.values()) == 0
    assert len(server.of("Release")) == 1


async def test_a_drain_ends_while_the_server_is_frozen(client: Client, server: FakeCoordination) -> None:
    await client.submit(QUEUE, Work(b"a"))
    worker = Worker(client, [QUEUE], slots=2)
    running = asyncio.create_task(worker.run(forever))
    await server.until(lambda: server.held)
    server.running.clear()
    worker.drain(NOW)
    async with asyncio.timeout(4):
        await running


async def test_a_cancelled_worker_gives_back_what_it_holds(client: Client, server: FakeCoordination) -> None:
    await client.submit(QUEUE, Work(b"a"))
    stuck = Stuck(1)
    running = asyncio.create_task(Worker(client, [QUEUE], slots=2).run(stuck))
    await stuck.all_begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(server.released) == 1


async def test_lost_answers_are_replayed_and_nothing_is_done_twice(
    client: Client, server: FakeCoordination
) -> None:
    handled: list[str] = []

    async def handler(task: Task) -> bytes:
        handled.append(task.id)
        return b"done"

    server.lose_answers.update({"Claim": 5, "Ack": 5})
    await client.submit_all(QUEUE, [Work(b"%d" % n) for n in range(5)])
    async with working(client, handler):
        await server.until(lambda: len(server.results) == 5)
    assert len(handled) == len(set(handled)) == 5
    assert set(server.attempts.values()) == {1}


async def test_a_worker_outlives_an_outage(client: Client, server: FakeCoordination) -> None:
    server.down = True

    async def handler(task: Task) -> bytes:
        return b"done"

    async with working(client, handler, wait=timedelta(seconds=0.2)):
        await server.until(lambda: len(server.of("Claim")) > 5)
        server.down = False
        await client.submit(QUEUE, Work(b"a"))
        await server.until(lambda: server.results)


async def test_what_no_retry_can_mend_is_raised(client: Client, server: FakeCoordination) -> None:
    server.claims_denied = True
    with pytest.raises(DeniedError):
        await Worker(client, [QUEUE], slots=2).run(forever)


async def test_a_claim_that_is_refused_does_not_keep_an_ack_from_standing(
    client: Client, server: FakeCoordination
) -> None:
    await client.submit(QUEUE, Work(b"a"))

    async def handler(task: Task) -> bytes:
        server.claims_denied = True
        return b"done"

    with pytest.raises(DeniedError):
        await Worker(client, [QUEUE]).run(handler)
    assert [item.result for item in server.results] == [b"done"]


async def test_the_handler_runs_in_the_submitters_trace(client: Client, server: FakeCoordination) -> None:
    span = SpanContext(0x5EED, 0xBEEF, is_remote=False, trace_flags=TraceFlags(1))
    token = attach(trace.set_span_in_context(NonRecordingSpan(span)))
    await Producer(client, QUEUE).submit(b"traced")
    detach(token)
    await Producer(client, QUEUE).submit(b"plain")
    seen: dict[bytes, int] = {}

    async def handler(task: Task) -> None:
        seen[task.payload] = trace.get_current_span().get_span_context().trace_id

    async with working(client, handler):
        await server.until(lambda: len(server.results) == 2)
    assert seen == {b"traced": 0x5EED, b"plain": 0}
