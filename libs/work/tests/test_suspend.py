"""A worker that is suspended claims nothing, keeps what it has, and comes back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

from libs.work import Client, Task, Work, Worker

from .fake import FakeCoordination

QUEUE = "demo/mail"


@asynccontextmanager
async def working(client: Client, handler, **options):
    worker = Worker(client, [QUEUE], **options)
    running = asyncio.create_task(worker.run(handler))
    try:
        yield worker
    finally:
        worker.drain(timedelta(0))
        async with asyncio.timeout(10):
            await running


class Gate:
    """A handler that lets each item through when it is told to."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.go = asyncio.Semaphore(0)

    async def __call__(self, task: Task) -> bytes:
        self.begun.release()
        await self.go.acquire()
        return task.payload


async def test_an_idle_claim_is_withdrawn_and_made_again(client: Client, server: FakeCoordination) -> None:
    async def echo(task: Task) -> bytes:
        return task.payload

    async with working(client, echo, slots=2) as worker:
        await server.until(lambda: server.of("Claim"))
        worker.suspend()
        await client.submit(QUEUE, Work(b"a"))
        # A claim that the server may have granted in that instant is given back: the item is nobody's.
        await server.until(lambda: server.ready and not server.held)
        claims = len(server.of("Claim"))
        await client.submit(QUEUE, Work(b"b"))
        assert len(server.ready) == 2
        assert len(server.of("Claim")) == claims
        worker.resume()
        await server.until(lambda: len(server.results) == 2)
    assert set(server.attempts.values()) == {1}


async def test_what_is_held_is_finished_and_nothing_is_claimed_with_its_ack(
    client: Client, server: FakeCoordination
) -> None:
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b")])
    gate = Gate()
    async with working(client, gate) as worker:
        await gate.begun.acquire()
        worker.suspend()
        gate.go.release()
        await server.until(lambda: server.results)
        assert [request.HasField("claim_next") for request in server.of("Ack")] == [False]
        assert (len(server.ready), len(server.held)) == (1, 0)
        worker.resume()
        gate.go.release()
        await server.until(lambda: len(server.results) == 2)


async def test_what_is_held_is_renewed(client: Client, server: FakeCoordination) -> None:
    server.lease = 0.3
    await client.submit(QUEUE, Work(b"a"))
    gate = Gate()
    async with working(client, gate) as worker:
        await gate.begun.acquire()
        worker.suspend()
        await server.until(lambda: len(server.of("Renew")) >= 5)
        gate.go.release()
        await server.until(lambda: server.results)
    assert not server.released


async def test_an_item_that_came_with_an_ack_under_way_is_given_back(
    client: Client, server: FakeCoordination
) -> None:
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b")])
    gate = Gate()
    async with working(client, gate) as worker:
        await gate.begun.acquire()
        server.running.clear()
        gate.go.release()
        await server.until(lambda: server.of("Ack"))
        worker.suspend()
        server.running.set()
        await server.until(lambda: server.released)
        assert server.of("Release")[0].reason == "the worker was suspended"
        assert len(server.ready) == 1
        assert sum(server.attempts.values()) == 1


async def test_a_suspended_worker_drains(client: Client, server: FakeCoordination) -> None:
    await client.submit(QUEUE, Work(b"a"))
    gate = Gate()
    worker = Worker(client, [QUEUE], slots=3)
    running = asyncio.create_task(worker.run(gate))
    await gate.begun.acquire()
    worker.suspend()
    gate.go.release()
    worker.drain(timedelta(seconds=5))
    async with asyncio.timeout(2):
        await running
    assert len(server.results) == 1
