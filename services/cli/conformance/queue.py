"""Coordination for claims: the plane's own, as a child process that keeps its work in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs import work
from libs.errors import UnavailableError

from .case import BrokenError, becomes
from .identities import AGENT, NAMESPACE, NEIGHBOUR, Minted
from .launching import Command, launched
from .world import World, free_port

_START_SECONDS = 20.0


class Queue:
    """One queue of it, as a producer and an administrator see it."""

    def __init__(self, client: work.Client, address: str, name: str) -> None:
        self._client = client
        self.address = address
        self.name = name

    async def divide(self, shards: int) -> int:
        """Into so many shards, or none; the epoch."""
        policy = work_pb2.QueuePolicy(shards=work_pb2.Sharding(count=shards))
        request = pb.ConfigureQueueRequest(queue=self.name, policy=policy)
        return (await self._client.stub.ConfigureQueue(request)).queue.policy.shards.epoch

    async def submit(self, payload: str, *, max_attempts: int = 3, shard_key: str = "") -> str:
        """The id of a new item; retries come fast."""
        fast = timedelta(milliseconds=50)
        item = work.Work(
            payload.encode(),
            max_attempts=max_attempts,
            backoff=work.Backoff(fast, fast),
            shard_key=shard_key,
        )
        return (await self._client.submit(self.name, item)).id

    async def item(self, id: str) -> work_pb2.Item:
        """As it is now."""
        found = await self._client.stub.GetItems(pb.GetItemsRequest(item_ids=[id]))
        return found.items[0]

    async def settled(self, id: str, *, seconds: float = 15.0) -> work_pb2.Item:
        """Once it is done or dead. BrokenError."""
        settled = (work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD, work_pb2.WORK_STATE_CANCELED)

        async def look() -> work_pb2.Item | None:
            item = await self.item(id)
            return item if item.state in settled else None

        found: work_pb2.Item = await becomes(look, "the item is not settled", seconds=seconds)
        return found


@asynccontextmanager
async def coordination(world: World) -> AsyncIterator[Queue]:
    """It runs while the block does, with an empty queue."""
    minted: Minted = world.minted
    address = f"127.0.0.1:{free_port()}"
    environment = {
        "AGENTCTL_TLS_DIR": str(minted.of("cp/coordination").folder),
        "COORDINATION_STORE": "memory",
        "COORDINATION_PORT": address.rpartition(":")[2],
        "COORDINATION_METRICS_PORT": "0",
    }
    program = Command((sys.executable, "-P", "-m", "services.coordination"))
    ours = ("COORDINATION_", "AGENTCTL_", "OTEL_")
    inherited = {name: value for name, value in world.environment.items() if not name.startswith(ours)}
    folder: Path = world.folder
    async with (
        launched(program, folder, environment, inherited=inherited) as process,
        work.connect(address, minted.of("administrator")) as client,
    ):
        queue = Queue(client, address, f"{NAMESPACE}/conformance")
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not await _answers(client, queue.name):
                    if process.has_ended:
                        raise BrokenError(f"our own coordination did not start{process.last_words()}")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise BrokenError(f"our own coordination did not answer{process.last_words()}") from error
        yield queue


async def _answers(client: work.Client, queue: str) -> bool:
    try:
        agents = work_pb2.AgentList(names=[AGENT, NEIGHBOUR])
        await client.stub.ConfigureQueue(
            pb.ConfigureQueueRequest(queue=queue, policy=work_pb2.QueuePolicy(agents=agents))
        )
    except UnavailableError:
        return False
    return True
