"""The agent as the plane steers it. What agentd promises is checked before it is passed on as done."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta

import anyio
from anyio.abc import TaskGroup

from libs.contract.agent import Agent, Condition, Draining, Message
from libs.contract.events import Ring
from libs.contract.manifest import Manifest
from libs.contract.metrics import REFUSALS
from libs.contract.run import Run, State, Trigger
from libs.errors import ExhaustedError, MeshError, PreconditionError, UnavailableError
from libs.ids import new_id
from libs.work import Worker

from .draining import Drain
from .events import told_of
from .foreign import Body, Foreign
from .manifest import Known, manifest_of
from .others import Others
from .outliving import outliving
from .presence import Presence, must_be_here
from .runs import Entry
from .turns import Turns
from .work import Work

_FIRST_LOOK, _LONGEST_LOOK = 0.1, 0.5
_ENDS = ("subagent.exit", "loop.final", "loop.error")
_DRAINING = ("proc.shutdown", "drain.")
_log = logging.getLogger(__name__)


class BridgedAgent(Agent):
    """agentd, as an `Agent`. It is told by `Presence` what becomes of the process."""

    def __init__(
        self,
        foreign: Foreign,
        presence: Presence,
        work: Work,
        turns: Turns,
        events: Ring,
        known: Known,
        drain_timeout: timedelta,
        tasks: TaskGroup,
        pending: Callable[[], Awaitable[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._foreign = foreign
        self._presence = presence
        self._work = work
        self._turns = turns
        self._others = Others(foreign, work, turns)
        self._known = known
        self._drain = Drain(work, presence, events, drain_timeout, tasks, clock)
        self._pending = pending
        self._clock = clock
        self._began = clock()
        self._manifest: Manifest | None = None
        self._is_lame = False
        self.events = events
        self.ended = self._drain.over
        """Set when a drain is over, or after a failure: there is nothing more to do."""
        self.failure = ""
        self.was_drained = False
        """The agent has said that it drains."""

    # --- What Presence tells ---

    async def clear(self) -> None:
        """Ends what a bridge that was killed had begun: nobody waits for it, and it takes up slots."""
        await self._work.end_strays()

    def arrived(self, capabilities: Body) -> None:
        """It is there. PreconditionError if it speaks another contract."""
        self._manifest = manifest_of(capabilities, self._known)
        self._others.mode = str(capabilities.get("mode", ""))
        self.was_drained = False
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
        if name.startswith(_DRAINING):
            self._drains()
        if (mapped := told_of(event)) is not None:
            run_id = self._work.run_id_of(str(event.get("agent_id", "")))
            self.events.tell(mapped.name, run_id, **mapped.fields)
        if name in _ENDS:
            self._work.nudge()

    def steer(self, worker: Worker) -> None:
        """Whose claims are to begin and end with the agent's readiness for work."""
        self._drain.worker = worker
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
        if self._is_draining:
            return "draining"
        if self._is_lame:
            return "a lame duck"
        return self._presence.why_not or ("paused" if self._work.is_paused else "")

    async def condition(self) -> Condition:
        why = self.why_closed
        inventory: Body = {}
        if self._presence.is_here:
            try:
                inventory = await self._others.inventory()
            except MeshError as error:
                why = why or str(error)
        if inventory.get("draining"):
            self._drains()
        if not inventory.get("ready", True):
            why = why or "the agent says that it is not ready"
        runs = self._work.runs
        shown = [runs.shown(each) for each in runs.active]
        return Condition(
            ready=not why,
            not_ready_reason=why,
            paused=self._work.is_paused,
            lame_duck=self._is_lame,
            draining=self._is_draining,
            uptime=timedelta(seconds=self._clock() - self._began),
            runs=[*self._others.shown(inventory), *shown],
            free_slots=self._work.free_slots if self.is_open else 0,
            ended_runs=dict(runs.ended_by_status),
            usage=sum((each.usage for each in shown), runs.usage_of_ended + self._turns.own.usage),
            pending_events=await self._pending() if self._is_reactive else 0,
        )

    # --- Verbs ---

    async def drain(self, deadline: timedelta | None) -> Draining:
        return await outliving(self._told_to_drain(deadline))

    async def _told_to_drain(self, deadline: timedelta | None) -> Draining:
        others = await self._others.look() if self._presence.is_here else []
        self._drain.begin(deadline)
        return Draining(len(self._work.runs.active) + len(others), self._drain.left)

    async def lame_duck(self, enabled: bool) -> Condition:
        self._must_not_drain()
        must_be_here(self._presence)
        await outliving(self._set_lame(enabled))
        return await self.condition()

    async def _set_lame(self, enabled: bool) -> None:
        await self._foreign.call("a2a.LameDuck", {"ready": not enabled})
        self._is_lame = enabled
        self.events.tell("agent.lame_duck", enabled=enabled)
        self._open_or_close()

    async def cancel(self, run_id: str, reason: str) -> Sequence[Run]:
        runs = self._work.runs
        entries = [runs.find(run_id)] if run_id else runs.active
        for entry in entries:
            if entry.status is None:
                self._work.cancel(entry, reason or "cancelled")
        others = [] if run_id else await outliving(self._others.cancel(reason or "cancelled"))
        for entry in entries:
            await runs.over(entry)
        return [runs.shown(each) for each in entries] + others

    async def pause(self, run_id: str, wait: timedelta) -> Sequence[Run]:
        self._must_not_drain()
        runs = self._work.runs
        entries = [runs.find(run_id)] if run_id else runs.active
        for entry in entries:
            entry.gate.shut()
        if not run_id:
            self._work.set_paused(True)
            self._open_or_close()
        others = await self._until_held(entries, wait, with_others=not run_id)
        return [runs.shown(each) for each in entries] + others

    async def resume(self, run_id: str) -> Sequence[Run]:
        runs = self._work.runs
        entries = [runs.find(run_id)] if run_id else runs.active
        if not run_id:
            self._work.set_paused(False)
            self._open_or_close()
        elif not self._work.is_paused:  # which holds it as well
            entries[0].gate.open()
        return [runs.shown(each) for each in entries] + ([] if run_id else await self._others.look())

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

    @property
    def _is_reactive(self) -> bool:
        """Whether changes wake it. With a queue nothing does: its subscription is one that nothing serves."""
        return self._others.mode == "reactive" and not self._known.queue

    def _drains(self) -> None:
        """The agent ends; perhaps it is somebody else who has told it to."""
        self.was_drained = True
        if not self._drain.has_begun:
            self._work.set_paused(False)
            if self._known.queue:  # no claim can be served any more
                self._drain.begin()

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

    @property
    def _is_draining(self) -> bool:
        return self._drain.has_begun or self.was_drained

    def _must_not_drain(self) -> None:
        if self._is_draining:
            raise PreconditionError("the agent drains, which is one way")

    def _open_or_close(self) -> None:
        worker = self._drain.worker
        if worker is None or self._drain.has_begun:
            return
        if self.is_open:
            worker.resume()
        else:
            worker.suspend()

    async def _until_held(self, entries: Sequence[Entry], wait: timedelta, *, with_others: bool) -> list[Run]:
        """Returns when they hold or have ended, or when the wait is over. Runs of the agent's own have to be
        looked at; ours tell."""
        ends = self._clock() + wait.total_seconds()
        look = _FIRST_LOOK
        while True:
            others = await self._others.look() if with_others else []
            held = all(each.held or each.status is not None for each in entries) and not any(
                each.state is State.WORKING for each in others
            )
            if held or (left := ends - self._clock()) <= 0:
                return others
            with anyio.move_on_after(min(look, left) if others else left):
                await self._work.changed()
            look = min(look * 1.5, _LONGEST_LOOK)
