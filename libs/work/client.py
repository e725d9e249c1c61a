"""The verbs of coordination, coalesced over one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError, MeshError, UnavailableError
from libs.identity import Identity

from .claims import ClaimDesk, Options, Shard
from .coalesce import TRANSIENT, Call, Coalescer
from .item import MAX_ENTRIES, MAX_REQUEST, Submission, Work, check_length, duration
from .keeper import Keeper
from .parking import Parking
from .results import Results
from .task import Lease, Renewal, Task, clock, seconds
from .wire import (
    ack_request,
    ack_to_pb,
    claim_request,
    cut,
    fail_request,
    lease_error_of,
    lease_to_pb,
    raise_for,
    release_request,
    renew_request,
    split,
    submission_of,
    submit_request,
)

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub

_SubmitVerdicts = list[pb.SubmitVerdict]
_LeaseVerdicts = list[pb.LeaseVerdict]

_LONGEST_WAIT = timedelta(seconds=60)


@asynccontextmanager
async def connect(
    address: str,
    identity: Identity,
    *,
    timeout: float = 10.0,  # noqa: ASYNC109 - of each RPC, not of this
) -> AsyncIterator[Client]:
    """A client of the coordination service at `address` (host:port). `timeout` bounds each RPC that does
    not wait by itself.
    """
    async with Parking(address, identity, timeout) as parking:
        client = Client(parking, timeout)
        try:
            yield client
        finally:
            await client.close()


class Acked(NamedTuple):
    """What became of an ack (None: it stands), and the task that was claimed with it."""

    error: MeshError | None
    next: Task | None


class Client:
    """Verbs for one item or many; safe to share between all tasks of an event loop. Use `connect`."""

    def __init__(self, parking: Parking, timeout: float) -> None:
        self._parking = parking
        self._timeout = timeout
        stub = parking.stub
        self._submit: Coalescer[str, work_pb2.WorkItem, _SubmitVerdicts] = Coalescer(
            submit_request, self._sender(stub.Submit), split
        )
        self._claim: Coalescer[Options, int, list[Task] | None] = Coalescer(
            claim_request, self._sender(stub.Claim), self._split_claim
        )
        self._renew: Coalescer[timedelta | None, work_pb2.Lease, _LeaseVerdicts] = Coalescer(
            renew_request, self._sender(stub.Renew), split
        )
        self._ack: Coalescer[Options | None, pb.Ack, tuple[_LeaseVerdicts, Task | None]] = Coalescer(
            ack_request, self._sender(stub.Ack), self._split_ack
        )
        self._fail: Coalescer[None, pb.LeaseFailure, _LeaseVerdicts] = Coalescer(
            fail_request, self._sender(stub.Fail), split
        )
        self._release: Coalescer[str, work_pb2.Lease, _LeaseVerdicts] = Coalescer(
            release_request, self._sender(stub.Release), split
        )
        self._desk = ClaimDesk(self._park, self._give_back)
        self.keeper = Keeper(self._renew_all)
        self.refusals: dict[Options, str] = {}
        """Why the queue is divided otherwise than some claims say, as the last of them was told."""

    @property
    def stub(self) -> CoordinationServiceAsyncStub:
        """The raw stub, for the verbs that have no method here."""
        return self._parking.stub

    @property
    def parked_stub(self) -> CoordinationServiceAsyncStub:
        """The raw stub on a connection of its own, for calls that wait: WatchQueues and the like."""
        return self._parking.parked_stub

    async def submit(self, queue: str, work: Work) -> Submission:
        """Add an item. QueueFullError, ItemIdConflictError; after UnavailableError repeat it with the same
        `work`.
        """
        item = work.to_pb()
        (verdict,) = await self._submit.call(queue, [item], item.ByteSize() + 8)
        outcome = submission_of(verdict)
        if isinstance(outcome, MeshError):
            raise outcome
        return outcome

    async def submit_all(self, queue: str, works: Iterable[Work]) -> list[Submission | MeshError]:
        """Add many, in order; what became of each, as a value."""
        outcomes: list[Submission | MeshError] = []
        chunks: list[tuple[list[int], asyncio.Future[_SubmitVerdicts]]] = []
        places: list[int] = []
        items: list[work_pb2.WorkItem] = []
        size = 0

        def leave() -> None:
            nonlocal places, items, size
            if items:
                chunks.append((places, self._submit.call(queue, items, size)))
                places, items, size = [], [], 0

        for place, work in enumerate(works):
            try:
                item = work.to_pb()
            except InvalidError as error:
                outcomes.append(error)
                continue
            outcomes.append(UnavailableError())
            more = item.ByteSize() + 8
            if len(items) == MAX_ENTRIES or size + more > MAX_REQUEST:
                leave()
            places.append(place)
            items.append(item)
            size += more
        leave()
        try:
            for chunk, answer in chunks:
                try:
                    verdicts = await answer
                except MeshError as error:
                    for place in chunk:
                        outcomes[place] = error
                else:
                    for place, verdict in zip(chunk, verdicts, strict=True):
                        outcomes[place] = submission_of(verdict)
        finally:
            for _, answer in chunks:
                answer.cancel()
        return outcomes

    async def claim(
        self,
        queues: Sequence[str],
        *,
        max_items: int = 1,
        wait: timedelta = timedelta(0),
        lease: timedelta | None = None,
        dedupe_key: str = "",
        shard: Shard | None = None,
    ) -> list[Task]:
        """Lease 1..max_items ready items, waiting up to `wait` for the first; [] when there was none.
        StaleShardError, ShardRequiredError while the queue is divided otherwise.

        A claim whose outcome is unknown is replayed as the very same request, while anybody waits for it
        (`wait`, or the client's timeout without one); then UnavailableError.
        """
        wrong: dict[str, str] = {}
        if not 1 <= max_items <= MAX_ENTRIES:
            wrong["max_items"] = f"1..{MAX_ENTRIES}"
        check_length(wrong, "wait", wait, _LONGEST_WAIT)
        check_length(wrong, "lease", lease, timedelta(days=1))
        if wrong:
            raise InvalidError(violations=wrong)
        options = Options(tuple(queues), lease, dedupe_key, shard)
        if wait:
            return await self._desk.claim(options, max_items, wait.total_seconds())
        until = clock() + self._timeout
        while True:
            answer = self._claim.call(options, range(max_items), 0, until)
            try:
                tasks = await answer
            except asyncio.CancelledError:
                if not answer.cancelled() and answer.exception() is None:
                    self._desk.offer(options, answer.result() or [])
                raise
            if tasks is not None:
                return tasks

    async def renew(self, lease: Lease, length: timedelta | None = None) -> Renewal:
        """Prolong a live lease (and move its deadline) to `length` from now, or the queue's default.
        LeaseLostError, SettledError.
        """
        sent = clock()
        (verdict,) = await self._renew.call(length, [lease_to_pb(lease)], 64)
        raise_for(verdict)
        lease.deadline = sent + seconds(verdict.expires_in)
        return Renewal(timedelta(seconds=seconds(verdict.expires_in)), verdict.cancel_requested)

    async def ack(self, lease: Lease, result: bytes = b"", content_type: str = "") -> None:
        """Settle an item as done. Replayed while the lease lives. LeaseLostError, SettledError."""
        entry = ack_to_pb(lease, result, content_type)
        verdicts, _ = await self._ack.call(None, [entry], len(result) + 192, lease.deadline)
        raise_for(verdicts[0])

    async def ack_and_claim(self, task: Task, result: bytes, content_type: str, options: Options) -> Acked:
        """Settle an item as done and claim one more in the same round trip, without waiting. Errors of
        the ack are a value, since the claim may have worked all the same.
        """
        entry = ack_to_pb(task, result, content_type)
        answer = self._ack.call(options, [entry], len(result) + 192, task.deadline)
        try:
            verdicts, next = await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None and (next := answer.result()[1]):
                self._desk.offer(options, [next])
            raise
        except TRANSIENT:
            raise
        except MeshError:  # what is wrong with the claim must not keep the ack from standing
            await self.ack(task, result, content_type)
            return Acked(None, None)
        return Acked(lease_error_of(verdicts[0]), next)

    async def fail(
        self, lease: Lease, error: str, *, retryable: bool = True, retry_after: timedelta | None = None
    ) -> None:
        """End a lease with an error (cut to 1 KiB); the attempt counts. As `ack`."""
        wrong: dict[str, str] = {}
        check_length(wrong, "retry_after", retry_after, timedelta(days=1))
        if wrong:
            raise InvalidError(violations=wrong)
        entry = pb.LeaseFailure(item_id=lease.id, token=lease.token, error=cut(error), retryable=retryable)
        if retry_after is not None:
            entry.retry_after.CopyFrom(duration(retry_after))
        (verdict,) = await self._fail.call(None, [entry], entry.ByteSize() + 8, lease.deadline)
        raise_for(verdict)

    async def release(self, lease: Lease, reason: str = "") -> None:
        """Give an item back; the attempt does not count. As `ack`."""
        (verdict,) = await self._release.call(cut(reason), [lease_to_pb(lease)], 64, lease.deadline)
        raise_for(verdict)

    def results(
        self,
        *,
        queue: str = "",
        group: str = "",
        ids: Sequence[str] = (),
        cursor: str = "",
        follow: bool = False,
    ) -> Results:
        """Iterate over settled items (pb Item without payload), each once, in settle order: of these ids
        (up to 1000; ends when each was seen), or of a queue or a group of it (ends when all that is known
        is settled, unless `follow`).
        """
        request = pb.WatchResultsRequest(queue=queue, group=group, cursor=cursor, follow=follow)
        return Results(self._parking, request, ids)

    async def close(self) -> None:
        """Give back what is not wanted any more; whoever still waits gets UnavailableError."""
        await self._desk.close()
        await self.keeper.close()
        await self._release.settle(2.0)
        for verb in (self._submit, self._claim, self._renew, self._ack, self._fail, self._release):
            await verb.close()

    # The RPCs

    def _sender(self, method: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda request: method(request, timeout=self._timeout)

    async def _park(self, request: pb.ClaimRequest) -> pb.ClaimResponse:
        async with self._parking.place() as stub:
            response: pb.ClaimResponse = await stub.Claim(
                request, timeout=seconds(request.wait) + self._timeout
            )
            return response

    async def _renew_all(self, length: timedelta | None, tasks: Sequence[Task]) -> list[pb.LeaseVerdict]:
        chunks = [
            self._renew.call(length, [lease_to_pb(task) for task in tasks[at : at + MAX_ENTRIES]], 0)
            for at in range(0, len(tasks), MAX_ENTRIES)
        ]
        return [verdict for chunk in chunks for verdict in await chunk]

    def _give_back(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            answer = self._release.call(
                "nobody waits for it any more", [lease_to_pb(task)], 64, task.deadline
            )
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _split_claim(
        self, options: Options, calls: list[Call[int, Any]], answer: pb.ClaimResponse, sent: float
    ) -> list[list[Task] | None]:
        """In order; None: the request was too large for one answer, there is more, ask again."""
        tasks = [Task.of(grant, sent + seconds(answer.waited)) for grant in answer.grants]
        cut = answer.more and len(tasks) > 0
        parts: list[list[Task] | None] = []
        for call in calls:
            want = 0 if call.answer.done() else len(call.entries)
            parts.append(None if cut and not tasks else tasks[:want])
            tasks = tasks[want:]
        if tasks:
            self._desk.offer(options, tasks)
        return parts

    def _split_ack(
        self,
        options: Options | None,
        calls: list[Call[pb.Ack, Any]],
        answer: pb.AckResponse,
        sent: float,
    ) -> list[tuple[_LeaseVerdicts, Task | None]]:
        verdicts = split(options, calls, answer, sent)
        if options is None:
            return [(part, None) for part in verdicts]
        granted = sent + seconds(answer.claim.waited)
        tasks = [Task.of(grant, granted) for grant in reversed(answer.claim.grants)]
        parts = [
            (part, tasks.pop() if tasks and not call.answer.done() else None)
            for call, part in zip(calls, verdicts, strict=True)
        ]
        if tasks:
            self._desk.offer(options, tasks)
        return parts
