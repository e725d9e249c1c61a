"""Does harm: a deck of faults, shuffled by the seed, one after the other; and what was done, and when."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from .plan import SHIM_KINDS, Kind, Plan
from .replica import Database, Replica
from .shim import Shim
from .workers import Workers

_GAP = (0.5, 2.0)  # seconds between two faults
_DRIFT = 0.02  # seconds between wall and monotonic clock that count as a step


@dataclass(frozen=True)
class Fault:
    """One of the schedule; `target` picks whom it hits, `seconds` how long or how far."""

    kind: Kind
    gap: float
    target: int
    seconds: float


@dataclass(frozen=True)
class Done:
    """One that was injected; times as in the history."""

    kind: Kind
    began: int
    ended: int
    step: float = 0.0  # of the storage clock, seconds


def schedule(seed: int, kinds: Sequence[Kind]) -> Iterator[Fault]:
    """Every kind once, then every kind again in another order, and so on without end."""
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(kinds, len(kinds)):
            gap, target = rng.uniform(*_GAP), rng.randrange(1 << 20)
            yield Fault(kind, gap, target, rng.uniform(*_LENGTHS.get(kind, (0, 0))))


_LENGTHS = {
    Kind.WORKER_FREEZE: (1.0, 5.0),  # some beyond their leases
    Kind.FREEZE: (0.5, 4.5),  # some beyond the clients' deadlines
    Kind.SERVER_KILL: (0.0, 1.0),
    Kind.SERVER_FREEZE: (0.3, 4.0),
    Kind.DATABASE_FREEZE: (0.5, 4.0),
    Kind.CLOCK_FORWARD: (0.2, 8.0),
    Kind.CLOCK_BACK: (0.2, 3.0),
    Kind.SLOW_FSYNC: (0.05, 0.5),
}


def kinds_of(plan: Plan, shim: Shim | None) -> list[Kind]:
    """What of the plan can be done here."""
    return [kind for kind in plan.kinds if shim is not None or kind not in SHIM_KINDS]


class Injector:
    """Injects faults until cancelled, never two at once."""

    def __init__(
        self,
        plan: Plan,
        workers: Workers,
        servers: Sequence[Replica],
        base: Database | None,
        shim: Shim | None,
    ) -> None:
        self._plan, self._workers, self._servers, self._base, self._shim = plan, workers, servers, base, shim
        self.done: list[Done] = []
        self._offset = _offset()

    async def run(self) -> None:
        """Everything is whole again when it ends."""
        await asyncio.sleep(self._plan.calm)
        kinds = kinds_of(self._plan, self._shim)
        if not kinds:
            await asyncio.Event().wait()
        for fault in schedule(self._plan.seed, kinds):
            await asyncio.sleep(fault.gap)
            began = time.monotonic_ns()
            step = await self._inject(fault)
            self.done.append(Done(fault.kind, began, time.monotonic_ns(), step))
            self.observe()

    def observe(self) -> None:
        """Notes when somebody else has set the clock of this machine."""
        now = _offset()
        if abs(now - self._offset) > _DRIFT:
            kind = Kind.CLOCK_FORWARD if now > self._offset else Kind.CLOCK_BACK
            since = self.done[-1].began if self.done else 0
            self.done.append(Done(kind, since, time.monotonic_ns(), now - self._offset))
        self._offset = now

    async def _inject(self, fault: Fault) -> float:
        """Does it; by how much the storage clock was set."""
        server = self._servers[fault.target % len(self._servers)]
        match fault.kind:
            case Kind.WORKER_KILL:
                await self._workers.replace(fault.target % self._plan.workers)
            case Kind.WORKER_FREEZE:
                self._workers.freeze(fault.target % self._plan.workers, fault.seconds)
            case Kind.CUT:
                server.front.cut()
            case Kind.FREEZE:
                server.front.freeze(answers_only=bool(fault.target & 2048))
                try:
                    await asyncio.sleep(fault.seconds)
                    if fault.target & 1024:
                        server.front.cut()
                finally:
                    server.front.thaw()
            case Kind.SERVER_KILL:
                await server.kill()
                await asyncio.sleep(fault.seconds)
                await server.start()
            case Kind.SERVER_FREEZE:
                server.signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    server.signal(signal.SIGCONT)
            case _:
                return await self._inject_below(fault, server)
        return 0.0

    async def _inject_below(self, fault: Fault, server: Replica) -> float:
        """To PostgreSQL or on the way to it."""
        base, shim = self._base, self._shim
        assert base is not None
        assert server.database is not None
        match fault.kind:
            case Kind.POSTMASTER_KILL:
                _kill(base.postmaster())
            case Kind.BACKEND_KILL:
                backends = base.backends()
                _kill(backends[fault.target % len(backends)] if backends else None)
            case Kind.DATABASE_CUT:
                server.database.cut()
            case Kind.DATABASE_FREEZE:
                server.database.freeze(answers_only=bool(fault.target & 2048))
                try:
                    await asyncio.sleep(fault.seconds)
                    if fault.target & 1024:
                        server.database.cut()
                finally:
                    server.database.thaw()
            case Kind.CLOCK_FORWARD | Kind.CLOCK_BACK:
                assert shim is not None
                step = fault.seconds if fault.kind is Kind.CLOCK_FORWARD else -fault.seconds
                shim.step(step)
                return step
            case Kind.SLOW_FSYNC:
                assert shim is not None
                shim.delay(fault.seconds)
                try:
                    await asyncio.sleep(2.0)
                finally:
                    shim.delay(0.0)
        return 0.0


def _kill(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _offset() -> float:
    """Of the wall clock from the monotonic one."""
    return time.time() - time.monotonic()
