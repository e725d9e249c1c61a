"""Results: each once, in order, whatever happens to the stream."""

from __future__ import annotations

import asyncio

import pytest

from libs.errors import InvalidError
from libs.work import Client, Producer, Task, Work

from .fake import FakeCoordination

QUEUE = "demo/mail"


async def finish(client: Client, count: int) -> list[str]:
    """Submit and ack so many items; their ids in settle order."""
    await client.submit_all(QUEUE, [Work(b"%d" % n) for n in range(count)])
    tasks: list[Task] = await client.claim([QUEUE], max_items=count)
    for task in tasks:
        await client.ack(task, task.payload)
    return [task.id for task in tasks]


async def test_a_broken_stream_is_resumed_behind_the_last_result(
    client: Client, server: FakeCoordination
) -> None:
    ids = await finish(client, 6)
    server.break_stream_after = 3
    results = client.results(queue=QUEUE)
    assert [item.id async for item in results] == ids
    assert [request.cursor for request in server.of("WatchResults")] == ["", "3"]
    assert results.cursor == "6"
    assert [item.id async for item in client.results(queue=QUEUE, cursor="4")] == ids[4:]


async def test_ids_are_watched_until_each_was_seen(client: Client, server: FakeCoordination) -> None:
    ids = await finish(client, 4)
    server.break_stream_after = 1
    assert [item.id async for item in client.results(ids=[ids[3], ids[1]])] == [ids[1], ids[3]]
    assert list(server.of("WatchResults")[-1].item_ids) == [ids[3]]


async def test_a_follower_waits_for_more(client: Client, server: FakeCoordination) -> None:
    seen: list[str] = []

    async def follow() -> None:
        seen.extend([item.id async for item in client.results(queue=QUEUE, follow=True)])

    following = asyncio.create_task(follow())
    await server.until(lambda: server.of("WatchResults"))
    assert not following.done()
    following.cancel()
    await asyncio.wait([following])
    assert following.cancelled()


async def test_a_producer_waits_for_its_result(client: Client, server: FakeCoordination) -> None:
    producer = Producer(client, QUEUE)
    submission = await producer.submit(b"work", labels={"a": "b"})
    result = asyncio.create_task(producer.result(submission.id))
    await server.until(lambda: server.of("WatchResults"))
    (task,) = await client.claim([QUEUE])
    await client.ack(task, b"answer")
    assert (await result).result == b"answer"


async def test_what_to_watch_must_be_said(client: Client) -> None:
    with pytest.raises(InvalidError):
        client.results()
