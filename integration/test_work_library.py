"""The client library against a real coordination process: one owner, whatever clients and server do."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.work import Producer, Task, Work, Worker, connect

from .fleet import QUEUE, fleet, until

SHORT = timedelta(seconds=1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_many_small_calls_end_as_one_result_each(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        producer = Producer(it.client, QUEUE)
        handled: Counter[str] = Counter()

        async def echo(task: Task) -> bytes:
            handled[task.id] += 1
            return task.payload

        worker = Worker(it.client, [QUEUE], slots=64)
        running = asyncio.create_task(worker.run(echo))
        submitted = await asyncio.gather(*(producer.submit(b"%d" % n) for n in range(1000)))
        results = [item async for item in it.client.results(ids=[each.id for each in submitted])]
        assert sorted(int(item.result) for item in results) == list(range(1000))
        assert (await producer.result(submitted[0].id)).result == b"0"
        worker.drain(SHORT)
        await running
    assert set(handled.values()) == {1}


async def test_claimants_that_come_and_go_cost_no_attempt(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        chance = random.Random(7)
        works = [Work(b"%d" % n) for n in range(200)]

        async def impatient() -> list[Task]:
            try:
                async with asyncio.timeout(chance.uniform(0, 0.05)):
                    return await it.client.claim([QUEUE], max_items=3, wait=timedelta(seconds=5))
            except TimeoutError:
                return []

        async def come_and_go() -> None:
            for _ in range(20):
                for task in await impatient():
                    await it.client.release(task, "only looking")

        visitors = [asyncio.create_task(come_and_go()) for _ in range(20)]
        for work in works:
            await it.client.submit(QUEUE, work)
        await asyncio.gather(*visitors)

        async def all_back() -> bool:
            queue = await it.queue()
            return bool(queue.ready_count == len(works) and queue.leased_count == 0)

        await until(all_back)
        tasks = await it.client.claim([QUEUE], max_items=len(works))
    assert {task.attempt for task in tasks} == {1}
    assert {task.id for task in tasks} == {work.id for work in works}


async def test_a_frozen_server_costs_the_handler_its_item_but_nobody_two(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        running: set[str] = set()
        fenced = asyncio.Event()

        async def handler(task: Task) -> bytes:
            assert task.id not in running
            running.add(task.id)
            try:
                if not fenced.is_set():
                    it.coordination.signal(signal.SIGSTOP)
                    await asyncio.Event().wait()
                return b"done"
            finally:
                running.discard(task.id)
                if task.lost:
                    fenced.set()

        worker = Worker(it.client, [QUEUE], lease=SHORT)
        working = asyncio.create_task(worker.run(handler))
        submission = await it.client.submit(QUEUE, Work(b"x"))
        async with asyncio.timeout(5):
            await fenced.wait()
        it.coordination.signal(signal.SIGCONT)
        results = await it.results({"x": submission.id})
        worker.drain(SHORT)
        await working
    assert results["x"].state == work_pb2.WORK_STATE_SUCCEEDED
    assert results["x"].result == b"done"


async def test_a_long_handler_is_renewed_and_told_of_a_cancel(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        begun = asyncio.Event()

        async def handler(task: Task) -> bytes:
            begun.set()
            if task.payload == b"long":
                await asyncio.sleep(2.5)
                return b"done"
            await asyncio.Event().wait()
            return b""

        worker = Worker(it.client, [QUEUE], lease=SHORT)
        working = asyncio.create_task(worker.run(handler))
        long, endless = [await it.client.submit(QUEUE, Work(payload)) for payload in (b"long", b"endless")]
        results = await it.results({"long": long.id})
        assert (results["long"].result, results["long"].attempt) == (b"done", 1)

        async def leased() -> bool:
            return (await it.queue()).leased_count == 1

        await until(leased)
        await it.client.stub.Cancel(pb.CancelRequest(item_ids=[endless.id]))
        results = await it.results({"endless": endless.id})
        assert results["endless"].state == work_pb2.WORK_STATE_CANCELED
        worker.drain(SHORT)
        await working


async def test_a_client_that_closes_leaves_nothing_leased(tmp_path: Path) -> None:
    async with fleet(tmp_path) as it:
        identity = it.authority.issue(
            "spiffe://local.test/ns/demo/agent/docs/pod/short/uid-short", it.folder / "short"
        )
        await it.client.submit_all(QUEUE, [Work(b"%d" % n) for n in range(20)])
        begun = asyncio.Event()

        async def handler(task: Task) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with connect(it.coordination_address, identity) as client:
            worker = Worker(client, [QUEUE], slots=10)
            working = asyncio.create_task(worker.run(handler))
            await begun.wait()
            worker.drain(timedelta(0))
            await working

        async def none_leased() -> bool:
            queue = await it.queue()
            return bool(queue.leased_count == 0 and queue.ready_count == 20)

        await until(none_leased)
        assert {task.attempt for task in await it.client.claim([QUEUE], max_items=20)} == {1}
