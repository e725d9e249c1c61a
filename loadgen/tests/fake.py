"""A coordination service that is just enough, and can be told to cheat."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field

import grpc

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2


@dataclass
class FakeQueue:
    """Items in order, and what was counted."""

    ready: deque[work_pb2.WorkItem] = field(default_factory=deque)
    submitted: int = 0
    granted: int = 0
    settled: int = 0
    arrival: asyncio.Event = field(default_factory=asyncio.Event)


_LONGEST_WAIT = 0.3  # seconds; a claim may be answered early


@dataclass
class FakeCoordination(pb_grpc.CoordinationServiceServicer):
    """`cheat` names the lie that it tells once, after a hundred submits."""

    cheat: str = ""
    queues: dict[str, FakeQueue] = field(default_factory=lambda: defaultdict(FakeQueue))
    queue_of: dict[str, FakeQueue] = field(default_factory=dict)
    results: dict[str, bytes] = field(default_factory=dict)
    granted: int = 0

    def _lies(self, cheat: str) -> bool:
        if self.cheat == cheat and len(self.queue_of) > 10:  # some were honest; also on a slow machine
            self.cheat = ""
            return True
        return False

    async def Submit(self, request, context):
        verdicts = [self._submit(self.queues[request.queue], item) for item in request.items]
        if self._lies("time out"):  # when everything is done
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow")
        return pb.SubmitResponse(verdicts=verdicts)

    def _submit(self, queue, item):
        if self._lies("refuse"):
            return pb.SubmitVerdict(status=pb.SUBMIT_STATUS_FULL)
        if item.id not in self.queue_of:
            self.queue_of[item.id] = queue
            queue.submitted += 1
            if not self._lies("lose"):
                queue.ready.append(item)
                queue.arrival.set()
        return pb.SubmitVerdict(status=pb.SUBMIT_STATUS_ACCEPTED, item_id=item.id)

    async def Claim(self, request, context):
        if self._lies("deny"):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such queue")
        queue = self.queues[request.queues[0]]
        try:
            async with asyncio.timeout(min(request.wait.ToNanoseconds() / 1e9, _LONGEST_WAIT)):
                while not queue.ready:
                    queue.arrival.clear()
                    await queue.arrival.wait()
        except TimeoutError:
            pass
        return self._claim(request)

    def _claim(self, request):
        queue = self.queues[request.queues[0]]
        grants: list[work_pb2.Grant] = []
        while queue.ready and len(grants) < request.max_items:
            item = queue.ready.popleft()
            queue.granted += 1
            self.granted += 1
            payload = b"other" if self._lies("change") else item.payload
            grants.append(work_pb2.Grant(item_id=item.id, token=self.granted, payload=payload, attempt=1))
            if self._lies("twice"):
                queue.ready.append(item)
        return pb.ClaimResponse(grants=grants)

    async def Ack(self, request, context):
        verdicts = [self._ack(ack) for ack in request.acks]
        claim = self._claim(request.claim_next) if request.HasField("claim_next") else None
        return pb.AckResponse(verdicts=verdicts, claim=claim)

    def _ack(self, ack):
        if self._lies("not ours"):
            return pb.LeaseVerdict(status=pb.LEASE_STATUS_LOST)
        if ack.item_id not in self.results:
            self.queue_of[ack.item_id].settled += 1
        self.results[ack.item_id] = ack.result
        return pb.LeaseVerdict(status=pb.LEASE_STATUS_OK)

    async def GetQueues(self, request, context):
        name = request.queues[0]
        queue = self.queues[name]
        said = work_pb2.Queue(
            name=name,
            ready_count=len(queue.ready),
            leased_count=1 if self._lies("leased") else 0,
            submitted_total=queue.submitted,
            granted_total=queue.granted,
            settled_total=queue.settled,
        )
        return pb.GetQueuesResponse(queues=[said])

    async def WatchResults(self, request, context):
        items = [
            work_pb2.Item(id=item_id, state=work_pb2.WORK_STATE_SUCCEEDED, result=self.results[item_id])
            for item_id in request.item_ids
        ]
        yield pb.WatchResultsResponse(results=items)


def fake_coordination(cheat: str = "") -> FakeCoordination:
    """With `cheat`: lose, refuse, change, twice, not ours, leased, deny or time out."""
    return FakeCoordination(cheat)  # type: ignore[abstract]  # the other verbs stay UNIMPLEMENTED
