"""Claims on the agent's behalf, from a real coordination service: what becomes of an item."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from agentctl.coordination.v1 import coordination_service_pb2 as work_pb
from agentctl.coordination.v1 import work_pb2
from libs.testing.mesh import Mesh
from libs.work import Client, Work, connect
from services.bridge import bridging
from services.bridge.runs import HELD_TOO_LONG
from services.bridge.turns import Turns

from .lab import QUEUE, Lab, coordination, kill, lab, until

SUCCEEDED, DEAD = work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD


@dataclass
class Fleet:
    """A queue, and one bridged worker of it."""

    it: Lab
    client: Client
    address: str

    async def submit(self, payload: bytes = b"a document", **fields) -> str:
        return (await self.client.submit(QUEUE, Work(payload, **fields))).id

    async def item(self, item_id: str) -> work_pb2.Item:
        (found,) = (await self.client.stub.GetItems(work_pb.GetItemsRequest(item_ids=[item_id]))).items
        return found

    async def settled(self, item_id: str) -> work_pb2.Item:
        """How it ended."""
        async with asyncio.timeout(20):
            return await anext(aiter(self.client.results(ids=[item_id])))


@asynccontextmanager
async def fleet(folder, shards=0, **changes):
    mesh = Mesh(folder)
    policy = work_pb2.QueuePolicy(shards=work_pb2.Sharding(count=shards))
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(coordination(folder, mesh))
        client = await stack.enter_async_context(connect(address, mesh.identity("producer")))
        async with connect(address, mesh.identity("user")) as user:
            asked = work_pb.ConfigureQueueRequest(queue=QUEUE, policy=policy if shards else None)
            configured = await user.stub.ConfigureQueue(asked)
        if shards:
            changes |= {"shard_count": shards, "shard_epoch": configured.queue.policy.shards.epoch}
        it = await stack.enter_async_context(lab(folder, queue=QUEUE, coordination=address, **changes))
        yield Fleet(it, client, address)


async def test_an_item_is_a_run_and_its_answer_the_result(tmp_path):
    async with fleet(tmp_path) as fl:
        item_id = await fl.submit(b"ein Blatt")
        async with fl.it.agentd():
            item = await fl.settled(item_id)
            assert (item.state, item.result) == (SUCCEEDED, b"an answer")
            run = fl.it.bridge.agent.run(item_id)
            assert run.trigger == "item"
            manifest = (await fl.it.stub.GetManifest(pb.GetManifestRequest())).manifest
            assert (manifest.mode, manifest.surfaces.queue) == ("claim", QUEUE)
            assert manifest.surfaces.pause_holds_runs
        asked = fl.it.model.asked[0]["messages"][-1]["content"]
        assert asked.startswith("Summarize.\n")
        assert "\nein Blatt\n" in asked


async def test_a_lease_is_kept_for_longer_than_it_is_long(tmp_path):
    async with fleet(tmp_path, lease=timedelta(seconds=1)) as fl, fl.it.agentd():
        fl.it.model.may_answer.clear()
        item_id = await fl.submit()
        await fl.it.asked()
        async with connect(fl.address, fl.it.mesh.identity("agent/worker/uid-2")) as other:
            assert await other.claim([QUEUE], wait=timedelta(seconds=2.5)) == []
        assert (await fl.item(item_id)).attempt == 1
        fl.it.model.may_answer.set()
        assert (await fl.settled(item_id)).state == SUCCEEDED
        assert len(fl.it.model.asked) == 1


async def test_when_the_agent_is_killed_its_item_goes_to_another_uncounted(tmp_path):
    async with fleet(tmp_path) as fl:
        async with fl.it.agentd() as agentd:
            fl.it.model.may_answer.clear()
            item_id = await fl.submit()
            await fl.it.asked()
            kill(agentd)
            async with connect(fl.address, fl.it.mesh.identity("agent/worker/uid-2")) as other:
                (task,) = await other.claim([QUEUE], wait=timedelta(seconds=20))
                assert (task.id, task.attempt) == (item_id, 1)
                await other.ack(task, b"done by another")
        assert (await fl.settled(item_id)).result == b"done by another"


async def test_nothing_is_claimed_while_the_agent_is_away_or_paused_or_a_lame_duck(tmp_path):
    async with fleet(tmp_path) as fl:
        first = await fl.submit()
        assert (await fl.item(first)).state == work_pb2.WORK_STATE_READY
        async with fl.it.agentd():
            assert (await fl.settled(first)).state == SUCCEEDED
            await fl.it.stub.Pause(pb.PauseRequest())
            second = await fl.submit()
            await fl.it.stub.LameDuck(pb.LameDuckRequest(enabled=True))
            await fl.it.stub.Resume(pb.ResumeRequest())
            async with connect(fl.address, fl.it.mesh.identity("agent/worker/uid-2")) as other:
                (task,) = await other.claim([QUEUE], wait=timedelta(seconds=5))  # it is there for others
                assert task.id == second
                await other.release(task)
            await fl.it.stub.LameDuck(pb.LameDuckRequest(enabled=False))
            assert (await fl.settled(second)).state == SUCCEEDED


async def test_an_item_that_is_paused_for_longer_than_its_agent_waits_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(bridging, "Turns", partial(Turns, max_hold=0.5))
    async with fleet(tmp_path) as fl, fl.it.agentd():
        fl.it.model.may_answer.clear()
        fl.it.model.calls_tool_first = True
        item_id = await fl.submit()
        await fl.it.asked()
        pausing = asyncio.create_task(fl.it.stub.Pause(pb.PauseRequest()))
        await until(lambda: is_paused(fl))
        fl.it.model.may_answer.set()
        await pausing

        async def is_given_back():
            return (await fl.item(item_id)).state == work_pb2.WORK_STATE_READY

        await until(is_given_back)
        run = fl.it.bridge.agent.run(item_id)
        assert (run.status, run.error) == ("failed", HELD_TOO_LONG)
        await fl.it.stub.Resume(pb.ResumeRequest())
        item = await fl.settled(item_id)
        assert (item.state, item.attempt) == (SUCCEEDED, 1)


async def is_paused(fl):
    return (await fl.it.stub.GetStatus(pb.GetStatusRequest())).paused


async def test_a_cancelled_item_is_dead_with_the_reason_and_not_tried_again(tmp_path):
    async with fleet(tmp_path) as fl, fl.it.agentd():
        fl.it.model.may_answer.clear()
        item_id = await fl.submit()
        await fl.it.asked()
        (run,) = (await fl.it.stub.Cancel(pb.CancelRequest(run_id=item_id, reason="enough"), timeout=10)).runs
        assert run.state == run_pb2.RUN_STATE_CANCELED
        item = await fl.settled(item_id)
        assert item.state == DEAD
        assert "enough" in item.failures[-1].error


async def test_a_run_that_fails_is_tried_again_and_says_why(tmp_path):
    async with fleet(tmp_path) as fl, fl.it.agentd():
        fl.it.model.status = 500
        item_id = await fl.submit(max_attempts=2)
        item = await fl.settled(item_id)
        assert (item.state, item.attempt) == (DEAD, 2)
        assert "HTTP 500" in item.failures[-1].error


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"message": {"content": None, "refusal": "I will not"}}, "refused"),
        ({"message": {"content": "half"}, "finish_reason": "length"}, "longer"),
        (None, "budget"),
    ],
)
async def test_what_no_retry_can_help_is_not_tried_again(tmp_path, choice, said):
    async with fleet(tmp_path) as fl, fl.it.agentd():
        fl.it.model.choice = choice
        if choice is None:
            fl.it.model.status, fl.it.model.code = 429, "budget_exceeded"
        item = await fl.settled(await fl.submit(max_attempts=3))
        assert (item.state, item.attempt) == (DEAD, 1)
        assert said in item.failures[-1].error or choice is None
        assert len(fl.it.model.asked) == 1


async def test_an_item_waits_until_there_is_a_budget_again(tmp_path):
    async with fleet(tmp_path) as fl, fl.it.agentd():
        model = fl.it.model
        model.status, model.code, model.retry_after = 429, "insufficient_quota", "3600"
        item_id = await fl.submit(max_attempts=3)

        async def failed() -> work_pb2.Item | None:
            item = await fl.item(item_id)
            return item if item.failures else None

        item = await until(failed)
        assert (item.state, item.attempt) == (work_pb2.WORK_STATE_DELAYED, 1)
        assert item.failures[0].error.startswith("exhausted_tokens: HTTP 429: no")
        assert timedelta(minutes=55) < item.ready_in.ToTimedelta() <= timedelta(hours=1)


async def test_an_item_that_is_no_text_fails_for_good_and_costs_no_run(tmp_path):
    async with fleet(tmp_path) as fl, fl.it.agentd():
        item_id = await fl.submit(b"\xff\xfe")
        assert (await fl.settled(item_id)).state == DEAD
        assert fl.it.model.asked == []


async def test_a_drain_finishes_what_is_begun_and_gives_the_rest_back(tmp_path):
    async with fleet(tmp_path, slots=2) as fl, fl.it.agentd() as agentd:
        fl.it.model.may_answer.clear()
        ids = [await fl.submit(), await fl.submit()]
        await fl.it.asked(2)
        third = await fl.submit()
        request = pb.DrainRequest()
        request.deadline.FromMilliseconds(500)
        await fl.it.stub.Drain(request)
        async with connect(fl.address, fl.it.mesh.identity("agent/worker/uid-2")) as other:
            back: set[str] = set()
            while len(back) < 3:
                back |= {task.id for task in await other.claim([QUEUE], wait=timedelta(seconds=10))}
            assert back == {*ids, third}
        assert {(await fl.item(each)).attempt for each in ids} == {1}
        async with asyncio.timeout(20):
            assert await agentd.wait() == 0


async def test_an_agent_that_is_told_to_end_by_somebody_else_is_given_nothing_more(tmp_path):
    async with fleet(tmp_path) as fl, fl.it.agentd() as agentd:
        fl.it.model.may_answer.clear()
        item_id = await fl.submit()
        await fl.it.asked()
        agentd.terminate()
        await until(lambda: is_draining(fl))
        later = await fl.submit()
        fl.it.model.may_answer.set()
        assert (await fl.settled(item_id)).state == SUCCEEDED
        async with asyncio.timeout(20):
            assert await agentd.wait() == 0
            await fl.it.bridge.agent.ended.wait()
        assert (await fl.item(later)).state == work_pb2.WORK_STATE_READY


async def is_draining(fl):
    return (await fl.it.stub.GetStatus(pb.GetStatusRequest())).draining


async def test_an_agent_of_a_shard_is_given_items_of_that_shard(tmp_path):
    async with fleet(tmp_path, shards=2, shard_index=1) as fl:
        others, its_own = await fl.submit(shard_key="a"), await fl.submit(shard_key="b")
        assert ((await fl.item(others)).shard, (await fl.item(its_own)).shard) == (0, 1)
        async with fl.it.agentd():
            assert (await fl.settled(its_own)).state == SUCCEEDED
        assert (await fl.item(others)).state == work_pb2.WORK_STATE_READY
