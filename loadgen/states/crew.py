"""Clients in this process that fill a queue and empty it, each call checked and kept in the ledger."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2

from ..audit import audit
from ..calls import StubVerbs
from ..channel import Target, connected
from ..ledger import Ledger, new_tag
from ..loops import Window
from ..tally import Mode, Step, Tally

_CONNECTIONS = 4
_LEASE = 120.0
_DEADLINE = 60.0
MOST = 1000  # items a request


@dataclass
class Crew:
    """So many logical clients on one queue; `tally` has what their calls took and what was wrong."""

    target: Target
    step: Step
    tally: Tally
    stub: pb_grpc.CoordinationServiceAsyncStub
    verbs: list[StubVerbs]
    _ids: Iterator[str]

    @property
    def accepted(self) -> int:
        return sum(self.tally.ledger.accepted)

    @property
    def acked(self) -> int:
        return sum(map(sum, self.tally.ledger.acked.values()))

    async def fill(self, count: int, batch: int = MOST) -> float:
        """Submits so many new items; the seconds it took."""
        sizes = _parts(count, batch)

        async def submit(verbs: StubVerbs) -> None:
            for size in sizes:  # all share one iterator
                await verbs.submit(list(itertools.islice(self._ids, size)))

        return await _timed(submit(verbs) for verbs in self.verbs)

    async def drain(self, count: int, batch: int = 100) -> float:
        """Claims and acks so many items that are ready; the seconds it took."""
        sizes = _parts(count, batch)

        async def work(verbs: StubVerbs) -> None:
            for size in sizes:
                while size > 0:
                    held = await verbs.claim(size)
                    await verbs.ack(held, 0)
                    size -= len(held) or size  # nothing within the wait: the books will tell

        return await _timed(work(verbs) for verbs in self.verbs)

    async def queue(self) -> work_pb2.Queue:
        """The server's numbers of the queue."""
        request = pb.GetQueuesRequest(queues=[self.step.queue])
        return (await self.stub.GetQueues(request, timeout=_DEADLINE)).queues[0]

    async def wrong_when_empty(self) -> list[str]:
        """What does not balance, when everything submitted was to be settled."""
        return (await audit(self.target, self.step, [self.tally])).lines()

    async def wrong_with_backlog(self) -> list[str]:
        """What does not balance, when the rest is to be ready."""
        queue = await self.queue()
        said = {
            "ready": (queue.ready_count, self.accepted - self.acked),
            "leased": (queue.leased_count, 0),
            "dead": (queue.dead_count, 0),
            "submitted": (queue.submitted_total, self.accepted),
            "granted": (queue.granted_total, self.acked),
            "settled": (queue.settled_total, self.acked),
        }
        for name, (theirs, ours) in said.items():
            if theirs != ours:
                self.tally.violations.note(f"GetQueues: {name}", f"{theirs} instead of {ours}")
        return self.tally.violations.lines()


@asynccontextmanager
async def crew(target: Target, clients: int, seconds: float, payload: int = 128) -> AsyncIterator[Crew]:
    """A crew on a queue of its own. TimeoutError in the block after so many seconds."""
    step = Step(
        Mode.BATCH,
        clients=clients,
        connections=min(clients, _CONNECTIONS),
        processes=1,
        payload=payload,
        lease=_LEASE,
        queue=f"load/state-{secrets.token_hex(4)}",
        tag=new_tag(),
    )
    tally = Tally(Ledger(step.tag, 0, payload))
    now = time.monotonic()
    window = Window(start=now, measure=now, end=now + seconds, give_up=now + seconds)
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connected(target)) for _ in range(step.connections)]
        verbs = [StubVerbs(step, channels[n % len(channels)], tally, window) for n in range(clients)]
        stub = pb_grpc.CoordinationServiceStub(channels[0])
        async with asyncio.timeout(seconds):
            yield Crew(target, step, tally, stub, verbs, tally.ledger.new_ids())


def _parts(count: int, size: int) -> Iterator[int]:
    return (min(size, count - at) for at in range(0, count, size))


async def _timed(loops: Iterator[Coroutine[None, None, None]]) -> float:
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop)
    return time.monotonic() - began
