"""Work that the dead hold comes back; what others hold stays theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.testing.ca import authority, identity
from libs.work import Client, Work, connect
from services.coordination.coordinating import coordinating
from services.coordination.settings import Settings

from ..leftover import give_back


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[dict[str, Client]]:
    """Of coordination: an administrator's, and those of two pods."""
    settings = Settings(
        store="memory", port=0, tls_dir=identity(authority(), tmp_path, "/cp/coordination").folder
    )
    paths = {
        "ann": "/user/ann",
        "first": "/ns/demo/agent/q/pod/first/u-1",
        "second": "/ns/demo/agent/q/pod/second/u-2",
    }
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(coordinating(settings))
        yield {
            name: await stack.enter_async_context(
                connect(served.address, identity(authority(), tmp_path, path))
            )
            for name, path in paths.items()
        }


async def claim(client: Client, queue: str, count: int) -> None:
    request = pb.ClaimRequest(queues=[queue], max_items=count, request_id=queue)
    assert len((await client.stub.Claim(request)).grants) == count


async def test_what_pods_hold_comes_back_and_what_a_person_holds_does_not(clients):
    ann = clients["ann"]
    for queue, count in (("demo/q", 3), ("demo/other", 2), ("demo/idle", 1)):
        for number in range(count):
            await ann.submit(queue, Work(payload=b"%d" % number))
    policy = work_pb2.QueuePolicy(agents=work_pb2.AgentList(names=["q"]))
    await ann.stub.ConfigureQueue(pb.ConfigureQueueRequest(queue="demo/other", policy=policy))
    for who, queue, count in (
        ("first", "demo/q", 1),
        ("second", "demo/q", 1),
        ("ann", "demo/q", 1),
        ("first", "demo/other", 2),
    ):
        await claim(clients[who], queue, count)
    assert await give_back(ann.stub) == 4
    request = pb.ListItemsRequest(queue="demo/q", states=[work_pb2.WORK_STATE_LEASED])
    assert [item.holder.rpartition("/")[2] for item in (await ann.stub.ListItems(request)).items] == ["ann"]
    assert await give_back(ann.stub) == 0
