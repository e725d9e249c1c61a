"""Work that agents of an earlier run still hold. They are dead: agents end with their plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.identity import Kind, Principal

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub

_PAGE = 1000


async def give_back(stub: CoordinationServiceAsyncStub) -> int:
    """Gives back, before any agent runs, what agents hold; how many items that were. The operator does it
    too for each end of a pod that it sees, but whoever was killed again at his start has not seen it."""
    released = 0
    for queue in (await stub.GetQueues(pb.GetQueuesRequest())).queues:
        if queue.leased_count:
            for pod in await _holders(stub, queue.name):
                request = pb.ReleaseWorkerRequest(
                    namespace=pod.namespace, pod_uid=pod.uid, reason="the plane was killed"
                )
                released += (await stub.ReleaseWorker(request)).released_count
    return released


async def _holders(stub: CoordinationServiceAsyncStub, queue: str) -> set[Principal]:
    request = pb.ListItemsRequest(queue=queue, states=[work_pb2.WORK_STATE_LEASED], page_size=_PAGE)
    found = set()
    while True:
        page = await stub.ListItems(request)
        found |= {Principal.parse(item.holder) for item in page.items if item.holder}
        if not page.next_page_token:
            return {holder for holder in found if holder.kind is Kind.AGENT}
        request.page_token = page.next_page_token
