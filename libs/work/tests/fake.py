"""A coordination service in forty lines of state, with knobs to make it fail. Queues share one list."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import DeniedError, InvalidError, MeshError, UnavailableError
from libs.work import ShardRequiredError, StaleShardError

OK = pb.LEASE_STATUS_OK
LOST = pb.LEASE_STATUS_LOST


class FakeCoordination(pb_grpc.CoordinationServiceServicer):
    """What a test looks at and turns:

    `requests`: all that came, by verb. `down`: answer UNAVAILABLE. `lose_answers`: do it, then answer
    UNAVAILABLE, that many times. `running`: cleared, every call hangs. `lease`: seconds of a lease.
    `cap`: of the queue. `cancel_requested`: ids to tell of at renew. `refuse_payload`: malformed.
    `shards`: count and epoch.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.running = asyncio.Event()
        self.running.set()
        self.moved = asyncio.Condition()
        self.down = False
        self.claims_denied = False
        self.shards = (0, 0)
        self.lose_answers: Counter[str] = Counter()
        self.lease = 30.0
        self.cap = 1_000_000
        self.refuse_payload = b"never"
        self.cancel_requested: set[str] = set()
        self.ready: deque[work_pb2.WorkItem] = deque()
        self.items: dict[str, work_pb2.WorkItem] = {}
        self.held: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self.results: list[work_pb2.Item] = []
        self.granted: dict[str, list[work_pb2.Grant]] = {}
        self.failures: list[pb.LeaseFailure] = []
        self.released: list[str] = []
        self.break_stream_after = 0
        self._token = 0

    def of(self, verb: str) -> list[Any]:
        return [request for name, request in self.requests if name == verb]

    async def until(self, true: Any) -> None:
        """Until something of the server is as told."""
        async with asyncio.timeout(10), self.moved:
            await self.moved.wait_for(true)

    async def _enter(self, verb: str, request: Any) -> None:
        self.requests.append((verb, request))
        await self._notify()
        await self.running.wait()
        if self.down:
            raise UnavailableError("down")

    async def _notify(self) -> None:
        async with self.moved:
            self.moved.notify_all()

    async def _leave(self, verb: str, response: Any) -> Any:
        await self._notify()
        if self.lose_answers[verb] > 0:
            self.lose_answers[verb] -= 1
            raise UnavailableError("the answer was lost")
        return response

    async def Submit(self, request: pb.SubmitRequest, context: Any) -> Any:
        await self._enter("Submit", request)
        for n, item in enumerate(request.items):
            if item.payload == self.refuse_payload:
                raise InvalidError(violations={f"items[{n}].payload": "not this one"})
        verdicts = []
        for item in request.items:
            if len(self.items) >= self.cap:
                verdicts.append(
                    pb.SubmitVerdict(status=pb.SUBMIT_STATUS_FULL, depth=len(self.items), cap=self.cap)
                )
                continue
            known = self.items.setdefault(item.id, item)
            if known.payload != item.payload:
                verdicts.append(pb.SubmitVerdict(status=pb.SUBMIT_STATUS_ID_CONFLICT, item_id=item.id))
                continue
            if known is item:
                self.ready.append(item)
            verdicts.append(pb.SubmitVerdict(status=pb.SUBMIT_STATUS_ACCEPTED, item_id=item.id))
        return await self._leave("Submit", pb.SubmitResponse(verdicts=verdicts))

    async def Claim(self, request: pb.ClaimRequest, context: Any) -> Any:
        await self._enter("Claim", request)
        if self.claims_denied:
            raise DeniedError("not yours")
        self._check_shard(request)
        loop = asyncio.get_running_loop()
        began = loop.time()
        response = self._grant(request)
        wait = request.wait.ToTimedelta().total_seconds()
        if not response.grants and wait:
            try:
                async with asyncio.timeout(wait), self.moved:
                    await self.moved.wait_for(lambda: self.ready)
                    response = self._grant(request)
                    response.waited.FromMilliseconds(int((loop.time() - began) * 1000))
            except TimeoutError:
                pass
        return await self._leave("Claim", response)

    def _check_shard(self, request: pb.ClaimRequest) -> None:
        count, epoch = self.shards
        if not request.HasField("shard") and count:
            raise ShardRequiredError(f"{count} shards, epoch {epoch}")
        if request.HasField("shard") and (request.shard.count, request.shard.epoch) != self.shards:
            raise StaleShardError(f"{count} shards, epoch {epoch}")

    def _grant(self, request: pb.ClaimRequest) -> pb.ClaimResponse:
        known = self.granted.get(request.request_id, [])
        if not any(self.held.get(grant.item_id) == grant.token for grant in known):
            known = []
            while self.ready and len(known) < request.max_items:
                item = self.ready.popleft()
                self._token += 1
                self.held[item.id] = self._token
                self.attempts[item.id] += 1
                grant = work_pb2.Grant(
                    item_id=item.id,
                    token=self._token,
                    queue=request.queues[0],
                    attempt=self.attempts[item.id],
                    max_attempts=5,
                    payload=item.payload,
                    trace_context=item.trace_context,
                )
                grant.expires_in.FromMilliseconds(int(self.lease * 1000))
                known.append(grant)
            self.granted[request.request_id] = known
        return pb.ClaimResponse(grants=known, more=bool(self.ready))

    def _mine(self, entry: Any) -> bool:
        return bool(self.held.get(entry.item_id) == entry.token)

    async def Renew(self, request: pb.RenewRequest, context: Any) -> Any:
        await self._enter("Renew", request)
        verdicts = []
        for lease in request.leases:
            verdict = pb.LeaseVerdict(status=OK if self._mine(lease) else LOST)
            if verdict.status == LOST:
                verdict.lost_reason = pb.LOST_REASON_REGRANTED
                verdict.holder = "somebody"
            verdict.expires_in.FromMilliseconds(int(self.lease * 1000))
            verdict.cancel_requested = lease.item_id in self.cancel_requested
            verdicts.append(verdict)
        return await self._leave("Renew", pb.RenewResponse(verdicts=verdicts))

    async def Ack(self, request: pb.AckRequest, context: Any) -> Any:
        await self._enter("Ack", request)
        if request.HasField("claim_next") and self.claims_denied:
            raise DeniedError("not yours")
        verdicts = []
        for ack in request.acks:
            done = [item for item in self.results if item.id == ack.item_id]
            if self._mine(ack):
                del self.held[ack.item_id]
                item = work_pb2.Item(id=ack.item_id, state=work_pb2.WORK_STATE_SUCCEEDED, result=ack.result)
                self.results.append(item)
                verdicts.append(pb.LeaseVerdict(status=OK))
            elif done and done[0].result == ack.result:
                verdicts.append(pb.LeaseVerdict(status=OK))
            elif done:
                verdicts.append(pb.LeaseVerdict(status=pb.LEASE_STATUS_SETTLED, state=done[0].state))
            else:
                verdicts.append(pb.LeaseVerdict(status=LOST, lost_reason=pb.LOST_REASON_UNKNOWN))
        response = pb.AckResponse(verdicts=verdicts)
        if request.HasField("claim_next"):
            try:
                self._check_shard(request.claim_next)
            except MeshError as error:
                response.claim_error = f"{error.reason}: {error}"
            else:
                response.claim.CopyFrom(self._grant(request.claim_next))
        return await self._leave("Ack", response)

    async def Fail(self, request: pb.FailRequest, context: Any) -> Any:
        await self._enter("Fail", request)
        self.failures.extend(request.failures)
        for failure in request.failures:
            self.held.pop(failure.item_id, None)
        verdicts = [pb.LeaseVerdict(status=OK) for _ in request.failures]
        return await self._leave("Fail", pb.FailResponse(verdicts=verdicts))

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> Any:
        await self._enter("Release", request)
        for lease in request.leases:
            if self._mine(lease):
                del self.held[lease.item_id]
                self.released.append(lease.item_id)
                self.attempts[lease.item_id] -= 1
                self.ready.append(self.items[lease.item_id])
        verdicts = [pb.LeaseVerdict(status=OK) for _ in request.leases]
        return await self._leave("Release", pb.ReleaseResponse(verdicts=verdicts))

    async def WatchResults(self, request: pb.WatchResultsRequest, context: Any) -> Any:
        await self._enter("WatchResults", request)
        at = int(request.cursor or 0)
        missing = set(request.item_ids)
        while True:
            async with self.moved:
                while len(self.results) <= at:
                    await self.moved.wait()
            item = self.results[at]
            at += 1
            if not request.item_ids or item.id in missing:
                missing.discard(item.id)
                yield pb.WatchResultsResponse(results=[item], cursor=str(at))
                self.break_stream_after -= 1
                if self.break_stream_after == 0:
                    raise UnavailableError("broken")
            if request.item_ids and not missing:
                return
            if not request.item_ids and not request.follow and len(self.results) == at:
                return
