"""Runs the steps of a workflow document once, and the process ends as they did."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

import anyio
from anyio import to_thread

from libs.contract import metrics
from libs.contract.run import Trigger, Usage
from libs.contract.statuses import Status
from libs.settings import shown

from ..backoff import Pauses
from ..desk import Desk
from ..order import Ended, Live, Order
from ..steering import Engine
from ..underway import Underway
from .kept import Finished, Kept
from .steps import Plan, Step, filled, handed

_AGAIN = (Status.FAILED, Status.MODEL, Status.SERVER, Status.DEADLINE)
_log = logging.getLogger("agent")


class Tools(Protocol):
    """What steps call."""

    async def perform(self, name: str, arguments: Mapping[str, Any], order: Order, live: Live) -> Ended:
        """A call of `server.tool`, as the end of a step."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """Does the steps of a plan, independent ones side by side."""

    desk: Desk
    plan: Plan
    run_id: str
    engine: Engine | None = None
    tools: Tools | None = None
    instruction: str = ""
    """Before that of each step."""
    deadline: timedelta | None = None
    kept: Kept | None = None
    waits: Callable[[], Pauses] = Pauses
    """Between the tries of a step."""

    async def run(self) -> Ended:
        """The run: its result is that of the last step. `drained` if a drain comes before its end."""
        if not await self.desk.may_begin():
            return Ended(Status.DRAINED, error="drained before the run began")
        order = Order(self.run_id, Trigger.WORKFLOW, self.instruction)
        return await self.desk.execute(order, self._work)

    async def _work(self, run: Underway) -> Ended:
        with anyio.move_on_after(_seconds(self.deadline)) as scope:
            return await _Course(self, run, Clock(scope)).run()
        metrics.LIMITS.inc("deadline")
        run.tell("limit.reached", limit="deadline")
        assert self.deadline is not None
        return Ended(Status.DEADLINE, error=f"not done within {shown(self.deadline)}")


class _Course:
    """A workflow under way."""

    def __init__(self, workflow: Workflow, run: Underway, clock: Clock) -> None:
        self._clock = clock
        self._workflow = workflow
        self._plan = workflow.plan
        self._run = run
        self._slots = anyio.Semaphore(workflow.desk.slots)
        self._results: dict[str, str] = {}
        self._done = {step.name: anyio.Event() for step in self._plan.steps}
        self._failure: Ended | None = None

    async def run(self) -> Ended:
        self._take_up()
        self._run.parts = 0  # each step is one
        async with anyio.create_task_group() as steps:
            for step in self._plan.steps:
                if not self._done[step.name].is_set():
                    steps.start_soon(self._step, step, steps.cancel_scope)
        return self._failure or Ended(Status.COMPLETED, self._results[self._plan.steps[-1].name])

    def _take_up(self) -> None:
        """Goes on where a process before this one was ended."""
        if (kept := self._workflow.kept) is None:
            return
        try:
            found = kept.read()
        except OSError as error:
            _log.warning("cannot read finished steps", extra={"reason": str(error)})
            return
        for name, finished in found.items():
            if name not in self._done:
                continue
            self._results[name] = finished.text
            self._run.spend(finished.usage)
            self._done[name].set()
            self._run.tell("step.ended", step=name, status="kept")

    async def _step(self, step: Step, all_steps: anyio.CancelScope) -> None:
        for name in self._plan.waits[step.name]:
            await self._done[name].wait()
        async with self._slots:
            with self._run.part():
                self._run.subject = step.name
                ended, usage = await self._tries(step)
        self._run.tell("step.ended", step=step.name, status=ended.status)
        if ended.status is Status.COMPLETED:
            await self._keep(step.name, Finished(ended.text, usage))
            self._results[step.name] = ended.text
            self._done[step.name].set()
        elif self._failure is None:
            self._failure = replace(ended, error=f"step {step.name}: {ended.error}")
            all_steps.cancel()

    async def _tries(self, step: Step) -> tuple[Ended, Usage]:
        waits = self._workflow.waits()
        live = _StepLive(self._run, self._clock)
        while True:
            await live.step(f"step {step.name}")
            live.tell("step.started", step=step.name)
            ended = await self._once(step, live)
            if ended.status not in _AGAIN or ended.is_ours or live.tries > step.retries:
                return ended, live.own
            _log.warning(
                "a step failed; trying again",
                extra={"step": step.name, "status": ended.status, "reason": ended.error},
            )
            live.clocks = (self._clock,)
            await anyio.sleep(waits.at_least(ended.retry_after))

    async def _once(self, step: Step, live: _StepLive) -> Ended:
        live.tries += 1
        with anyio.move_on_after(_seconds(step.within)) as scope:
            live.clocks = (self._clock, Clock(scope))
            return await self._do(step, live)
        return Ended(Status.DEADLINE, error=f"not done within {step.deadline}")

    async def _do(self, step: Step, live: _StepLive) -> Ended:
        workflow = self._workflow
        order = Order(f"{workflow.run_id}/{step.name}", Trigger.WORKFLOW, "", subject=step.name)
        if step.tool:
            assert workflow.tools is not None
            return await workflow.tools.perform(step.tool, filled(step.arguments, self._results), order, live)
        assert workflow.engine is not None
        instruction = "\n\n".join(filter(None, (workflow.instruction, step.instruction)))
        text = handed(step, self._plan.waits[step.name], self._results)
        return await workflow.engine.run(replace(order, instruction=instruction, text=text), live)

    async def _keep(self, name: str, finished: Finished) -> None:
        if (kept := self._workflow.kept) is None:
            return
        try:
            await to_thread.run_sync(kept.write, name, finished)
        except OSError as error:
            _log.warning("cannot keep a finished step", extra={"step": name, "reason": str(error)})


class Clock:
    """A deadline that stands still while a run is held; steps side by side may hold it at the same time."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._left = 0.0
        self._holds = 0

    def stop(self) -> None:
        if not self._holds:
            self._left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf
        self._holds += 1

    def go(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._scope.deadline = anyio.current_time() + self._left


class _StepLive:
    """The run as the engine sees it from inside a step: limits are the whole run's."""

    def __init__(self, run: Underway, clock: Clock) -> None:
        self._run = run
        self.clocks: tuple[Clock, ...] = (clock,)
        self.own = Usage()
        self.tries = 0

    @property
    def usage(self) -> Usage:
        return self._run.usage

    async def step(self, activity: str) -> None:
        for clock in self.clocks:
            clock.stop()
        try:
            await self._run.step(activity)
        finally:
            for clock in self.clocks:
                clock.go()

    def spend(self, usage: Usage) -> None:
        self.own += usage
        self._run.spend(usage)

    def tell(self, name: str, **fields: object) -> None:
        self._run.tell(name, **fields)


def _seconds(length: timedelta | None) -> float:
    return math.inf if length is None else length.total_seconds()
