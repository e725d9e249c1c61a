"""Workers of one shard: what they claim, and what they do while the queue is divided otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from itertools import count

import pytest

from libs.work import Client, Shard, ShardRequiredError, StaleShardError, Task, Work, Worker

from .fake import FakeCoordination
from .test_worker import QUEUE, working

OURS = Shard(index=1, count=3, epoch=7)


async def test_every_claim_names_the_shard(client: Client, server: FakeCoordination) -> None:
    server.shards = (3, 7)
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b")])

    async def done(task: Task) -> bytes:
        return b"done"

    async with working(client, done, shard=OURS):
        await server.until(lambda: len(server.results) == 2)
    claims = [*server.of("Claim"), *(ack.claim_next for ack in server.of("Ack"))]
    assert len(claims) >= 3
    assert {(each.shard.index, each.shard.count, each.shard.epoch) for each in claims} == {(1, 3, 7)}


@pytest.mark.parametrize(
    ("ours", "shards", "error"),
    [(OURS, (5, 8), StaleShardError), (OURS, (0, 8), StaleShardError), (None, (5, 8), ShardRequiredError)],
)
@pytest.mark.parametrize("wait", [timedelta(0), timedelta(seconds=5)])
async def test_a_claimant_is_told_how_the_queue_is_divided(
    client: Client, server: FakeCoordination, ours: Shard | None, shards: tuple[int, int], error, wait
) -> None:
    server.shards = shards
    with pytest.raises(error, match=f"{shards[0]} shards, epoch 8"):
        await client.claim([QUEUE], wait=wait, shard=ours)


async def test_a_worker_of_a_stale_shard_waits_says_so_once_and_works_when_it_is_right_again(
    client: Client, server: FakeCoordination, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "libs.work")
    server.shards = (3, 8)
    await client.submit(QUEUE, Work(b"a"))

    async def done(task: Task) -> bytes:
        return b"done"

    async with working(client, done, slots=4, shard=OURS):
        await server.until(lambda: len(server.of("Claim")) >= 3)
        server.shards = (3, 7)
        await server.until(lambda: server.results)
    said = [record.getMessage() for record in caplog.records]
    assert sum("nothing to claim" in each for each in said) == 1
    assert sum("again" in each for each in said) == 1


async def test_a_worker_that_was_answered_begins_its_pauses_anew(
    client: Client, server: FakeCoordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []

    def pauses(*bounds: float) -> Iterator[float]:
        for n in count():
            waited.append(n)
            yield 0.0

    async def never(task: Task) -> None:
        raise AssertionError

    monkeypatch.setattr("libs.work.worker.pauses", pauses)
    server.shards = (3, 8)
    async with working(client, never, shard=OURS, wait=timedelta(milliseconds=5)):
        await server.until(lambda: len(waited) >= 3)
        server.shards = (3, 7)
        claims = len(server.of("Claim"))
        await server.until(lambda: len(server.of("Claim")) >= claims + 3)
        before, server.shards = len(waited), (3, 8)
        await server.until(lambda: len(waited) > before)
    assert (waited[before - 1] > 0, waited[before]) == (True, 0)


async def test_a_worker_without_a_shard_waits_too(client: Client, server: FakeCoordination) -> None:
    server.shards = (3, 7)
    await client.submit(QUEUE, Work(b"a"))

    async def done(task: Task) -> bytes:
        return b"done"

    async with working(client, done):
        await server.until(lambda: len(server.of("Claim")) >= 2)
        server.shards = (0, 8)
        await server.until(lambda: server.results)


async def test_what_is_held_when_the_shards_change_is_renewed_and_acked(
    client: Client, server: FakeCoordination
) -> None:
    server.shards, server.lease = (3, 7), 0.6
    await client.submit_all(QUEUE, [Work(b"a"), Work(b"b")])
    go = asyncio.Event()

    async def handler(task: Task) -> bytes:
        server.shards = (5, 8)
        await go.wait()
        return b"done"

    async with working(client, handler, shard=OURS):
        await server.until(lambda: len(server.of("Renew")) >= 2)
        go.set()
        await server.until(lambda: server.results)
        await server.until(lambda: len(server.of("Claim")) >= 2)  # asks, is refused, and lives on
        assert server.of("Ack")[0].HasField("claim_next")
    assert set(server.attempts.values()) == {1}
    assert (len(server.results), len(server.ready), server.held) == (1, 1, {})


async def test_a_drain_ends_a_worker_that_waits_for_its_shard(
    client: Client, server: FakeCoordination
) -> None:
    server.shards = (5, 8)
    worker = Worker(client, [QUEUE], slots=2, shard=OURS)

    async def never(task: Task) -> None:
        raise AssertionError

    running = asyncio.create_task(worker.run(never))
    await server.until(lambda: server.of("Claim"))
    worker.drain(timedelta(minutes=1))
    async with asyncio.timeout(5):
        await running
