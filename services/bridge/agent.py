"""The agent as the plane steers it. What agentd promises is checked before it is passed on as done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

import anyio
from anyio.abc import TaskGroup

from libs.contract.agent import Agent, Condition, Draining, Message
from libs.contract.events import Ring
from libs.contract.manifest import Manifest
from libs.contract.metrics import DRAINS, REFUSALS
from libs.contract.run import Run, State, Trigger, Usage
from libs.contract.statuses import Status
from libs.errors import ExhaustedError, MeshError, PreconditionError, UnavailableError, UnimplementedError
from libs.ids import new_id
from libs.work import Worker

from .events import told_of
from .foreign import Body, Foreign
from .manifest import Known, manifest_of
from .presence import Presence, must_be_here
from .runs import Entry
from .work import Work

_CHECK_SECONDS = 1.5
_FIRST_LOOK, _LONGEST_LOOK = 0.1, 0.5
_GRACE = timedelta(seconds=10)  # beyond a drain's deadline: agentd's own ladder from SIGTERM to SIGKILL
_LEAST_DRAIN = timedelta(seconds=1)
_ENDS = ("subagent.exit", "loop.final", "loop.error")
_DRAINING = ("proc.shutdown", "drain.")
_TRIGGERS = {
    "once": Trigger.ONCE,
    "loop": Trigger.LOOP,
    "schedule": Trigger.LOOP,
    "workflow": Trigger.WORKFLOW,
}
_log = logging.getLogger(__name__)


class BridgedAgent(Agent):
    """agentd, as an `Agent`. It is told by `Presence` what becomes of the process."""

    def __init__(
        self,
        foreign: Foreign,
        presence: Presence,
        work: Work,
        events: Ring,
        known: Known,
        drain_timeout: timedelta,
        tasks: TaskGroup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._foreign = foreign
        self._presence = presence
        self._work = work
        self._known = known
        self._drain_timeout = drain_timeout
        self._tasks = tasks
        self._clock = clock
        self._began = clock()
        self._manifest: Manifest | None = None
        self._mode = ""
        self._is_lame = False
        self._drain_ends: float | None = None
        self._worker: Worker | None = None
        self.events = events
        self.ended = asyncio.Event()
        """Set when a drain is over, or after a failure: there is nothing more to do."""
        self.failure = ""

    # --- What Presence tells ---

    async def clear(self) -> None:
        """Ends what a bridge that was killed had begun: nobody waits for it, and it takes up slots."""
        await self._work.end_strays()

    def arrived(self, capabilities: Body) -> None:
        """It is there. PreconditionError if it speaks another contract."""
        self._manifest = manifest_of(capabilities, self._known)
        self._mode = str(capabilities.get("mode", ""))
        self.events.tell("agent.started", version=self._manifest.implementation_version)
        self.events.tell("agent.ready")
        self._open_or_close()

    def gone(self) -> None:
        """Its process has ended."""
        self._work.lose_all()
        self.events.tell("agent.stopped")
        self._open_or_close()

    def told(self, event: Body) -> None:
        """It has told of an event."""
        name = str(event.get("event", ""))
        if name.startswith(_DRAINING) and self._known.queue and self._drain_ends is None:
            self._drained_by_itself()
        if (mapped := told_of(event)) is not None:
            run_id = self._work.run_id_of(str(event.get("agent_id", "")))
            self.events.tell(mapped.name, run_id, **mapped.fields)
        if name in _ENDS:
            self._work.nudge()

    def steer(self, worker: Worker) -> None:
        """Whose claims are to begin and end with the agent's readiness for work."""
        self._worker = worker
        self._open_or_close()

    async def claim(self, claiming: Coroutine[object, object, None]) -> None:
        """Runs the claims. If they are refused for good, there is nothing more to do."""
        try:
            await claiming
        except MeshError as error:
            _log.error("may not claim", extra={"reason": str(error)})
            self.failure = str(error)
            self.ended.set()

    # --- What it is and does ---

    def manifest(self) -> Manifest:
        must_be_here(self._presence)
        if self._presence.why_not or self._manifest is None:
            raise PreconditionError(self._presence.why_not)
        return self._manifest

    @property
    def is_open(self) -> bool:
        """Whether something new may begin."""
        return not self.why_closed

    @property
    def why_closed(self) -> str:
        """Why nothing new may begin; empty if it may."""
        if self._drain_ends is not None:
            return "draining"
        if self._is_lame:
            return "a lame duck"
        return self._presence.why_not or ("paused" if self._work.is_paused else "")

    async def condition(self) -> Condition:
        why = self.why_closed if self.why_closed != "paused" else ""
        others: Sequence[Run] = ()
        if self._presence.is_here:
            try:
                inventory = await self._foreign.read("inventory", _CHECK_SECONDS)
            except MeshError as error:
                why = why or str(error)
            else:
                others = [self._other(each) for each in self._work.look(inventory)]
                if not inventory.get("ready", True):
                    why = why or "the agent says that it is not ready"
        runs = self._work.runs
        shown = [runs.shown(each) for each in runs.active]
        return Condition(
            ready=not why,
            not_ready_reason=why,
            paused=self._work.is_paused,
            lame_duck=self._is_lame,
            draining=self._drain_ends is not None,
            uptime=timedelta(seconds=self._clock() - self._began),
            runs=[*others, *shown],
            free_slots=self._work.free_slots if self.is_open else 0,
            ended_runs=dict(runs.ended_by_status),
            usage=sum((each.usage for each in [*others, *shown]), runs.usage_of_ended),
        )

    # --- Verbs ---

    async def drain(self, deadline: timedelta | None) -> Draining:
        length = self._drain_timeout if deadline is None else min(deadline, self._drain_timeout)
        ends = self._clock() + length.total_seconds()
        if self._drain_ends is None:
            self._drain_ends = ends
            self._begin_drain()
            self._tasks.start_soon(self._finish)
        self._drain_ends = min(self._drain_ends, ends)
        if self._worker is not None:
            self._worker.drain(self._left)
        self._work.nudge()
        others = await self._others() if self._presence.is_here else []
        return Draining(len(self._work.runs.active) + len(others), self._left)

    async def lame_duck(self, enabled: bool) -> Condition:
        self._must_not_drain()
        must_be_here(self._presence)
        await self._foreign.call("a2a.LameDuck", {"ready": not enabled})
        self._is_lame = enabled
        self.events.tell("agent.lame_duck", enabled=enabled)
        self._open_or_close()
        return await self.condition()

    async def cancel(self, run_id: str, reason: str) -> Sequence[Run]:
        runs = self._work.runs
        entries = [runs.find(run_id)] if run_id else runs.active
        for entry in entries:
            if entry.status is None:
                entry.cancel_reason = reason or "cancelled"
                await self._work.ask_to_end(entry)
        if not run_id and self._presence.is_here:
            await self._work.try_verb("a2a.Cancel", reason=reason)
        for entry in entries:
            await runs.over(entry)
        return [runs.shown(each) for each in entries] + ([] if run_id else await self._others())

    async def pause(self, run_id: str, wait: timedelta) -> Sequence[Run]:
        self._must_not_drain()
        self._must_mean_all(run_id)
        was_paused, self._work.is_paused = self._work.is_paused, True
        self._open_or_close()
        try:
            await self._foreign.call("a2a.Pause")
        except MeshError:
            self._work.is_paused = was_paused
            self._open_or_close()
            raise
        if not was_paused:
            self.events.tell("agent.paused")
        runs = self._work.runs
        entries = runs.active
        others = await self._until_held(entries, wait)
        return [runs.shown(each) for each in entries] + others

    async def resume(self, run_id: str) -> Sequence[Run]:
        self._must_mean_all(run_id)
        must_be_here(self._presence)
        await self._foreign.call("a2a.Resume")
        if self._work.is_paused:
            self._work.is_paused = False
            self.events.tell("agent.resumed")
        self._open_or_close()
        others = await self._others()
        runs = self._work.runs
        return [runs.shown(each) for each in runs.active] + others

    # --- Messages and runs ---

    async def send(self, message: Message) -> Run:
        runs = self._work.runs
        if message.run_id and (same := runs.same(message.run_id, message.text)) is not None:
            return runs.shown(same)
        self._admit(message.depth)
        entry = runs.begin(
            message.run_id or new_id(), Trigger.MESSAGE, message.text, message.context_id or new_id()
        )
        try:
            await self._work.begin(entry, message.text)
        except ExhaustedError:
            REFUSALS.inc("slots")
            raise
        return runs.shown(entry)

    def run(self, run_id: str) -> Run:
        return self._work.runs.shown(self._work.runs.find(run_id))

    def runs(self) -> Sequence[Run]:
        return [self._work.runs.shown(each) for each in reversed(list(self._work.runs))]

    def watch(self, run_id: str) -> AsyncIterator[Run]:
        return self._work.runs.watch(self._work.runs.find(run_id))

    # --- How ---

    def _admit(self, depth: int) -> None:
        if why := self.why_closed:
            REFUSALS.inc(why)
            raise UnavailableError(f"nothing new is begun: {why}")
        if depth > self._known.max_depth:
            REFUSALS.inc("depth")
            raise ExhaustedError(f"depth {depth} is more than the {self._known.max_depth} that are allowed")
        if not self._work.free_slots:
            REFUSALS.inc("slots")
            raise ExhaustedError(f"all {self._known.slots} slots are taken")

    def _must_not_drain(self) -> None:
        if self._drain_ends is not None:
            raise PreconditionError("the agent drains, which is one way")

    def _must_mean_all(self, run_id: str) -> None:
        must_be_here(self._presence)
        if run_id:
            self._work.runs.find(run_id)
            raise UnimplementedError("agentd pauses and resumes all of its runs, or none")

    def _open_or_close(self) -> None:
        if self._worker is None or self._drain_ends is not None:
            return
        if self.is_open:
            self._worker.resume()
        else:
            self._worker.suspend()

    async def _until_held(self, entries: Sequence[Entry], wait: timedelta) -> list[Run]:
        """Returns when they hold or have ended, or when the wait is over; runs of the agent's own, which a
        pause does not reach, are not waited for."""
        others: list[Run] = []
        look = _FIRST_LOOK
        with anyio.move_on_after(wait.total_seconds()):
            while True:
                others = await self._others()
                if all(each.held or each.status is not None for each in entries):
                    return others
                with anyio.move_on_after(look):
                    await self._work.changed()
                look = min(look * 1.5, _LONGEST_LOOK)
        return others

    async def _others(self) -> list[Run]:
        """What the agent does by itself; nothing if it does not answer."""
        try:
            inventory = await self._foreign.read("inventory", _CHECK_SECONDS)
        except MeshError as error:
            _log.warning("cannot look at the agent's runs: %s", error)
            return []
        return [self._other(each) for each in self._work.look(inventory)]

    def _other(self, node: Mapping[str, Any]) -> Run:
        usage = node.get("usage") or {}
        spent = Usage(
            int(usage.get("tokens_in") or 0), int(usage.get("tokens_out") or 0), int(usage.get("steps") or 0)
        )
        trigger = _TRIGGERS.get(self._mode, Trigger.REACTION)
        return Run(f"agent:{node.get('handle')}", trigger, State.WORKING, usage=spent)

    # --- The end ---

    @property
    def _left(self) -> timedelta:
        return timedelta(seconds=max((self._drain_ends or 0) - self._clock(), 0))

    def _begin_drain(self) -> None:
        DRAINS.inc("started")
        self._work.is_draining = True
        self.events.tell("agent.draining")
        _log.info("draining")

    def _drained_by_itself(self) -> None:
        """It has been told to end by somebody else: no claim can be served any more."""
        self._drain_ends = self._clock() + self._drain_timeout.total_seconds()
        self._begin_drain()
        if self._worker is not None:
            self._worker.drain(self._drain_timeout)
        self._tasks.start_soon(self._finish)

    async def _finish(self) -> None:
        """Lets what is begun finish in time, gives the rest back, and has the agent end."""
        while self._work.runs.active and self._left:
            with anyio.move_on_after(self._left.total_seconds()):
                await self._work.changed()
        rest = [each for each in self._work.runs.active if each.trigger is Trigger.MESSAGE]
        for entry in rest:
            await self._work.give_up(entry, Status.DRAINED)
        if self._presence.is_here:
            length = max(self._left, _LEAST_DRAIN)
            await self._work.try_verb("a2a.Drain", deadline_ms=round(length.total_seconds() * 1000))
            with anyio.move_on_after((length + _GRACE).total_seconds()):
                while self._presence.is_here:
                    await self._work.changed()
        DRAINS.inc("forced" if rest or self._presence.is_here else "completed")
        _log.info("drained")
        self.ended.set()
