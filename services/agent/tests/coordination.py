"""A coordination service with one queue in a list, enough for an agent: it records what becomes of items."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import MeshError

LEASE_SECONDS = 30


def queue(
    *payloads: bytes, refusal: MeshError | None = None, trace: dict[str, str] | None = None
) -> Coordination:
    """One that has these items."""
    return Coordination(list(payloads), refusal, trace or {})  # type: ignore[abstract]  # the rest is not called


@dataclass
class Coordination(pb_grpc.CoordinationServiceServicer):
    """Grants each payload once. `acked`, `failed` and `released` are by item id: its place in `payloads`."""

    payloads: list[bytes]
    refusal: MeshError | None = None
    trace: dict[str, str] = field(default_factory=dict)
    granted: int = 0
    acked: dict[str, pb.Ack] = field(default_factory=dict)
    failed: dict[str, pb.LeaseFailure] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    given_back: list[tuple[str, str, int]] = field(default_factory=list)
    """Namespace and pod of each ReleaseWorker, and how many items had been granted by then."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def settled(self, count: int) -> None:
        """Returns when so many items were acked, failed or released."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: self.settled_now() >= count)

    def settled_now(self) -> int:
        """How many items were acked, failed or released."""
        return len(self.acked) + len(self.failed) + len(self.released)

    async def GetQueues(self, request, context):
        return pb.GetQueuesResponse()

    async def ReleaseWorker(self, request, context):
        self.given_back.append((request.namespace, request.pod_uid, self.granted))
        return pb.ReleaseWorkerResponse(released_count=1)

    async def Claim(self, request, context):
        if self.refusal:
            raise self.refusal
        grants = self._grants(request.max_items or 1)
        if not grants:
            await asyncio.sleep(request.wait.ToTimedelta().total_seconds())
        return pb.ClaimResponse(grants=grants)

    async def Renew(self, request, context):
        verdict = pb.LeaseVerdict(status=pb.LEASE_STATUS_OK)
        verdict.expires_in.FromSeconds(LEASE_SECONDS)
        return pb.RenewResponse(verdicts=[verdict] * len(request.leases))

    async def Ack(self, request, context):
        self.acked |= {ack.item_id: ack for ack in request.acks}
        response = pb.AckResponse(verdicts=await self._ok(len(request.acks)))
        if request.HasField("claim_next"):
            response.claim.CopyFrom(pb.ClaimResponse(grants=self._grants(request.claim_next.max_items or 1)))
        return response

    async def Fail(self, request, context):
        self.failed |= {failure.item_id: failure for failure in request.failures}
        return pb.FailResponse(verdicts=await self._ok(len(request.failures)))

    async def Release(self, request, context):
        self.released |= {lease.item_id for lease in request.leases}
        return pb.ReleaseResponse(verdicts=await self._ok(len(request.leases)))

    async def _ok(self, count: int) -> list[pb.LeaseVerdict]:
        async with self.changed:
            self.changed.notify_all()
        return [pb.LeaseVerdict(status=pb.LEASE_STATUS_OK)] * count

    def _grants(self, most: int) -> list[work_pb2.Grant]:
        begin = self.granted
        self.granted = min(begin + most, len(self.payloads))
        return [self._grant(place) for place in range(begin, self.granted)]

    def _grant(self, place: int) -> work_pb2.Grant:
        grant = work_pb2.Grant(
            item_id=str(place),
            token=1,
            attempt=1,
            max_attempts=3,
            payload=self.payloads[place],
            trace_context=self.trace,
        )
        grant.expires_in.FromSeconds(LEASE_SECONDS)
        return grant
