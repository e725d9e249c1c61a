"""The verbs over bare stubs: each call is one RPC, timed, and its answer checked."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2

from .ledger import payload_of
from .loops import Held, StuckError, Window
from .tally import Step, Tally
from .timed import Timed

_CLAIM_WAIT = 5.0
_RPC_SECONDS = 30.0  # and for a claim that waits, as long as it waits


class StubVerbs:
    """One logical client on generated stubs."""

    def __init__(self, step: Step, channel: grpc.aio.Channel, tally: Tally, window: Window) -> None:
        self._step = step
        self._stub = pb_grpc.CoordinationServiceStub(channel)
        self._ledger = tally.ledger
        self._violations = tally.violations
        self._timed = Timed(step, tally, window)
        self._claims: dict[tuple[int, float], pb.ClaimRequest] = {}

    async def submit(self, item_ids: Sequence[str]) -> int:
        size = self._step.payload
        items = [work_pb2.WorkItem(id=item_id, payload=payload_of(item_id, size)) for item_id in item_ids]
        request = pb.SubmitRequest(queue=self._step.queue, items=items)
        answer = await self._timed.call("submit", self._stub.Submit, request, timeout=_RPC_SECONDS)
        if len(answer.verdicts) != len(item_ids):
            raise StuckError(f"submit: {len(answer.verdicts)} verdicts for {len(item_ids)} items")
        accepted = []
        for item_id, verdict in zip(item_ids, answer.verdicts, strict=True):
            if verdict.status == pb.SUBMIT_STATUS_ACCEPTED and verdict.item_id == item_id:
                accepted.append(item_id)
            else:
                self._violations.note(f"submit: {pb.SubmitStatus.Name(verdict.status)}", item_id)
        self._ledger.note_accepted(accepted)
        return len(accepted)

    async def claim(self, most: int, wait: float = _CLAIM_WAIT, kept_as: str = "claim") -> list[Held]:
        request = self._claim_request(most, wait)
        answer = await self._timed.call(kept_as, self._stub.Claim, request, timeout=_RPC_SECONDS + wait)
        return self._granted(answer, most)

    async def ack(self, held: Sequence[Held], claim_next: int) -> list[Held]:
        acks = [pb.Ack(item_id=item.item_id, token=item.token, result=item.item_id.encode()) for item in held]
        request = pb.AckRequest(acks=acks)
        if claim_next:
            request.claim_next.CopyFrom(self._claim_request(claim_next, 0))
        answer = await self._timed.call("ack", self._stub.Ack, request, timeout=_RPC_SECONDS)
        if len(answer.verdicts) != len(held):
            raise StuckError(f"ack: {len(answer.verdicts)} verdicts for {len(held)} acks")
        settled = []
        for item, verdict in zip(held, answer.verdicts, strict=True):
            if verdict.status == pb.LEASE_STATUS_OK:
                settled.append(item.item_id)
            else:
                status, why = pb.LeaseStatus.Name(verdict.status), pb.LostReason.Name(verdict.lost_reason)
                self._violations.note(f"ack: {status} {why}", item.item_id)
        self._ledger.note_acked(settled)
        self._timed.settled(len(settled))
        if not claim_next:
            return []
        if answer.claim_error:
            self._violations.note("ack: claim_next failed", answer.claim_error)
        return self._granted(answer.claim, claim_next)

    def _claim_request(self, most: int, wait: float) -> pb.ClaimRequest:
        request = self._claims.get((most, wait))
        if request is None:
            request = pb.ClaimRequest(queues=[self._step.queue], max_items=most)
            request.wait.FromMilliseconds(round(wait * 1000))
            request.lease.FromMilliseconds(round(self._step.lease * 1000))
            self._claims[most, wait] = request
        if self._step.request_ids:
            request.request_id = uuid.uuid4().hex  # a client has one claim at a time
        return request

    def _granted(self, answer: pb.ClaimResponse, most: int) -> list[Held]:
        if len(answer.grants) > most:
            self._violations.note("claim: more grants than asked for", f"{len(answer.grants)} for {most}")
        held = []
        for grant in answer.grants:
            if self._ledger.is_ours(grant.item_id, grant.payload):
                held.append(Held(grant.item_id, grant.token))
            else:
                self._violations.note("claim: an item that is not ours, or changed", grant.item_id)
            if grant.attempt != 1:
                self._violations.note(f"claim: attempt {grant.attempt}", grant.item_id)
        return held


class Checks:
    """The control figure: the cheapest call that the server answers, through the same generator."""

    def __init__(self, step: Step, channel: grpc.aio.Channel, tally: Tally, window: Window) -> None:
        self._check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        self._timed = Timed(step, tally, window)
        self._violations = tally.violations
        self._window = window

    async def run(self) -> None:
        request = health_pb2.HealthCheckRequest()
        while time.monotonic() < self._window.end:
            answer = await self._timed.call("check", self._check, request, timeout=_RPC_SECONDS)
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                self._timed.settled(1)
            else:
                self._violations.note("check: not SERVING")
