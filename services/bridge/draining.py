"""A drain: what is begun finishes in time, the rest is given back, and the agent ends. One way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta

import anyio
from anyio.abc import TaskGroup

from libs.contract.events import Ring
from libs.contract.metrics import DRAINS
from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.work import Worker

from .presence import Presence
from .work import Work

_GRACE = timedelta(seconds=10)  # beyond a drain's deadline: agentd's own ladder from SIGTERM to SIGKILL
_LEAST = timedelta(seconds=1)
_log = logging.getLogger(__name__)


class Drain:
    """Not begun yet. `longest` bounds it."""

    def __init__(
        self,
        work: Work,
        presence: Presence,
        events: Ring,
        longest: timedelta,
        tasks: TaskGroup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._presence = presence
        self._events = events
        self._longest = longest
        self._tasks = tasks
        self._clock = clock
        self._ends: float | None = None
        self.worker: Worker | None = None
        """Whose claims it ends."""
        self.over = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        return self._ends is not None

    @property
    def left(self) -> timedelta:
        """Until its deadline."""
        return timedelta(seconds=max((self._ends or 0) - self._clock(), 0))

    def begin(self, deadline: timedelta | None = None) -> None:
        """Begins it; the second time it may only become shorter."""
        length = self._longest if deadline is None else min(deadline, self._longest)
        ends = self._clock() + length.total_seconds()
        if self._ends is None:
            self._ends = ends
            self._work.is_draining = True
            self._work.set_paused(False)  # so that what is held can finish
            DRAINS.inc("started")
            self._events.tell("agent.draining")
            _log.info("draining")
            self._tasks.start_soon(self._finish)
        self._ends = min(self._ends, ends)
        if self.worker is not None:
            self.worker.drain(self.left)
        self._work.nudge()

    async def _finish(self) -> None:
        await self._in_time(lambda: not self._work.runs.active)
        rest = [each for each in self._work.runs.active if each.trigger is Trigger.MESSAGE]
        for entry in rest:
            self._work.give_up(entry, Status.DRAINED)
        if self._presence.is_here:
            length = max(self.left, _LEAST)
            await self._work.try_verb("a2a.Drain", deadline_ms=round(length.total_seconds() * 1000))
            await self._in_time(lambda: not self._presence.is_here)
            self._work.cut_others()  # agentd keeps to the deadline that it was told first
            with anyio.move_on_after(_GRACE.total_seconds()):
                while self._presence.is_here:
                    await self._work.changed()
        DRAINS.inc("forced" if rest or self._presence.is_here else "completed")
        _log.info("drained")
        self.over.set()

    async def _in_time(self, is_done: Callable[[], bool]) -> None:
        """Returns when that is so, or at the deadline, which may come nearer meanwhile."""
        while not is_done() and self.left:
            with anyio.move_on_after(self.left.total_seconds()):
                await self._work.changed()
