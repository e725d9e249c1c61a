"""A holder who comes back when another has his items: none of his old leases counts, and the new ones settle.

The workers of a run meet that by chance. Here each step waits for the one before, by what the servers say.
"""

from __future__ import annotations

import uuid

from google.protobuf.duration_pb2 import Duration

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.ids import new_id

from ..channel import Target, connected
from ..tally import Violations
from .plan import NAMESPACE

_QUEUE = f"{NAMESPACE}/late"
_ITEMS = 50
_SHORT, _LONG = Duration(seconds=1), Duration(seconds=600)  # leases: one to lose, one that outlasts all this
_WAIT = Duration(seconds=20)  # for what runs out after a second


async def late(old: Target, new: Target) -> Violations:
    """Grants to `old` that run out and go to `new`, and what the servers then say to both."""
    found = Violations()
    async with connected(old) as channel, connected(new) as other:
        loser, holder = (pb_grpc.CoordinationServiceStub(each) for each in (channel, other))
        items = [work_pb2.WorkItem(id=new_id(), payload=b"late") for _ in range(_ITEMS)]
        await loser.Submit(pb.SubmitRequest(queue=_QUEUE, items=items))
        lost = await _granted(loser, _SHORT)
        held: dict[str, int] = {}
        while lost.keys() - held.keys():
            granted = await _granted(holder, _LONG)
            if not granted:
                found.note("late: a lease that ran out was not granted again")
                break
            held |= granted
        leases = [work_pb2.Lease(item_id=item, token=token) for item, token in lost.items() if item in held]
        acks = [pb.Ack(item_id=lease.item_id, token=lease.token, result=b"old") for lease in leases]
        failures = [pb.LeaseFailure(item_id=lease.item_id, token=lease.token) for lease in leases]
        for verb, answer in (
            ("RENEW", await loser.Renew(pb.RenewRequest(leases=leases))),
            ("FAIL", await loser.Fail(pb.FailRequest(failures=failures))),
            ("RELEASE", await loser.Release(pb.ReleaseRequest(leases=leases))),
            ("ACK", await loser.Ack(pb.AckRequest(acks=acks))),
        ):
            for lease, verdict in zip(leases, answer.verdicts, strict=True):
                if verdict.status != pb.LEASE_STATUS_LOST:
                    found.note(f"a lost lease was honoured by {verb}", f"late: {lease.item_id}")
        acks = [pb.Ack(item_id=item, token=token, result=b"new") for item, token in held.items()]
        settled = await holder.Ack(pb.AckRequest(acks=acks))
        for ack, verdict in zip(acks, settled.verdicts, strict=True):
            if verdict.status != pb.LEASE_STATUS_OK:
                found.note("a live lease was refused", f"late: {ack.item_id}")
        told = await holder.GetItems(pb.GetItemsRequest(item_ids=list(held)))
        for item in told.items:
            if item.result != b"new":
                found.note("another result than the one acked", f"late: {item.id}")
    return found


async def _granted(stub: pb_grpc.CoordinationServiceAsyncStub, lease: Duration) -> dict[str, int]:
    claim = pb.ClaimRequest(
        queues=[_QUEUE], max_items=_ITEMS, wait=_WAIT, lease=lease, request_id=uuid.uuid4().hex
    )
    return {grant.item_id: grant.token for grant in (await stub.Claim(claim)).grants}
