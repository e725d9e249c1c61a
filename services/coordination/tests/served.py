"""Coordination over a store in memory, behind a real mTLS server on loopback, and callers of every role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from google.protobuf.duration_pb2 import Duration

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError
from libs.rpc.client import Channel
from libs.rpc.server import Serving
from libs.testing.mesh import Mesh

from ..server import Coordination
from ..store import Store, Wake
from ..store.memory import MemoryStore
from ..waiting import Waiting
from .conftest import running, until

FRONTS = ("h2corn", "grpcio")
SERVICE = "/agentctl.coordination.v1.CoordinationService/"
QUEUE = "demo/docs"
AGENT = "agent/docs/uid-1"  # of the fleet that QUEUE belongs to
TWIN = "agent/docs/uid-2"  # another pod of it
ROOT = "administrator"


def seconds(value: float) -> Duration:
    whole = int(value)
    return Duration(seconds=whole, nanos=round((value - whole) * 1e9))


def work(payload: bytes = b"work", **fields: Any) -> work_pb2.WorkItem:
    """An item with an id of its own."""
    return work_pb2.WorkItem(**{"id": str(uuid4()), "payload": payload, **fields})


def lease(grant: work_pb2.Grant) -> work_pb2.Lease:
    return work_pb2.Lease(item_id=grant.item_id, token=grant.token)


def ack(grant: work_pb2.Grant, result: bytes = b"", **fields: Any) -> pb.Ack:
    return pb.Ack(item_id=grant.item_id, token=grant.token, result=result, **fields)


@dataclass
class Plane:
    """A server with its store, and stubs to call it by."""

    mesh: Mesh
    served: Serving
    store: Store
    waiting: Waiting
    servicer: Coordination
    _stack: AsyncExitStack
    _channels: dict[tuple[str, str], Channel] = field(default_factory=dict)

    async def channel(self, role: str = "user", namespace: str = "demo") -> Channel:
        """A channel in that role; one a role."""
        if (known := self._channels.get((role, namespace))) is not None:
            return known
        dialled = self.mesh.dial_as(role, self.served, namespace=namespace, own_connection=True)
        channel = await self._stack.enter_async_context(dialled)
        self._channels[role, namespace] = channel
        return channel

    async def stub(self, role: str = "user", namespace: str = "demo") -> Any:
        return pb_grpc.CoordinationServiceStub(await self.channel(role, namespace))

    # The verbs in their shortest form.

    async def submit(self, *items: work_pb2.WorkItem, queue: str = QUEUE, role: str = "user") -> list[str]:
        """Submit items, all of which must be accepted; their ids."""
        stub = await self.stub(role)
        answer = await stub.Submit(pb.SubmitRequest(queue=queue, items=items or [work()]))
        assert {verdict.status for verdict in answer.verdicts} == {pb.SUBMIT_STATUS_ACCEPTED}
        return [verdict.item_id for verdict in answer.verdicts]

    async def claim(self, *, role: str = AGENT, wait: float = 0, **fields: Any) -> list[work_pb2.Grant]:
        stub = await self.stub(role)
        request = pb.ClaimRequest(**{"queues": [QUEUE], **fields})
        if wait:
            request.wait.CopyFrom(seconds(wait))
        return list((await stub.Claim(request)).grants)

    async def take(self, **fields: Any) -> work_pb2.Grant:
        """Claim one item, which must be there."""
        (grant,) = await self.claim(**fields)
        return grant

    async def ack(
        self, grant: work_pb2.Grant, result: bytes = b"", *, role: str = AGENT, **fields: Any
    ) -> pb.LeaseVerdict:
        stub = await self.stub(role)
        request = pb.AckRequest(acks=[ack(grant, result, **fields)])
        verdict: pb.LeaseVerdict = (await stub.Ack(request)).verdicts[0]
        return verdict

    async def fail(self, grant: work_pb2.Grant, *, role: str = AGENT, **fields: Any) -> pb.LeaseVerdict:
        stub = await self.stub(role)
        failure = pb.LeaseFailure(item_id=grant.item_id, token=grant.token, error="boom", **fields)
        verdict: pb.LeaseVerdict = (await stub.Fail(pb.FailRequest(failures=[failure]))).verdicts[0]
        return verdict

    async def dead(self, **fields: Any) -> str:
        """The id of a new item that died of a terminal error. The queue must be empty else."""
        (id,) = await self.submit(work(**fields))
        verdict = await self.fail(await self.take(), retryable=False)
        assert verdict.state == work_pb2.WORK_STATE_DEAD
        return id

    async def configure(self, queue: str = QUEUE, **policy: Any) -> work_pb2.Queue:
        stub = await self.stub(ROOT)
        request = pb.ConfigureQueueRequest(queue=queue, policy=work_pb2.QueuePolicy(**policy))
        configured: work_pb2.Queue = (await stub.ConfigureQueue(request)).queue
        return configured

    async def item(self, id: str) -> work_pb2.Item:
        stub = await self.stub(ROOT)
        item: work_pb2.Item = (await stub.GetItems(pb.GetItemsRequest(item_ids=[id]))).items[0]
        return item

    async def queue(self, name: str = QUEUE) -> work_pb2.Queue:
        stub = await self.stub(ROOT)
        queue: work_pb2.Queue = (await stub.GetQueues(pb.GetQueuesRequest(queues=[name]))).queues[0]
        return queue

    async def everything(self) -> list[work_pb2.Queue]:
        """All queues without what moves by itself."""
        stub = await self.stub(ROOT)
        queues = list((await stub.GetQueues(pb.GetQueuesRequest())).queues)
        for queue in queues:
            queue.ClearField("oldest_ready_age")
            for rate in ("submitted_per_second", "granted_per_second", "settled_per_second"):
                queue.ClearField(rate)
        return queues

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """What is done inside must change nothing."""
        before = await self.everything()
        yield
        assert await self.everything() == before

    async def parked(self, count: int, queue: str = QUEUE) -> None:
        """Return once so many claims are parked."""

        async def look() -> bool:
            return self.waiting.parked(queue) == count

        await until(look)

    def claiming(
        self, role: str = AGENT, wait: float = 30, **fields: Any
    ) -> asyncio.Task[list[work_pb2.Grant]]:
        """A claim that goes on beside us."""
        return asyncio.create_task(self.claim(role=role, wait=wait, **fields))


@asynccontextmanager
async def in_memory(wake: Wake) -> AsyncIterator[Store]:
    async with running(MemoryStore(wake, epoch=0)) as store:
        yield store


@asynccontextmanager
async def plane(
    folder: Path,
    front: str,
    open_store: Callable[[Wake], AbstractAsyncContextManager[Store]] = in_memory,
    waiting: Waiting | None = None,
) -> AsyncIterator[Plane]:
    """A plane that is up while the block runs."""
    async with AsyncExitStack() as clients, draining(folder, front, clients, open_store, waiting) as plane_:
        yield plane_


@asynccontextmanager
async def draining(
    folder: Path,
    front: str,
    clients: AsyncExitStack,
    open_store: Callable[[Wake], AbstractAsyncContextManager[Store]] = in_memory,
    waiting: Waiting | None = None,
) -> AsyncIterator[Plane]:
    """A plane that ends with the block, while its clients end with that stack."""
    waiting = waiting or Waiting()
    mesh = Mesh(folder)
    async with open_store(waiting.wake) as store, anyio.create_task_group() as tasks:

        def background(coroutine: Coroutine[object, object, None]) -> None:
            tasks.start_soon(_finish, coroutine)

        servicer = Coordination(store, waiting, background)
        async with mesh.serve(
            lambda server: pb_grpc.add_CoordinationServiceServicer_to_server(servicer, server),
            front=front,
            on_drain=[waiting.drain],
        ) as served:
            yield Plane(mesh, served, store, waiting, servicer, clients)


async def _finish(coroutine: Coroutine[object, object, None]) -> None:
    await coroutine


@asynccontextmanager
async def refused(field: str) -> AsyncIterator[None]:
    """The block must be refused because of that field and no other."""
    with pytest.raises(InvalidError) as raised:
        yield
    assert list(raised.value.violations) == [field]
    assert field in str(raised.value)
