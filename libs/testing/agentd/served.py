"""Runs that a peer asked for: four at once, the last 64 remembered, in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from . import clock
from .rpc import INVALID_PARAMS, UNKNOWN_TASK, RpcError
from .supervisor import SERVED_AT_ONCE, Supervisor
from .turns import Outcome, Task

_REMEMBERED = 64
_TEXT_LIMIT = 4096


@dataclass
class ServedRun:
    """One of them. `is_reachable` is whether pause and cancel reach it: only when nobody waits for it."""

    task: Task
    is_reachable: bool
    outcome: Outcome | None = None
    changed_at: str = field(default_factory=clock.now)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> str:
        """`running`, or how it ended."""
        return self.outcome.status if self.outcome else "running"

    @property
    def text(self) -> str:
        """The result as a peer gets it: cut at 4096 characters."""
        return self.outcome.text[:_TEXT_LIMIT] if self.outcome else ""

    def end(self, outcome: Outcome) -> None:
        """Its end, told to whoever waits."""
        self.outcome = outcome
        self.changed_at = clock.now()
        self.ended.set()


class Served:
    """The registry."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._runs: dict[str, ServedRun] = {}
        self._number = 0
        self._work: set[asyncio.Task[None]] = set()

    @property
    def active(self) -> list[ServedRun]:
        """Those that have not ended."""
        return [run for run in self._runs.values() if run.outcome is None]

    @property
    def reachable(self) -> list[ServedRun]:
        """Those of them that the verbs reach."""
        return [run for run in self.active if run.is_reachable]

    @property
    def known(self) -> list[ServedRun]:
        """Those remembered, the oldest first."""
        return list(self._runs.values())

    def find(self, handle: str) -> ServedRun | None:
        """One of those remembered."""
        return self._runs.get(handle)

    def get(self, handle: str, code: int = UNKNOWN_TASK) -> ServedRun:
        """Raises RpcError with this code for one that is not remembered."""
        run = self._runs.get(handle)
        if run is None:
            raise RpcError(code, f"unknown task {handle!r}" if code == UNKNOWN_TASK else "unknown handle")
        return run

    def begin(self, instruction: str, *, reachable: bool) -> ServedRun | None:
        """None is a refusal, remembered as `crashed`: four run already, or we drain."""
        refused = len(self.active) >= SERVED_AT_ONCE or self._supervisor.draining
        if refused and reachable:
            return None
        run = self._add(instruction, reachable)
        if refused:
            run.end(Outcome.of("crashed"))
            return run
        work = asyncio.create_task(self._run(run))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return run

    def cancel(self, handle: str | None) -> int:
        """How many were told to end at their next turn; no handle or "0" means all. Raises RpcError."""
        runs = self.reachable
        if handle not in (None, "0"):
            chosen = self.get(str(handle), INVALID_PARAMS)
            runs = [run for run in runs if run is chosen]
        for run in runs:
            run.task.control.cancel()
        return len(runs)

    def _add(self, instruction: str, reachable: bool) -> ServedRun:
        self._number += 1
        handle = f"served.{self._number}"
        run_id = f"{self._supervisor.options.run_id}.{handle}"
        run = ServedRun(Task(run_id, instruction, handle=handle), reachable)
        self._runs[handle] = run
        finished = [name for name, other in self._runs.items() if other.outcome]
        for name in finished[: max(0, len(self._runs) - _REMEMBERED)]:
            del self._runs[name]
        return run

    async def _run(self, run: ServedRun) -> None:
        run.end(await self._supervisor.run(run.task))
