"""One order at many pods at once, within one deadline.

How far it has come is written down pod by pod, so that what is over at the deadline has its outcome, and what
is not says what it waits for. An agent that never answers costs the others nothing.

Tasks and timeouts are asyncio's own: a call of grpc.aio that is cancelled raises a CancelledError that anyio
does not know for its own, and one scope's end would be taken for that of the whole group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from libs.contract import checks
from libs.contract import wire as contract
from libs.contract.agent import Condition
from libs.contract.run import Run, State
from libs.contract.statuses import Status
from libs.errors import (
    ConflictError,
    DeadlineError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnreachableError,
)

from .agents import Dial, brief
from .exits import Exits
from .pods import Pod
from .verbs import Order, Outcome, Stage, Verb, counted

if TYPE_CHECKING:
    from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 2.0  # between two looks at what has no watch, and two tries
_LATE = "it did not answer in time"


class ForeignError(MeshError):
    """An agent of another major version of the contract: what it says means nothing to us."""

    code = PreconditionError.code
    reason = "FOREIGN"


class ExitedError(MeshError):
    """The process that was asked is there no more."""

    code = PreconditionError.code
    reason = "EXITED"


class Attempt:
    """An order at one pod. Until it has come further it is what it will be at the deadline."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.outcome = Outcome(pod.name, pod.uid, Stage.FAILED, DeadlineError.reason, _LATE)
        self.is_here: bool | None = None
        """Whether the run that is meant is known there; None: who knows."""
        self.is_under_way = False
        """Whether it has not ended there."""

    def reach(self, stage: Stage, message: str = "", *, count: int = 0, runs: Sequence[Run] = ()) -> None:
        """So far it has come."""
        self.outcome = Outcome(self.pod.name, self.pod.uid, stage, "", message, count, tuple(runs))

    def wait(self, message: str) -> None:
        """What it waits for."""
        self.outcome = replace(self.outcome, message=message)

    def fail(self, reason: str, message: str) -> None:
        """It comes no further."""
        self.outcome = replace(self.outcome, stage=Stage.FAILED, reason=reason, message=message)


