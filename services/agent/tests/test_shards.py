"""An agent of one shard, against a real coordination service."""

from __future__ import annotations

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import QueueInUseError
from libs.exits import Exit
from libs.work import Shard

from .fakes import Engine, Turns
from .test_scale_in import QUEUE, READY, SUCCEEDED, Fleet, fleet

SHARD_OF = {"a": 0, "b": 1}  # FNV-1a modulo 2


async def divide(it: Fleet, shards: int) -> int:
    """The epoch."""
    policy = work_pb2.QueuePolicy(shards=work_pb2.Sharding(count=shards))
    request = pb.ConfigureQueueRequest(queue=QUEUE, policy=policy)
    return (await it.client.stub.ConfigureQueue(request)).queue.policy.shards.epoch


async def test_it_does_the_items_of_its_shard_and_no_others(tmp_path):
    async with fleet(tmp_path) as it:
        epoch = await divide(it, 2)
        ids = [(await it.submit(key), shard) for key, shard in SHARD_OF.items() for _ in range(3)]
        async with it.agent(Engine(), shard=Shard(1, 2, epoch)):
            for id, shard in ids:
                if shard == 1:
                    await it.until(id, SUCCEEDED)
        states = {(shard, (await it.item(id)).state) for id, shard in ids}
        assert states == {(0, READY), (1, SUCCEEDED)}


async def test_when_the_queue_is_divided_anew_after_what_it_has_is_done_it_stays_without_work(tmp_path):
    turns = Turns(1)
    async with fleet(tmp_path) as it:
        epoch = await divide(it, 2)
        held = await it.submit("b")
        async with it.agent(Engine(turns), slots=2, shard=Shard(1, 2, epoch)) as (agent, life):
            await turns.until(1)
            with pytest.raises(QueueInUseError):
                await divide(it, 3)
            turns.go.release()
            await it.until(held, SUCCEEDED)
            assert (await it.item(held)).attempt == 1
            later_epoch = await divide(it, 3)
            assert later_epoch > epoch
            later = await it.submit("b")
            await agent.ready()
            assert not life.done()
        assert life.result() is Exit.OK
        assert await it.is_handed_back(later)
        async with it.agent(Engine(), shard=Shard((await it.item(later)).shard, 3, later_epoch)):
            await it.until(later, SUCCEEDED)
