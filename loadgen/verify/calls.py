"""A worker's calls: sent to any replica, repeated until there is an answer, written down before use."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs import mesh
from libs.errors import DeadlineError, MeshError, UnavailableError
from libs.identity import Identity
from libs.rpc.client import dial

from .board import Board, Cell
from .history import Event, Writer
from .plan import EXPIRED, POISON_ATTEMPTS, Plan, is_poison

_RPC_SECONDS = (0.4, 3.0)  # some give up, and ask elsewhere, what is still under way
_PATIENCE = 30.0  # longer than any fault
_ROTATION_SECONDS = 3600.0


@dataclass(frozen=True)
class Seat:
    """Which worker this is: its place, how often that was taken before, and where it writes."""

    slot: int
    turn: int
    folder: Path
    addresses: Sequence[str]
    identity: Identity

    @property
    def worker(self) -> int:
        return self.slot << 8 | self.turn & 0xFF


@dataclass(frozen=True, slots=True)
class Held:
    """A lease of ours."""

    item: int
    token: int
    contested: bool = False  # the holder before us, or an earlier try of our own claim, may still come back


class OutOfPatienceError(Exception):
    """No replica has answered for longer than any fault lasts."""


class Calls:
    """The verbs of one worker. Made inside its event loop; `stack` closes the connections."""

    def __init__(self, plan: Plan, seat: Seat, board: Board, writer: Writer, rng: random.Random) -> None:
        self._plan, self._seat, self._board, self._writer, self._rng = plan, seat, board, writer, rng
        self._stubs: list[pb_grpc.CoordinationServiceAsyncStub] = []
        self._errors = (seat.folder / f"worker-{seat.slot}.errors").open("a", buffering=1)

    async def open(self, stack: AsyncExitStack) -> None:
        """A connection to every replica."""
        stack.callback(self._errors.close)
        for address in self._seat.addresses:
            channel = dial(mesh.COORDINATION, address, self._seat.identity, timeout=_RPC_SECONDS[1],
                           own_connection=True, check_seconds=_ROTATION_SECONDS)  # fmt: skip
            self._stubs.append(pb_grpc.CoordinationServiceStub(await stack.enter_async_context(channel)))

    async def submit(self, first: int, count: int) -> None:
        """Items first..first+count-1, all to one queue."""
        plan = self._plan
        items = [self._new(item) for item in range(first, first + count)]
        request = pb.SubmitRequest(queue=plan.queue(first), items=items)
        before = time.monotonic_ns()
        answer: pb.SubmitResponse = await self._call("Submit", request)
        after = time.monotonic_ns()
        for item, verdict in zip(items, answer.verdicts, strict=True):
            if verdict.status != pb.SUBMIT_STATUS_ACCEPTED or verdict.item_id != item.id:
                self._complain(f"Submit of a new item: {pb.SubmitStatus.Name(verdict.status)}", item.id)
        self._writer.write([(Event.SUBMIT, 0, self._seat.worker, first, 0, before, after, count)])

    async def claim(self, request: pb.ClaimRequest, wait: float) -> list[Held]:
        """What is granted, written down."""
        before = time.monotonic_ns()
        answer, tries = await self._send("Claim", request, wait)
        return self._granted(answer, before, tries > 1)

    async def ack(self, held: Sequence[Held], then: pb.ClaimRequest | None = None) -> list[Held]:
        """Settles these; what `then`, the claim_next, brought."""
        acks = [
            pb.Ack(item_id=self._plan.id(lease.item), token=lease.token, result=self._result(lease))
            for lease in held
        ]
        request = pb.AckRequest(acks=acks, claim_next=then)
        before = time.monotonic_ns()
        answer: pb.AckResponse = await self._call("Ack", request)
        self._judged(Event.ACK, held, answer.verdicts, before)
        return self._granted(answer.claim, before) if answer.HasField("claim") else []

    async def renew(self, held: Sequence[Held]) -> None:
        before = time.monotonic_ns()
        answer: pb.RenewResponse = await self._call("Renew", pb.RenewRequest(leases=self._leases(held)))
        self._judged(Event.RENEW, held, answer.verdicts, before)

    async def fail(self, held: Sequence[Held]) -> None:
        failures = [
            pb.LeaseFailure(item_id=self._plan.id(lease.item), token=lease.token, error="on purpose")
            for lease in held
        ]
        before = self._intend(Event.FAIL, held)
        answer: pb.FailResponse = await self._call("Fail", pb.FailRequest(failures=failures))
        self._judged(Event.FAIL, held, answer.verdicts, before)

    async def release(self, held: Sequence[Held]) -> None:
        before = self._intend(Event.RELEASE, held)
        request = pb.ReleaseRequest(leases=self._leases(held))
        answer: pb.ReleaseResponse = await self._call("Release", request)
        self._judged(Event.RELEASE, held, answer.verdicts, before)

    # --- Writing down ---

    def _intend(self, event: Event, held: Sequence[Held]) -> int:
        """Before a lease is ended on purpose: if we are killed now, it may or may not have ended."""
        worker, before = self._seat.worker, time.monotonic_ns()
        self._writer.write([(event, 0, worker, lease.item, lease.token, before, 0, 0) for lease in held])
        return before

    def _judged(
        self, event: Event, held: Sequence[Held], verdicts: Sequence[pb.LeaseVerdict], before: int
    ) -> None:
        after = time.monotonic_ns()
        worker = self._seat.worker
        if len(verdicts) != len(held):
            self._complain(f"{event.name}: {len(verdicts)} verdicts for {len(held)} leases")
        self._writer.write(
            [
                (
                    event, verdict.status, worker, lease.item, lease.token, before, after,
                    before + verdict.expires_in.ToNanoseconds() if event is Event.RENEW else 0,
                )
                for lease, verdict in zip(held, verdicts, strict=False)
            ]
        )  # fmt: skip

    def _granted(self, answer: pb.ClaimResponse, before: int, repeated: bool = False) -> list[Held]:
        after = time.monotonic_ns()
        worker = self._seat.worker
        start = before + answer.waited.ToNanoseconds()
        held, records = [], []
        for grant in answer.grants:
            item = self._plan.number(grant.item_id)
            if item is None or grant.payload != self._plan.payload(item):
                self._complain("Claim: an item that is not ours, or changed", grant.item_id)
                continue
            inherited = bool(grant.failures) and grant.failures[-1].error == EXPIRED
            held.append(Held(item, grant.token, inherited or repeated))
            ends = start + grant.expires_in.ToNanoseconds()
            attempt = min(grant.attempt, 255)
            records.append((Event.GRANT, attempt, worker, item, grant.token, before, after, ends))
        if records:
            self._writer.write(records)
        return held

    def _complain(self, kind: str, example: str = "") -> None:
        self._errors.write(f"{kind}\t{example}\n")

    # --- Making ---

    def claiming(self, wait: float = 0.0) -> pb.ClaimRequest:
        """A new claim of all queues, in any order."""
        queues = self._plan.queues
        self._rng.shuffle(queues)
        request = pb.ClaimRequest(
            queues=queues, max_items=self._plan.batch, request_id=f"{self._rng.getrandbits(128):032x}"
        )
        request.wait.FromMilliseconds(round(wait * 1000))
        return request

    def _new(self, item: int) -> work_pb2.WorkItem:
        new = work_pb2.WorkItem(id=self._plan.id(item), payload=self._plan.payload(item))
        if is_poison(item):
            new.max_attempts = POISON_ATTEMPTS
        return new

    def _leases(self, held: Sequence[Held]) -> list[work_pb2.Lease]:
        return [work_pb2.Lease(item_id=self._plan.id(lease.item), token=lease.token) for lease in held]

    def _result(self, lease: Held) -> bytes:
        return b"%d:%d:%d" % (lease.item, lease.token, self._seat.worker)

    # --- Sending ---

    async def _call(self, verb: str, request: Any) -> Any:
        return (await self._send(verb, request))[0]

    async def _send(self, verb: str, request: Any, wait: float = 0.0) -> tuple[Any, int]:
        """The answer of a replica, any, since every mutation may be repeated; and how many tries it took."""
        patience = time.monotonic() + _PATIENCE
        for tries in itertools.count(1):
            method: Callable[..., Any] = getattr(self._rng.choice(self._stubs), verb)
            try:
                return await method(request, timeout=wait + self._rng.uniform(*_RPC_SECONDS)), tries
            except (UnavailableError, DeadlineError) as error:
                self._board.add(self._seat.slot, Cell.UNKNOWN)
                if time.monotonic() > patience:
                    raise OutOfPatienceError(f"{verb}: {error}") from error
            except MeshError as error:
                self._complain(f"{verb}: {type(error).__name__}", str(error))
                raise OutOfPatienceError(f"{verb}: {error}") from error
            await asyncio.sleep(self._rng.uniform(0.02, 0.2))
        raise AssertionError("unreachable")
