"""The two watches: each result once and in order, and queues whose numbers moved."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial

import psycopg
import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import ExhaustedError, NotFoundError, UnavailableError

from ..waiting import Waiting
from .conftest import opened
from .served import FRONTS, QUEUE, ROOT, draining, plane, seconds, work

pytestmark = pytest.mark.usefixtures("one_loop")


@pytest.fixture(params=FRONTS)
async def it(tmp_path, request):
    async with plane(tmp_path, request.param) as plane_:
        yield plane_


async def settle(it, count=1, result=b""):
    """Claim so many and ack them one after the other; their ids."""
    grants = await it.claim(max_items=count)
    for grant in grants:
        await it.ack(grant, result)
    return [grant.item_id for grant in grants]


async def results(it, role="user", **which):
    """All messages of a watch that ends."""
    stub = await it.stub(role)
    async with asyncio.timeout(10):
        return [m async for m in stub.WatchResults(pb.WatchResultsRequest(**which))]


def ids_of(messages):
    return [item.id for message in messages for item in message.results]


async def after(stream, seconds_=2.0):
    """The next message, which must come soon."""
    async with asyncio.timeout(seconds_):
        return await stream.read()


async def nothing_comes(stream, for_seconds):
    """Whether the stream stays silent; it is of no use afterwards."""
    try:
        async with asyncio.timeout(for_seconds):
            await stream.read()
    except TimeoutError:
        return True
    return False


# --- WatchResults ---


async def test_a_watch_tells_each_result_once_in_settle_order_and_ends(it):
    ids = await it.submit(*(work(b"%d" % n) for n in range(5)))
    grants = await it.claim(max_items=5)
    for grant in reversed(grants):
        await it.ack(grant, b"r" + grant.payload)
    messages = await results(it, queue=QUEUE)
    assert ids_of(messages) == ids[::-1]
    first = messages[0].results[0]
    assert (first.result, first.payload, first.state) == (b"r4", b"", work_pb2.WORK_STATE_SUCCEEDED)
    assert first.HasField("settled_ago")


async def test_a_watch_waits_for_what_is_not_settled_yet_and_then_ends(it):
    ids = await it.submit(work(), work(), work())
    await settle(it)
    stub = await it.stub()
    stream = stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE))
    assert [item.id for item in (await after(stream)).results] == ids[:1]
    await settle(it)
    assert [item.id for item in (await after(stream, 0.8)).results] == ids[1:2]
    await stub.Cancel(pb.CancelRequest(item_ids=[ids[2]]))
    (item,) = (await after(stream, 0.8)).results
    assert (item.id, item.state) == (ids[2], work_pb2.WORK_STATE_CANCELED)
    assert [m async for m in stream] == []


async def test_dead_letters_are_results_too(it):
    id = await it.dead()
    (message,) = await results(it, queue=QUEUE)
    assert [(item.id, item.state) for item in message.results] == [(id, work_pb2.WORK_STATE_DEAD)]


async def test_a_watch_goes_on_after_a_cursor(it):
    ids = await it.submit(*(work() for _ in range(6)))
    await settle(it, 3)
    stub = await it.stub()
    stream = stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE))
    first = await after(stream)
    stream.cancel()
    seen = ids_of([first])
    await settle(it, 3)
    seen += ids_of(await results(it, queue=QUEUE, cursor=first.cursor))
    assert seen == ids
    (last,) = [m.cursor for m in await results(it, queue=QUEUE)]
    assert await results(it, queue=QUEUE, cursor=last) == []


async def test_a_watch_of_a_group_tells_of_no_other(it):
    ids = await it.submit(work(group="a"), work(group="b"), work(group="a"))
    await settle(it, 2)
    stub = await it.stub()
    stream = stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE, group="a"))
    assert ids_of([await after(stream)]) == ids[:1]
    await settle(it)
    assert ids_of([m async for m in stream]) == ids[2:]
    assert ids_of(await results(it, queue=QUEUE, group="b")) == ids[1:2]


async def test_a_watch_of_ids_ends_when_each_was_told_even_if_it_should_follow(it):
    ids = await it.submit(work(), work(), work())
    stub = await it.stub()
    stream = stub.WatchResults(pb.WatchResultsRequest(item_ids=[ids[2], ids[0]], follow=True))
    await settle(it, 2)
    assert ids_of([await after(stream, 0.8)]) == ids[:1]
    await settle(it)
    async with asyncio.timeout(3):
        assert ids_of([m async for m in stream]) == ids[2:]


async def test_a_watch_of_an_unknown_id_is_not_found(it):
    (id,) = await it.submit()
    with pytest.raises(NotFoundError, match="00000000-0000-4000-8000-000000000000"):
        await results(it, item_ids=[id, "00000000-0000-4000-8000-000000000000"])


async def test_following_goes_on_after_everything_is_settled(it):
    ids = await it.submit()
    await settle(it)
    stub = await it.stub()
    stream = stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE, follow=True))
    seen = ids_of([await after(stream)])
    for _ in range(3):
        ids += await it.submit()
        await settle(it)
        seen += ids_of([await after(stream, 0.8)])
    assert seen == ids
    assert await nothing_comes(stream, 0.2)


async def test_results_that_do_not_fit_one_message_come_in_several(it):
    for _ in range(10):
        await it.submit()
    await settle(it, 10, b"x" * (1 << 20))
    messages = await results(it, queue=QUEUE)
    assert len(ids_of(messages)) == len(set(ids_of(messages))) == 10
    assert len(messages) >= 4
    assert max(message.ByteSize() for message in messages) < 4 << 20


async def test_results_of_many_labels_come_in_several_messages_too(it):
    fat = {f"{n:02}-{'k' * 60}": "v" * 255 for n in range(32)}
    for _ in range(2):
        await it.submit(*(work(b"", labels=fat) for _ in range(250)))
    stub = await it.stub()
    listed = await stub.ListItems(pb.ListItemsRequest(queue=QUEUE))
    while ids := [item.id for item in listed.items]:
        await stub.Cancel(pb.CancelRequest(item_ids=ids))
        listed = await stub.ListItems(pb.ListItemsRequest(queue=QUEUE))
    messages = await results(it, queue=QUEUE)
    assert len(set(ids_of(messages))) == 500


async def test_many_watches_of_a_busy_queue_each_miss_nothing(it):
    stub = await it.stub()
    await it.submit(*(work() for _ in range(300)))
    watches = [asyncio.create_task(results(it, queue=QUEUE)) for _ in range(5)]
    order = []
    while grants := await it.claim(max_items=7):
        for grant in grants:
            await it.ack(grant)
            order.append(grant.item_id)
    for watch in watches:
        assert ids_of(await watch) == order
    assert not (await stub.ListItems(pb.ListItemsRequest(queue=QUEUE))).items


@pytest.mark.postgres
async def test_a_watch_does_not_end_before_a_result_that_a_transaction_holds_back(tmp_path, dsn, namespace):
    name = f"{namespace}/docs"
    async with (
        plane(tmp_path, "h2corn", partial(opened, dsn)) as it,
        await psycopg.AsyncConnection.connect(dsn) as slow,
    ):
        (id,) = await it.submit(queue=name, role=ROOT)
        grant = await it.take(queues=[name], role=ROOT)
        await slow.execute("select pg_current_xact_id()")  # settles nothing, but might have
        await it.ack(grant, role=ROOT)
        by_id = asyncio.create_task(results(it, ROOT, item_ids=[id]))
        by_queue = asyncio.create_task(results(it, ROOT, queue=name))
        done, _ = await asyncio.wait({by_id, by_queue}, timeout=1.5)
        await slow.rollback()
        assert not done
        assert ids_of(await by_id) == ids_of(await by_queue) == [id]


# --- WatchQueues ---


async def test_queues_come_at_once_and_then_those_that_moved(it):
    await it.submit(queue="demo/docs")
    await it.submit(queue="demo/mail")
    stub = await it.stub()
    stream = stub.WatchQueues(pb.WatchQueuesRequest(min_interval=seconds(0.01)))
    first = await after(stream)
    assert [(queue.name, queue.ready_count) for queue in first.queues] == [("demo/docs", 1), ("demo/mail", 1)]
    await it.submit(queue="demo/mail")
    (queue,) = (await after(stream, 0.8)).queues
    assert (queue.name, queue.ready_count) == ("demo/mail", 2)
    await stub.PauseQueue(pb.PauseQueueRequest(queue="demo/docs"))
    (queue,) = (await after(stream, 0.8)).queues
    assert (queue.name, queue.paused) == ("demo/docs", True)
    await it.configure("demo/docs", max_attempts=2)
    (queue,) = (await after(stream, 0.8)).queues
    assert (queue.name, queue.policy.max_attempts) == ("demo/docs", 2)
    assert await nothing_comes(stream, 1.5)


async def test_no_queues_are_said_at_once_too_and_a_named_one_once_it_is_there(it):
    stub = await it.stub()
    stream = stub.WatchQueues(pb.WatchQueuesRequest(queues=[QUEUE]))
    assert not (await after(stream)).queues
    await it.submit()
    (queue,) = (await after(stream, 0.8)).queues
    assert (queue.name, queue.ready_count) == (QUEUE, 1)


async def test_changes_that_come_fast_are_told_together(it):
    await it.submit()
    stub = await it.stub()
    stream = stub.WatchQueues(pb.WatchQueuesRequest(queues=[QUEUE], min_interval=seconds(0.5)))
    await after(stream)
    began = time.monotonic()
    for _ in range(30):
        await it.submit()
    messages, ready = 0, 0
    while ready < 31:
        ready = (await after(stream)).queues[0].ready_count
        messages += 1
    assert messages <= 2 + int((time.monotonic() - began) / 0.5)


async def test_parked_claims_are_counted(it):
    await it.configure()
    stub = await it.stub()
    stream = stub.WatchQueues(pb.WatchQueuesRequest(queues=[QUEUE]))
    assert (await after(stream)).queues[0].parked_claims_count == 0
    claims = [it.claiming() for _ in range(3)]
    await it.parked(3)
    while (await after(stream)).queues[0].parked_claims_count != 3:
        pass
    for claim in claims:
        claim.cancel()


async def test_rates_show_what_went_through(it):
    await it.submit()
    stub = await it.stub()
    await stub.GetQueues(pb.GetQueuesRequest(queues=[QUEUE]))
    await asyncio.sleep(1.1)
    await it.submit(*(work() for _ in range(110)))
    queue = await it.queue()
    assert 50 < queue.submitted_per_second < 110


# --- Both ---


@pytest.mark.parametrize("front", FRONTS)
async def test_too_many_watches_are_refused(tmp_path, front):
    async with plane(tmp_path, front, waiting=Waiting(most_watches=2)) as it:
        stub = await it.stub()
        streams = [stub.WatchQueues(pb.WatchQueuesRequest()) for _ in range(2)]
        for stream in streams:
            await after(stream)
        with pytest.raises(ExhaustedError, match="watches"):
            await after(stub.WatchQueues(pb.WatchQueuesRequest()))
        streams[0].cancel()
        async with asyncio.timeout(5):
            while True:
                try:
                    await stub.WatchQueues(pb.WatchQueuesRequest()).read()
                except ExhaustedError:
                    await asyncio.sleep(0.01)
                else:
                    break


@pytest.mark.parametrize("front", FRONTS)
async def test_a_drain_ends_watches_at_once_as_unavailable(tmp_path, front):
    async with AsyncExitStack() as clients:
        async with draining(tmp_path, front, clients) as it:
            await it.submit()
            stub = await it.stub()
            streams = [
                stub.WatchQueues(pb.WatchQueuesRequest(min_interval=seconds(30))),
                stub.WatchResults(pb.WatchResultsRequest(queue=QUEUE)),
            ]
            await after(streams[0])
            ends = [asyncio.create_task(stream.read()) for stream in streams]
            await asyncio.sleep(0.05)
            began = time.monotonic()
        assert time.monotonic() - began < 2
        for end in ends:
            with pytest.raises(UnavailableError):
                await end
