"""One run: a store of our own, work, harm, and then the proof."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.errors import MeshError
from libs.pki import Authority

from ..channel import Target, connected
from ..child import ServerError
from ..tally import Violations
from .board import Board, Cell, Phase
from .check import check, missing
from .faults import Done, Injector
from .late import late
from .plan import ATTEMPTS, NAMESPACE, SHIM_KINDS, Kind, Plan
from .replica import Database, Replica, database, replicas
from .restart import restart
from .rules import Counts
from .shim import Shim, ShimError
from .workers import Workers

_DOMAIN = "verify.agentctl"
_POLL = 0.1
_STUCK_SECONDS = 10.0  # and five leases without a result: nothing more will come
_LINGER = 1.0  # for results that are told twice


@dataclass
class Outcome:
    """What a run did and found."""

    plan: Plan
    accepted: int = 0
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    found: Violations = field(default_factory=Violations)
    faults: Counter[Kind] = field(default_factory=Counter)
    stalls: int = 0
    repeated: int = 0
    recovery: dict[Kind, float] = field(default_factory=dict)
    longest_gap: float = 0.0
    left_out: dict[Kind, str] = field(default_factory=dict)
    timed_out: bool = False

    @property
    def clean(self) -> bool:
        return not self.found.counts


Progress = Callable[[int, int, Sequence[Done]], None]
"""Items accepted, results seen, faults injected."""


async def attack(
    plan: Plan,
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None,
    progress: Progress,
) -> Outcome:
    """Runs the plan against servers of `command`. ServerError, WorkerError, StartError: it could not."""
    outcome = Outcome(plan)
    async with AsyncExitStack() as stack:
        root = stack.enter_context(_scratch(folder))
        shim = _shim(root, outcome) if set(plan.kinds) & set(SHIM_KINDS) else None
        base: Database | None = None
        if plan.database:
            base = await stack.enter_async_context(database(root, shim.environment if shim else {}))
        authority = Authority.create(root / "pki", _DOMAIN)
        own = authority.issue(f"spiffe://{_DOMAIN}/cp/coordination", root / "server")
        servers = await stack.enter_async_context(
            replicas(plan.replicas, command, environment, own, root, base)
        )
        addresses = [f"127.0.0.1:{server.front.port}" for server in servers]
        admin = authority.issue(f"spiffe://{_DOMAIN}/user/verify", root / "admin")
        target = Target(addresses[0], admin)
        await _configure(plan, target)
        board = Board(root / "board")
        stack.callback(board.close)
        identities = [
            authority.issue(f"spiffe://{_DOMAIN}/ns/{NAMESPACE}/user/worker-{n}", root / f"worker-{n}")
            for n in range(plan.workers)
        ]
        workers = Workers(plan, root, board, addresses, [admin, *identities])
        stack.callback(workers.kill)
        injector = Injector(plan, workers, servers, base, shim)
        began = time.monotonic()
        await _Work(plan, board, workers, injector, servers, progress, outcome).run()
        outcome.seconds = time.monotonic() - began
        outcome.faults.update(done.kind for done in injector.done)
        outcome.stalls = board.total(Cell.STALLS)
        outcome.repeated = board.total(Cell.UNKNOWN)
        proof = await asyncio.to_thread(check, root, plan.items, injector.done)
        outcome.counts, outcome.recovery = proof.counts, proof.recovery
        outcome.longest_gap = proof.longest_gap
        outcome.found.merge(proof.found)
        _read_complaints(root, outcome.found)
        await _compare(plan, target, outcome)
        await _explain(root, plan, target, outcome.found)
        if plan.stalls:
            outcome.found.merge(await late(Target(addresses[-1], identities[0]), target))
        if plan.stalls and not plan.database:
            outcome.found.merge(await restart(servers[0], target))
    return outcome


@contextmanager
def _scratch(folder: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentctl-verify-", dir=folder) as made:
        root = Path(made)
        root.chmod(0o711)  # a PostgreSQL that root starts runs as another user, who has to get in
        yield root


def _shim(root: Path, outcome: Outcome) -> Shim | None:
    try:
        return Shim(root)
    except ShimError as error:
        outcome.left_out |= {kind: str(error) for kind in SHIM_KINDS if kind in outcome.plan.kinds}
        return None


async def _configure(plan: Plan, target: Target) -> None:
    lease, least = Duration(), Duration()
    lease.FromMilliseconds(round(plan.lease * 1000))
    least.FromMilliseconds(100)
    policy = work_pb2.QueuePolicy(default_lease=lease, min_lease=least, max_attempts=ATTEMPTS)
    policy.backoff.initial.FromMilliseconds(50)
    policy.backoff.maximum.FromMilliseconds(500)
    async with connected(target) as channel:
        stub = pb_grpc.CoordinationServiceStub(channel)
        for queue in plan.queues:
            await stub.ConfigureQueue(pb.ConfigureQueueRequest(queue=queue, policy=policy))


@dataclass
class _Work:
    """From the first item to the last result."""

    plan: Plan
    board: Board
    workers: Workers
    injector: Injector
    servers: Sequence[Replica]
    progress: Progress
    outcome: Outcome

    async def run(self) -> None:
        """Until everything that was accepted has settled, or nothing more happens."""
        self.workers.start()
        injecting = asyncio.create_task(self.injector.run())
        try:
            await self._submit(injecting)
        finally:
            injecting.cancel()
            await asyncio.wait({injecting})
        self.injector.observe()
        await self.workers.mend()
        for server in self.servers:
            await server.start()
        await self._drain()
        await asyncio.sleep(_LINGER)
        self.board.phase = Phase.STOP
        await self.workers.join()

    async def _submit(self, injecting: asyncio.Task[None]) -> None:
        until = time.monotonic() + self.plan.duration
        while not self._submitted:
            if time.monotonic() > until:
                self.board.phase = Phase.DRAIN
                self.outcome.timed_out = True
                return
            if injecting.done():
                injecting.result()  # it does not end by itself, so this says why it did
            await self._look()

    async def _drain(self) -> None:
        seen, until = -1, 0.0
        while seen < self.board.seen or time.monotonic() < until:
            if seen < self.board.seen:
                seen, until = self.board.seen, time.monotonic() + _STUCK_SECONDS + 5 * self.plan.lease
            if self._submitted and self.board.seen >= self.outcome.accepted:
                return
            await self._look()

    @property
    def _submitted(self) -> bool:
        self.outcome.accepted = self.board.total(Cell.SUBMITTED)
        return all(self.board.get(slot, Cell.DONE) for slot in range(self.plan.workers))

    async def _look(self) -> None:
        self.workers.check()
        for server in self.servers:
            if server.crashed:
                raise ServerError(f"{server.name} ended by itself; {server.last_words()}")
        self.progress(self.outcome.accepted, self.board.seen, self.injector.done)
        await asyncio.sleep(_POLL)


def _read_complaints(root: Path, found: Violations) -> None:
    for path in sorted(root.glob("*.errors")):
        for line in path.read_text(errors="replace").splitlines():
            kind, _, example = line.partition("\t")
            found.note(kind, example)


async def _compare(plan: Plan, target: Target, outcome: Outcome) -> None:
    """The numbers of the queues against ours."""
    try:
        async with connected(target) as channel:
            stub = pb_grpc.CoordinationServiceStub(channel)
            queues = (await stub.GetQueues(pb.GetQueuesRequest(queues=plan.queues))).queues
    except MeshError as error:
        outcome.found.note("the server cannot be asked in the end", f"{type(error).__name__} {error}")
        return
    exact = {
        "ready_count": 0, "delayed_count": 0, "blocked_count": 0, "leased_count": 0,
        "dead_count": outcome.counts.dead, "submitted_total": outcome.accepted,
        "settled_total": outcome.counts.settled + outcome.counts.dead,
    }  # fmt: skip
    for name, wanted in exact.items():
        if (said := sum(getattr(queue, name) for queue in queues)) != wanted:
            outcome.found.note(f"GetQueues: {name}", f"{said} instead of {wanted}")
    if (said := sum(queue.granted_total for queue in queues)) < outcome.counts.grants:
        outcome.found.note("GetQueues: granted_total", f"{said}, but {outcome.counts.grants} were seen")


async def _explain(root: Path, plan: Plan, target: Target, found: Violations) -> None:
    """Where the server says that what is lost stands."""
    if "lost" not in found.counts:
        return
    ids = [plan.id(item) for item in missing(root, plan.items, 1000)]
    with suppress(MeshError):
        async with connected(target) as channel:
            stub = pb_grpc.CoordinationServiceStub(channel)
            answer = await stub.GetItems(pb.GetItemsRequest(item_ids=ids))
            states = Counter(work_pb2.WorkState.Name(item.state) for item in answer.items)
            states["unknown to the server"] = len(answer.missing_ids)
            found.examples["lost"] += f"; GetItems says {dict(states)}"
