"""The reference agent as the plane steers it: `libs.contract.agent.Agent` over the desk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from hashlib import sha256
from types import TracebackType
from typing import Protocol, Self

import anyio

from libs.contract import agent, metrics
from libs.contract.agent import Condition, Draining, Message
from libs.contract.manifest import Manifest
from libs.contract.run import Run, State, Trigger
from libs.contract.statuses import Status
from libs.errors import (
    ExhaustedError,
    ExistsError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)
from libs.ids import new_id

from .desk import Desk
from .order import Ended, Live, Order
from .underway import Underway

_LAST_WORDS = timedelta(seconds=2)
_DRAINED = Ended(Status.DRAINED, error="stopped unfinished by a drain")


class Engine(Protocol):
    """How a run runs."""

    async def run(self, order: Order, live: Live) -> Ended:
        """To its end; never an exception that is about the run."""


class ReferenceAgent(agent.Agent, AbstractAsyncContextManager["ReferenceAgent"]):
    """Ours. Runs that messages begin are its own, and end with the block at the latest.

    `check` raises a MeshError while what the mode depends on is away. `waiting` counts what waits for a run.
    `on_drain` is told how long a drain may take. Without an engine it takes no messages.
    """

    def __init__(
        self,
        desk: Desk,
        manifest: Manifest,
        *,
        drain_timeout: timedelta,
        engine: Engine | None = None,
        instruction: str = "",
    ) -> None:
        self.events = desk.events
        self.desk = desk
        self.check: Callable[[], Awaitable[None]] | None = None
        self.waiting: Callable[[], int] = int
        self.on_drain: list[Callable[[timedelta], None]] = []
        self._manifest = manifest
        self._engine = engine
        self._instruction = instruction
        self._drain_timeout = drain_timeout
        self._drain_ends = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._began = desk.clock()
        self._started = False
        self._is_told = False
        self.is_cut_off = False
        """A drain has come to its end: nothing is waited for any more."""
        self._apart = ""  # what the mode depends on, and is not there
        self._tasks = asyncio.TaskGroup()
        metrics.UP.set(to=1)
        metrics.READY.set(to=0)
        desk.on_change.append(self._say_ready)
        self.events.tell("agent.started", mode=manifest.mode)

    # Its life

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What a message began is finished, within the drain timeout, before the process ends."""
        try:
            if kind is None:
                self.begin_drain(self._drain_timeout)
                await self.desk.until(lambda: not self.desk.underway())
                metrics.DRAINS.inc("completed")
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.desk.interrupt(_DRAINED)
            self.events.tell("agent.stopped")
            self.events.close()
            metrics.READY.set(to=0)
            await self._tasks.__aexit__(kind, error, trace)

    def started(self) -> None:
        """From now on it is ready, as far as the gates and the mode let it."""
        self._started = True
        self._say_ready()
        self.events.tell("agent.ready")

    async def ready(self) -> None:
        """For probes, who ask now and then: MeshError, and why. What the mode depends on is asked, and
        `condition` remembers what it said."""
        if reason := self._closed():
            raise UnavailableError(reason)
        if self.check is not None:
            try:
                await self.check()
                self._apart = ""
            except MeshError as error:
                self._apart = str(error)
                raise
            except asyncio.CancelledError:  # whoever asks has waited long enough
                self._apart = "no answer in time"
                raise
            finally:
                self._say_ready()

    def _closed(self) -> str:
        desk = self.desk
        gates = (("draining", desk.draining), ("lame duck", desk.lame_duck), ("paused", desk.paused))
        reasons = (*(word for word, closed in gates if closed), "" if self._started else "starting")
        return next(filter(None, reasons), desk.unusable)

    def _not_ready(self) -> str:
        return self._closed() or self._apart

    def _say_ready(self) -> None:
        metrics.READY.set(to=not self._not_ready())

    def stop(self) -> None:
        """SIGTERM: drain; the second one: at once. A drain that was asked for before is no SIGTERM."""
        self.begin_drain(timedelta(0) if self._is_told else self._drain_timeout)
        self._is_told = True

    def begin_drain(self, deadline: timedelta) -> None:
        """As `drain`."""
        loop = asyncio.get_running_loop()
        left = min(deadline, self._drain_timeout)
        if not self.desk.draining:
            metrics.DRAINS.inc("started")
        elif loop.time() + left.total_seconds() >= self._drain_ends:
            return
        self._drain_ends = loop.time() + left.total_seconds()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._drain_ends, self._cut_off)
        self.desk.drain()
        for begin in self.on_drain:
            begin(left)

    def _cut_off(self) -> None:
        self.is_cut_off = True
        self.desk.wake()
        if self.desk.underway():
            metrics.DRAINS.inc("forced")
            self.desk.interrupt(_DRAINED)

    @property
    def uptime(self) -> timedelta:
        """Since it was made."""
        return timedelta(seconds=self.desk.clock() - self._began)

    # The contract: what it is and does

    def manifest(self) -> Manifest:
        return self._manifest

    async def condition(self) -> Condition:
        desk, reason = self.desk, self._not_ready()
        return Condition(
            ready=not reason,
            not_ready_reason=reason,
            paused=desk.paused,
            lame_duck=desk.lame_duck,
            draining=desk.draining,
            uptime=self.uptime,
            runs=[run.snapshot() for run in desk.underway()],
            free_slots=desk.free_slots,
            ended_runs=desk.counts,
            usage=desk.usage,
            pending_events=self.waiting(),
        )

    # Verbs

    async def drain(self, deadline: timedelta | None) -> Draining:
        self.begin_drain(self._drain_timeout if deadline is None else max(deadline, timedelta(0)))
        left = max(self._drain_ends - asyncio.get_running_loop().time(), 0.0)
        return Draining(len(self.desk.underway()), timedelta(seconds=left))

    async def lame_duck(self, enabled: bool) -> Condition:
        self._refuse_in_a_drain()
        self.desk.set_lame_duck(enabled)
        return await self.condition()

    async def cancel(self, run_id: str, reason: str) -> Sequence[Run]:
        concerned = self._concerned(run_id)
        for run in concerned:
            run.interrupt(Ended(Status.CANCELLED, error=reason or "cancelled"))
        await self.desk.until(lambda: all(run.ended for run in concerned))
        return [run.snapshot() for run in concerned]

    async def pause(self, run_id: str, wait: timedelta) -> Sequence[Run]:
        self._refuse_in_a_drain()
        concerned = self._concerned(run_id)
        if run_id:
            concerned[0].is_held = concerned[0].ended is None
        else:
            self.desk.set_paused(True)

        def is_over() -> bool:
            is_taken_back = not (self.desk.paused or any(run.is_held for run in concerned))
            return is_taken_back or all(run.state is not State.WORKING for run in concerned)

        with anyio.move_on_after(wait.total_seconds()):
            await self.desk.until(is_over)
        return [run.snapshot() for run in concerned]

    async def resume(self, run_id: str) -> Sequence[Run]:
        concerned = self._concerned(run_id)
        if run_id:
            concerned[0].is_held = False
            self.desk.wake()
        else:
            self.desk.set_paused(False)
        await self.desk.until(
            lambda: self.desk.paused or all(run.is_held or run.state is not State.PAUSED for run in concerned)
        )
        return [run.snapshot() for run in concerned]

    def _concerned(self, run_id: str) -> list[Underway]:
        return [self.desk.find(run_id)] if run_id else self.desk.underway()

    def _refuse_in_a_drain(self) -> None:
        if self.desk.draining:
            raise PreconditionError("the agent drains, which is one way")

    # Runs

    async def send(self, message: Message) -> Run:
        if self._engine is None or not self._manifest.surfaces.messages:
            raise UnimplementedError("this agent takes no messages: it has no model")
        if message.run_id and (known := self._known(message)):
            return known.snapshot()
        self._admit(message.depth)
        order = Order(
            id=message.run_id or new_id(),
            trigger=Trigger.MESSAGE,
            instruction=self._instruction,
            text=message.text,
            context_id=message.context_id or new_id(),
            depth=message.depth,
        )
        engine, run = self._engine, self.desk.begin(order)
        self._tasks.create_task(self.desk.carry(run, lambda live: engine.run(order, live)))
        return run.snapshot()

    def _known(self, message: Message) -> Underway | None:
        try:
            known = self.desk.find(message.run_id)
        except NotFoundError:
            return None
        if known.digest != sha256(message.text.encode(errors="replace")).digest():
            raise ExistsError(f"there is another run {message.run_id!r}")
        return known

    def _admit(self, depth: int) -> None:
        desk = self.desk
        most = self._manifest.limits.max_depth
        if not self._started:
            raise UnavailableError("starting")
        if not desk.is_open:
            metrics.REFUSALS.inc("draining" if desk.draining else "paused" if desk.paused else metrics.OTHER)
            raise UnavailableError(self._closed())
        if most and depth > most:
            metrics.REFUSALS.inc("depth")
            raise ExhaustedError(f"depth {depth} is more than the {most} that are allowed")
        if not desk.free_slots:
            metrics.REFUSALS.inc("slots")
            raise ExhaustedError(f"all {desk.slots} slots are taken")

    def run(self, run_id: str) -> Run:
        return self.desk.find(run_id).snapshot()

    def runs(self) -> Sequence[Run]:
        known = sorted((*self.desk.past(), *self.desk.underway()), key=lambda run: run.began, reverse=True)
        return [run.snapshot() for run in known]

    async def watch(self, run_id: str) -> AsyncIterator[Run]:
        run = self.desk.find(run_id)
        last = None
        while True:
            now = run.snapshot()
            seen = (now.state, now.activity, now.subject, now.usage)
            if seen != last:
                last = seen
                yield now  # which takes a while: there may be news already
            elif now.state.ended:
                return
            else:
                await self.desk.news()
