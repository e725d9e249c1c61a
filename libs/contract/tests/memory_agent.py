"""The smallest agent that keeps the contract: its runs end, hold and change when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

from libs.contract.agent import Agent, Condition, Draining, Message
from libs.contract.events import Ring
from libs.contract.manifest import Limits, Manifest, Surfaces
from libs.contract.run import Run, State, Trigger, state_of
from libs.contract.statuses import Status
from libs.errors import ExistsError, NotFoundError, PreconditionError, UnavailableError

MANIFEST = Manifest("memory", "0", "loop", surfaces=Surfaces(messages=True), limits=Limits(slots=4))


class MemoryAgent(Agent):
    """`asked` is what it was asked for, in order; `watched` is set once somebody watches a run."""

    def __init__(self) -> None:
        self.events = Ring()
        self.told = MANIFEST
        self.now = Condition(ready=True, free_slots=4)
        self.asked: list[tuple[object, ...]] = []
        self.watched = asyncio.Event()
        self.texts: dict[str, str] = {}
        self._runs: dict[str, Run] = {}
        self._changed = asyncio.Condition()

    async def put(self, run: Run) -> Run:
        """A new run, or another state of one."""
        self._runs[run.id] = run
        async with self._changed:
            self._changed.notify_all()
        return run

    async def end(self, run_id: str, status: Status, result: str = "") -> Run:
        """Ends a run."""
        ended = replace(self.run(run_id), state=state_of(status), status=status, result=result)
        return await self.put(replace(ended, took=timedelta(seconds=1)))

    def forget(self, run_id: str) -> None:
        """As if it had been too long ago."""
        del self._runs[run_id]

    def manifest(self) -> Manifest:
        return self.told

    async def condition(self) -> Condition:
        under_way = [run for run in self._runs.values() if not run.state.ended]
        return replace(self.now, runs=under_way)

    async def drain(self, deadline: timedelta | None) -> Draining:
        self.asked.append(("drain", deadline))
        self.now = replace(self.now, ready=False, not_ready_reason="draining", draining=True)
        return Draining(len((await self.condition()).runs), deadline or timedelta(seconds=25))

    async def lame_duck(self, enabled: bool) -> Condition:
        if self.now.draining:
            raise PreconditionError("it drains")
        reason = "lame duck" if enabled else ""
        self.now = replace(self.now, ready=not enabled, lame_duck=enabled, not_ready_reason=reason)
        return await self.condition()

    async def cancel(self, run_id: str, reason: str) -> Sequence[Run]:
        self.asked.append(("cancel", run_id, reason))
        return [
            run if run.state.ended else await self.end(run.id, Status.CANCELLED)
            for run in self._concerned(run_id)
        ]

    async def pause(self, run_id: str, wait: timedelta) -> Sequence[Run]:
        self.asked.append(("pause", run_id, wait))
        return [await self.put(replace(run, state=State.PAUSED)) for run in self._concerned(run_id)]

    async def resume(self, run_id: str) -> Sequence[Run]:
        return [await self.put(replace(run, state=State.WORKING)) for run in self._concerned(run_id)]

    async def send(self, message: Message) -> Run:
        if not self.now.ready:
            raise UnavailableError(self.now.not_ready_reason)
        run_id = message.run_id or f"made-{len(self._runs)}"
        if run_id in self._runs:
            if self.texts[run_id] != message.text:
                raise ExistsError(run_id)
            return self.run(run_id)
        self.texts[run_id] = message.text
        return await self.put(Run(run_id, Trigger.MESSAGE, context_id=message.context_id or "made"))

    def run(self, run_id: str) -> Run:
        if run_id not in self._runs:
            raise NotFoundError(f"no run {run_id}")
        return self._runs[run_id]

    def runs(self) -> Sequence[Run]:
        return list(reversed(self._runs.values()))

    async def watch(self, run_id: str) -> AsyncIterator[Run]:
        seen = None
        self.watched.set()
        async with self._changed:
            while seen is None or not seen.state.ended:
                if self.run(run_id) is not seen:
                    seen = self.run(run_id)
                    yield seen
                else:
                    await self._changed.wait()

    def _concerned(self, run_id: str) -> list[Run]:
        return [self.run(run_id)] if run_id else list(self._runs.values())