class FanOut:
    """An order on its way to all its pods. `ends_at` is on the loop's clock; `is_as_found` says whether the
    process in a pod is still the one that ran when the pod was found; with `exits` a drain waits for the end
    of the processes."""

    def __init__(
        self,
        order: Order,
        dial: Dial,
        ends_at: float,
        is_as_found: Callable[[Pod], Awaitable[bool]],
        exits: Exits | None = None,
    ) -> None:
        self._order = order
        self._dial = dial
        self._ends_at = ends_at
        self._is_as_found = is_as_found
        self._exits = exits
        self._effect = max(order.until, Stage.IN_EFFECT)
        """The stage of what is in effect: of all verbs but drain that is all that comes of them."""
        self._looking: dict[Attempt, asyncio.Task[object]] = {}
        """Those that do not know yet whether the run is at their pod."""
        self._verbs: dict[Verb, Callable[[AgentServiceAsyncStub, Attempt], Awaitable[None]]] = {
            Verb.DRAIN: self._drain,
            Verb.LAME_DUCK: self._lame_duck,
            Verb.CANCEL: self._cancel,
            Verb.PAUSE: self._pause,
            Verb.RESUME: self._resume,
        }

    async def run(self, pods: Sequence[Pod]) -> list[Outcome]:
        """What became of it at each pod; of one run only where it is, or might be. NotFoundError if that is
        nowhere."""
        attempts = [Attempt(pod) for pod in pods]
        async with asyncio.TaskGroup() as group:
            for attempt in attempts:
                group.create_task(self._at(attempt))
        if self._order.run_id:
            under_way = [attempt for attempt in attempts if attempt.is_under_way]
            attempts = under_way or [attempt for attempt in attempts if attempt.is_here is not False]
            if not attempts:
                raise NotFoundError(f"no run {self._order.run_id} in {self._order.target}")
        return [attempt.outcome for attempt in attempts]

    async def _at(self, attempt: Attempt) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._order.run_id:
            self._looking[attempt] = task
        try:
            async with asyncio.timeout_at(self._ends_at):
                await self._try(attempt)
        except (DeadlineError, TimeoutError):
            pass  # the outcome says how far it came
        except MeshError as error:
            attempt.fail(error.reason, str(error))
        finally:
            self._looking.pop(attempt, None)

    async def _try(self, attempt: Attempt) -> None:
        """Again and again while nobody answers. All verbs may be repeated, but a drain that was taken ends
        its process, and must not end the next one, too."""
        for pause in _pauses():
            try:
                async with self._dial(attempt.pod) as agent:
                    return await self._do(agent, attempt)
            except UnreachableError as error:
                attempt.wait(f"{_LATE}: {brief(error)}")
            await asyncio.sleep(pause)
            is_drain = self._order.verb is Verb.DRAIN and not self._order.dry_run
            if is_drain and not await self._is_as_found(attempt.pod):
                if self._exits and attempt.pod.began:  # another drain's work, perhaps
                    return await self._exit(attempt, self._exits)
                raise ExitedError("nobody answered, and its process has ended since")

    async def _do(self, agent: AgentServiceAsyncStub, attempt: Attempt) -> None:
        run = await self._find(agent, attempt) if self._order.run_id else None
        if self._order.run_id and run is None:
            return
        self._refuse_ended([run] if run else [])
        if self._order.dry_run:
            await self._would(agent, attempt, run)
        else:
            await self._verbs[self._order.verb](agent, attempt)

    async def _find(self, agent: AgentServiceAsyncStub, attempt: Attempt) -> Run | None:
        """The run, if it is here. Where it is under way nobody else has it: the others need not answer."""
        try:
            run = await self._run(agent, self._order.run_id)
        except NotFoundError:
            attempt.is_here = False
            return None
        self._looking.pop(attempt, None)
        attempt.is_here, attempt.is_under_way = True, not run.state.ended
        attempt.outcome = replace(attempt.outcome, runs=(run,))
        if attempt.is_under_way:
            for other in self._looking.values():
                other.cancel()
        return run

    async def _would(self, agent: AgentServiceAsyncStub, attempt: Attempt, run: Run | None) -> None:
        told = await agent.GetManifest(pb.GetManifestRequest(), timeout=self._left())
        name = self._order.verb.rpc
        if name not in told.manifest.surfaces.verbs:
            attempt.fail("UNIMPLEMENTED", f"this agent has no {name}")
            return
        runs = [run] if run else []
        attempt.reach(Stage.WOULD, count=len(runs or (await self._condition(agent)).runs), runs=runs)

    # --- The verbs ---

    async def _drain(self, agent: AgentServiceAsyncStub, attempt: Attempt) -> None:
        grace = self._order.grace
        request = pb.DrainRequest(deadline=None if grace is None else contract.duration(grace))
        begun = await agent.Drain(request, timeout=self._left())
        seconds = begun.remaining.ToTimedelta().total_seconds()
        attempt.reach(Stage.IN_EFFECT, f"it ends within {seconds:.0f} s", count=begun.run_count)
        if self._exits:
            await self._exit(attempt, self._exits)

    async def _exit(self, attempt: Attempt, exits: Exits) -> None:
        ended = await exits.of(attempt.pod)
        if ended is None:
            attempt.wait("the pod is gone, and nobody said how its process ended")
        elif ended.code == 0:
            attempt.reach(Stage.FINISHED)
        else:
            raise ExitedError(f"its process exited with {ended.code} {ended.reason}".strip())

    async def _lame_duck(self, agent: AgentServiceAsyncStub, attempt: Attempt) -> None:
        undo = self._order.undo
        answer = await agent.LameDuck(pb.LameDuckRequest(enabled=not undo), timeout=self._left())
        ready, count = answer.ready, answer.run_count
        for pause in _pauses():
            if ready is undo:
                attempt.reach(self._effect, count=count)
                return
            attempt.reach(Stage.ACCEPTED, "it is not ready yet" if undo else "it is still ready", count=count)
            try:
                condition = await self._condition(agent)
            except UnavailableError as error:
                attempt.wait(brief(error))
            else:
                if undo and condition.draining:
                    raise PreconditionError("it drains")
                ready, count = condition.ready, len(condition.runs)
                if ready is undo:
                    continue
                if undo:
                    attempt.wait(f"it is not ready yet: {condition.not_ready_reason}")
            if self._order.until is Stage.ACCEPTED:
                return
            await asyncio.sleep(pause)

    async def _cancel(self, agent: AgentServiceAsyncStub, attempt: Attempt) -> None:
        request = pb.CancelRequest(run_id=self._order.run_id, reason=self._order.reason)
        answer = await agent.Cancel(request, timeout=self._left())
        await self._settle(agent, attempt, answer.runs, lambda run: run.state.ended, "to end")

    async def _pause(self, agent: AgentServiceAsyncStub, attempt: Attempt) -> None:
        wait = timedelta(0)
        if self._order.until > Stage.ACCEPTED:
            wait = min(timedelta(seconds=self._left()), checks.MAX_WAIT)
        request = pb.PauseRequest(run_id=self._order.run_id, wait=contract.duration(wait))
        answer = await agent.Pause(request, timeout=self._left())
        await self._settle(
            agent, attempt, answer.runs, lambda run: run.state is not State.WORKING, "to come to a step"
        )

    async def _resume(self, agent: AgentServiceAsyncStub, attempt: Attempt) -> None:
        answer = await agent.Resume(pb.ResumeRequest(run_id=self._order.run_id), timeout=self._left())
        await self._settle(agent, attempt, answer.runs, lambda run: run.state is not State.PAUSED, "to go on")

    async def _settle(
        self,
        agent: AgentServiceAsyncStub,
        attempt: Attempt,
        told: Sequence[run_pb2.Run],
        is_so: Callable[[Run], bool],
        what: str,
    ) -> None:
        """In effect when it is so of all the runs concerned, and of the agent what `_hindrance` looks at."""
        runs = [_run(message) for message in told]
        for pause in _pauses():
            count = sum(not run.state.ended for run in runs)
            others = [run.id for run in runs if not is_so(run)]
            waits = f"waits for {counted(len(others), 'run')} {what}" if others else ""
            attempt.reach(Stage.ACCEPTED, waits, count=count, runs=runs)
            self._refuse_ended(runs)
            try:
                hindrance = await self._hindrance(agent, attempt.pod)
            except UnavailableError as error:
                hindrance = brief(error)
            if not (hindrance or waits):
                attempt.reach(self._effect, count=count, runs=runs)
                return
            attempt.wait(hindrance or waits)
            if self._order.until is Stage.ACCEPTED:
                return
            await asyncio.sleep(pause)
            try:
                runs = [run if is_so(run) else await self._run(agent, run.id) for run in runs]
            except NotFoundError as error:
                raise await self._since(attempt.pod, error) from None
            except UnavailableError as error:
                attempt.wait(brief(error))

    def _refuse_ended(self, runs: Sequence[Run]) -> None:
        """PreconditionError if the one that is meant has ended, other than by a cancel as is asked for."""
        for run in runs if self._order.run_id else ():
            is_cancelled = run.status is Status.CANCELLED and self._order.verb is Verb.CANCEL
            if run.state.ended and not is_cancelled:
                raise PreconditionError(f"it has already ended: {run.status or run.state}")

    async def _hindrance(self, agent: AgentServiceAsyncStub, pod: Pod) -> str:
        """What of the whole agent keeps a verb from being in effect that may be so of its runs."""
        order = self._order
        if order.verb is Verb.RESUME and order.run_id:
            return "the whole agent is paused" if (await self._condition(agent)).paused else ""
        if order.verb is Verb.PAUSE and not order.run_id and order.until > Stage.ACCEPTED:
            condition = await self._condition(agent)
            if condition.draining:
                raise PreconditionError("it drains")
            if not condition.paused:
                raise await self._since(pod, ConflictError("the pause was taken back"))
        return ""

    async def _since(self, pod: Pod, error: MeshError) -> MeshError:
        """The error of a process that does not know what it was told, unless that was another one."""
        return error if await self._is_as_found(pod) else ExitedError("its process has ended since")

    # --- Asking ---

    async def _run(self, agent: AgentServiceAsyncStub, run_id: str) -> Run:
        answer = await agent.GetRun(pb.GetRunRequest(run_id=run_id), timeout=self._left())
        return replace(_run(answer.run), result="")

    async def _condition(self, agent: AgentServiceAsyncStub) -> Condition:
        return await condition_of(agent, self._left())

    def _left(self) -> float:
        return max(self._ends_at - asyncio.get_running_loop().time(), 0.001)


async def condition_of(agent: AgentServiceAsyncStub, seconds: float) -> Condition:
    """What an agent is doing. ForeignError."""
    answer = await agent.GetStatus(pb.GetStatusRequest(), timeout=seconds)
    try:
        return contract.condition_from_pb(answer)
    except ValueError as error:
        raise ForeignError(str(error)) from None


def _run(message: run_pb2.Run) -> Run:
    try:
        return contract.run_from_pb(message)
    except ValueError as error:
        raise ForeignError(str(error)) from None


def _pauses() -> Iterator[float]:
    seconds = _PAUSE_SECONDS
    while True:
        yield seconds
        seconds = min(seconds * 1.5, _LONGEST_PAUSE_SECONDS)
