"""After a step: do the server's books say what ours say?"""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import MeshError

from .channel import Target, connected
from .ledger import balance
from .tally import Step, Tally, Violations

_SAMPLE = 500
_DEADLINE = 60.0


async def audit(target: Target, step: Step, tallies: Sequence[Tally]) -> Violations:
    """Everything that is wrong with a step: what its processes noted, what does not balance between
    them, counters of the queue that disagree, and results that are not what was acked.
    """
    found = Violations()
    for tally in tallies:
        found.merge(tally.violations)
    books = balance([tally.ledger for tally in tallies], _SAMPLE)
    for line in books.violations:
        found.note("ledger", line)
    try:
        async with connected(target) as channel:
            stub = pb_grpc.CoordinationServiceStub(channel)
            answer = await stub.GetQueues(pb.GetQueuesRequest(queues=[step.queue]), timeout=_DEADLINE)
            _check_counters(answer.queues, books.accepted, books.acked, found)
            await _check_results(stub, books.sample, found)
    except MeshError as error:
        found.note("the server cannot be asked", f"{type(error).__name__} {error}")
    return found


def _check_counters(queues: Sequence[work_pb2.Queue], accepted: int, acked: int, found: Violations) -> None:
    if len(queues) != 1:
        found.note("GetQueues: queue missing")
        return
    queue = queues[0]
    expected = {
        "ready_count": 0,
        "delayed_count": 0,
        "blocked_count": 0,
        "leased_count": 0,
        "dead_count": 0,
        "submitted_total": accepted,
        "granted_total": acked,
        "settled_total": acked,
    }
    for name, wanted in expected.items():
        if (said := getattr(queue, name)) != wanted:
            found.note(f"GetQueues: {name}", f"{said} instead of {wanted}")


async def _check_results(
    stub: pb_grpc.CoordinationServiceAsyncStub, sample: Sequence[str], found: Violations
) -> None:
    seen: set[str] = set()
    if not sample:
        return
    async for message in stub.WatchResults(pb.WatchResultsRequest(item_ids=sample), timeout=_DEADLINE):
        for item in message.results:
            if item.id in seen:
                found.note("WatchResults: twice", item.id)
            seen.add(item.id)
            if item.state != work_pb2.WORK_STATE_SUCCEEDED or item.result != item.id.encode():
                found.note("WatchResults: another state or result", item.id)
    for item_id in set(sample) - seen:
        found.note("WatchResults: missing", item_id)
