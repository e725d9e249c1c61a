"""The desk: every run passes over it. It knows them all, holds and ends them, and says when one may begin."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import TypeVar

import anyio
from opentelemetry.trace import Span

from libs import telemetry
from libs.contract import metrics
from libs.contract.events import Ring
from libs.contract.run import Trigger, Usage, state_of
from libs.contract.statuses import Status
from libs.errors import NotFoundError

from .order import Ended, Order
from .underway import Underway

_ENDED_RUNS = 256
_RESULT_BYTES = 8 * 1024 * 1024  # of all ended runs together

T = TypeVar("T")
Work = Callable[[Underway], Awaitable[Ended]]


class Desk:
    """All runs of this process, and the gates: paused, lame duck, draining.

    Whatever begins a run does so while the desk `can_begin`: `slots` bounds them all together. `on_change` is
    called, at once, when a gate has moved or a run has begun or ended. Results of ended runs are kept while
    there is room.
    """

    def __init__(self, events: Ring, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.events = events
        self.clock = clock
        self.slots = slots
        self.paused = False
        self.lame_duck = False
        self.draining = False
        self.unusable = ""
        """Why no run can do well, as the last one that asked the model found out; empty if it did not."""
        self.on_change: list[Callable[[], None]] = []
        self._underway: dict[Underway, None] = {}
        self._past: dict[str, Underway] = {}
        self._past_bytes = 0
        self._counts: Counter[str] = Counter()
        self._past_usage = Usage()
        self._news = asyncio.Event()
        self._stopped_by_drain: set[anyio.CancelScope] = set()
        metrics.PAUSED.set(to=0)
        self._changed()

    # What there is

    def underway(self) -> list[Underway]:
        """Oldest first."""
        return list(self._underway)

    def past(self) -> list[Underway]:
        """The last that ended, oldest first."""
        return list(self._past.values())

    def find(self, run_id: str) -> Underway:
        """One of these. NotFoundError."""
        for run in self._underway:
            if run.order.id == run_id:
                return run
        if run_id in self._past:
            return self._past[run_id]
        raise NotFoundError(f"no run {run_id!r} is under way, nor among the last that ended")

    @property
    def free_slots(self) -> int:
        return max(self.slots - len(self._underway), 0)

    @property
    def counts(self) -> dict[str, int]:
        """Runs that ended, by status."""
        return dict(self._counts)

    @property
    def usage(self) -> Usage:
        """Of all runs, ended or not."""
        return sum((run.usage for run in self._underway), self._past_usage)

    @property
    def is_open(self) -> bool:
        """Whether no gate keeps something new from beginning."""
        return not (self.paused or self.lame_duck or self.draining)

    @property
    def can_begin(self) -> bool:
        """Whether a run may begin now."""
        return self.is_open and self.free_slots > 0

    # Waiting

    async def news(self) -> None:
        """Returns when a run or a gate has changed."""
        await self._news.wait()

    def wake(self) -> None:
        """Something has changed."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Returns when that is so, of runs and gates."""
        while not true():
            await self.news()

    async def may_begin(self) -> bool:
        """Waits while nothing new may begin. False: nothing will any more."""
        await self.until(lambda: self.can_begin or self.draining)
        return not self.draining

    async def drains_within(self, pause: timedelta) -> bool:
        """Waits for so long; True as soon as a drain begins."""
        with anyio.move_on_after(pause.total_seconds()):
            await self.until(lambda: self.draining)
        return self.draining

    async def unless_drained(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What it gives; None as soon as a drain begins, which cancels it."""
        if self.draining:
            return None
        with anyio.CancelScope() as scope:
            self._stopped_by_drain.add(scope)
            try:
                return await work()
            finally:
                self._stopped_by_drain.discard(scope)
        return None

    # Doing

    async def execute(
        self, order: Order, work: Work, *, interrupted: Callable[[], Status] = lambda: Status.DRAINED
    ) -> Ended:
        """Does it, as a run: `begin`, and to its end."""
        return await self.carry(self.begin(order), work, interrupted=interrupted)

    def begin(self, order: Order) -> Underway:
        """A run that is under way from now on; `carry` it to its end. An ended one of its id is forgotten."""
        self._forget(order.id)
        digest = (
            sha256(order.text.encode(errors="replace")).digest() if order.trigger is Trigger.MESSAGE else b""
        )
        run = Underway(order, self, self.clock(), digest, subject=order.subject)
        self._underway[run] = None
        run.tell("run.started", trigger=order.trigger)
        self._changed()
        return run

    async def carry(
        self, run: Underway, work: Work, *, interrupted: Callable[[], Status] = lambda: Status.DRAINED
    ) -> Ended:
        """Does it. An interrupted run ends as its interruption says. If the caller itself is cancelled, it
        ends with the status that `interrupted` gives, and the cancellation goes on."""
        outcome = Ended(Status.CRASHED, error="a fault of the agent's own; its log says more")
        with _span(run.order) as span:
            try:
                with run.scope:
                    outcome = await work(run)
                if run.scope.cancelled_caught and run.interruption:
                    outcome = run.interruption
            except asyncio.CancelledError:
                outcome = Ended(interrupted(), error="interrupted")
                raise
            finally:
                span.set_attribute("agentctl.run.status", outcome.status)
                self._end(run, outcome)
        return outcome

    def _end(self, run: Underway, ended: Ended) -> None:
        run.ended, run.state = ended, state_of(ended.status)
        run.took = self.clock() - run.began
        run.order = replace(run.order, instruction="", text="")
        del self._underway[run]
        self._keep(run)
        self._counts[ended.status] += 1
        self._past_usage += run.usage
        if ended.is_ours or ended.status is Status.COMPLETED:
            self.unusable = ended.error if ended.is_ours else ""
        metrics.RUNS.inc(ended.status)
        run.tell("run.ended", status=ended.status, steps=run.usage.steps, tokens=run.usage.tokens)
        self._changed()

    def _keep(self, run: Underway) -> None:
        """Beside the other ended ones. What is too much goes: first old results, then old runs."""
        self._forget(run.order.id)  # a message may have the id of an item
        self._past[run.order.id] = run
        self._past_bytes += _size(run)
        if len(self._past) > _ENDED_RUNS:
            self._forget(next(iter(self._past)))
        for old in self._past.values():
            if self._past_bytes <= _RESULT_BYTES:
                break
            assert old.ended is not None
            self._past_bytes -= _size(old)
            old.ended = Ended(old.ended.status, error=old.ended.error)

    def _forget(self, run_id: str) -> None:
        if run := self._past.pop(run_id, None):
            self._past_bytes -= _size(run)

    # Steering

    def set_paused(self, on: bool) -> None:
        """Hold all runs at their next step and begin nothing; or let all go on, those held alone too."""
        for run in self._underway:
            run.is_held = run.is_held and on
        self._gate("paused", on)
        metrics.PAUSED.set(to=int(self.paused))

    def set_lame_duck(self, on: bool) -> None:
        """Begin nothing; or begin again."""
        self._gate("lame_duck", on)

    def drain(self) -> None:
        """Begin nothing any more; what is held goes on, so that it can finish."""
        self.set_paused(False)
        self._gate("draining", True)
        for scope in self._stopped_by_drain:
            scope.cancel()

    def interrupt(self, ended: Ended) -> None:
        """End every run at once, so."""
        for run in self.underway():
            run.interrupt(ended)

    def _gate(self, name: str, on: bool) -> None:
        if getattr(self, name) is not on:
            setattr(self, name, on)
            if name == "paused":
                self.events.tell("agent.paused" if on else "agent.resumed")
            else:
                self.events.tell(f"agent.{name}", on=str(on).lower())
        self._changed()

    def _changed(self) -> None:
        metrics.ACTIVE_RUNS.set(to=len(self._underway))
        metrics.SATURATION.set(to=min(len(self._underway) / self.slots, 1.0))
        for tell in self.on_change:
            tell()
        self.wake()


def _span(order: Order) -> AbstractContextManager[Span]:
    attributes = {"agentctl.run.id": order.id}
    if order.trigger is Trigger.ITEM:
        attributes["agentctl.item.id"] = order.id
    return telemetry.tracer().start_as_current_span(f"run {order.trigger}", attributes=attributes)


def _size(run: Underway) -> int:
    """Bytes, at most."""
    return 4 * len(run.ended.text) if run.ended else 0
