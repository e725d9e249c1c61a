"""A memory store that was killed has forgotten everything but this: tokens grow, and no old lease counts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.ids import new_id

from ..channel import Target, connected
from ..tally import Violations
from .plan import NAMESPACE
from .replica import Replica

_QUEUE = f"{NAMESPACE}/restart"
_ITEMS = 100


async def restart(server: Replica, target: Target) -> Violations:
    """Grants of a server, the same server killed and started, and what it then says of them."""
    found = Violations()
    items = [work_pb2.WorkItem(id=new_id(), payload=b"restart") for _ in range(_ITEMS)]
    async with connected(target) as channel:
        old = await _granted(pb_grpc.CoordinationServiceStub(channel), items)
    await server.kill()
    await server.start()
    async with connected(target) as channel:
        stub = pb_grpc.CoordinationServiceStub(channel)
        await _expect_lost(stub, old, found)
        new = {lease.item_id: lease.token for lease in await _granted(stub, items)}
        for lease in old:
            if new.get(lease.item_id, 0) <= lease.token:
                found.note("restart: a token did not grow", lease.item_id)
        await _expect_lost(stub, old, found)
    return found


async def _granted(
    stub: pb_grpc.CoordinationServiceAsyncStub, items: Sequence[work_pb2.WorkItem]
) -> list[work_pb2.Lease]:
    await stub.Submit(pb.SubmitRequest(queue=_QUEUE, items=items))
    claim = pb.ClaimRequest(queues=[_QUEUE], max_items=len(items), request_id=uuid.uuid4().hex)
    answer = await stub.Claim(claim)
    return [work_pb2.Lease(item_id=grant.item_id, token=grant.token) for grant in answer.grants]


async def _expect_lost(
    stub: pb_grpc.CoordinationServiceAsyncStub, leases: Sequence[work_pb2.Lease], found: Violations
) -> None:
    renewed = await stub.Renew(pb.RenewRequest(leases=leases))
    acks = [pb.Ack(item_id=lease.item_id, token=lease.token, result=b"old") for lease in leases]
    acked = await stub.Ack(pb.AckRequest(acks=acks))
    for verb, verdicts in (("Renew", renewed.verdicts), ("Ack", acked.verdicts)):
        for lease, verdict in zip(leases, verdicts, strict=True):
            if verdict.status != pb.LEASE_STATUS_LOST:
                found.note(f"restart: {verb} of an old lease was not LOST", lease.item_id)
