"""Reacts to resources: a run for the content that is there at the start, and one for each change of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import anyio

from libs.contract import metrics
from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.errors import MeshError
from libs.exits import Exit
from libs.ids import new_id

from ..backoff import Pauses
from ..desk import Desk
from ..order import Order
from ..steering import Engine

_DEBOUNCE = timedelta(milliseconds=250)
_LONGEST_DEBOUNCES = 8  # of a resource that never comes to rest
_MAX_CONTENT = 256 * 1024  # characters
_log = logging.getLogger("agent")


class Change(Protocol):
    """A resource may have another content."""

    @property
    def uri(self) -> str:
        """Which."""


class Resources(Protocol):
    """What is reacted to."""

    def watch(self, uris: Sequence[str]) -> AsyncIterator[Change]:
        """Changes, for ever: first each URI once, when it is subscribed. One that is told for no reason does
        no harm. MeshError if that cannot be."""

    async def read(self, uri: str) -> tuple[str, str]:
        """Its content, and a digest of all of it. MeshError."""


@dataclass(eq=False, slots=True)
class Subject:
    """A resource, and how far the agent has come with it."""

    uri: str
    pauses: Pauses
    waits: bool = False
    """It is to be looked at."""
    first_change: float = 0.0  # of those that wait, on the desk's clock
    last_change: float = 0.0
    handled: str = ""  # digest


class Reactive:
    """One run at a time for each URI; different ones side by side, as many as there are free slots."""

    def __init__(
        self,
        desk: Desk,
        engine: Engine,
        instruction: str,
        resources: Resources,
        uris: Sequence[str],
        *,
        debounce: timedelta = _DEBOUNCE,
        waits: Callable[[], Pauses] = Pauses,
    ) -> None:
        self._debounce = debounce.total_seconds()
        self._waits = waits
        self._desk = desk
        self._engine = engine
        self._instruction = instruction
        self._resources = resources
        self._subjects = {uri: Subject(uri, waits()) for uri in uris}
        self._lost: MeshError | None = None
        self._looks = asyncio.Semaphore(desk.slots)  # what is read should have a slot

    def waiting(self) -> int:
        """Resources that wait for a run."""
        return sum(subject.waits for subject in self._subjects.values())

    async def run(self) -> Exit:
        """Until a drain, and to the end of what is begun by then; or until it cannot subscribe."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, tasks.cancel_scope)
            async with anyio.create_task_group() as minding:
                for subject in self._subjects.values():
                    minding.start_soon(self._mind, subject)
            tasks.cancel_scope.cancel()
        return Exit.SERVER if self._lost else Exit.OK

    async def _listen(self, everything: anyio.CancelScope) -> None:
        try:
            async for change in self._resources.watch(list(self._subjects)):
                if subject := self._subjects.get(change.uri):
                    self._note(subject)
        except MeshError as error:
            _log.error("cannot subscribe", extra={"reason": str(error)})
            self._lost = error
            everything.cancel()

    def _note(self, subject: Subject) -> None:
        subject.last_change = self._desk.clock()
        if subject.waits:
            return
        subject.first_change, subject.waits = subject.last_change, True
        self._desk.events.tell("resource.changed", uri=subject.uri)
        metrics.PENDING_EVENTS.set(to=self.waiting())
        self._desk.wake()

    async def _mind(self, subject: Subject) -> None:
        desk = self._desk
        while True:
            await desk.until(lambda: subject.waits or desk.draining)
            await self._rest(subject)
            async with self._looks:
                if not await desk.may_begin():
                    return
                pause = await self._react(subject)
            if await desk.drains_within(pause):
                return

    async def _rest(self, subject: Subject) -> None:
        """Until it has been quiet for a moment: several changes at once are one."""
        while not self._desk.draining:
            ends = min(
                subject.last_change + self._debounce,
                subject.first_change + self._debounce * _LONGEST_DEBOUNCES,
            )
            if (left := ends - self._desk.clock()) <= 0:
                return
            await self._desk.drains_within(timedelta(seconds=left))

    async def _react(self, subject: Subject) -> timedelta:
        """Handles the content that there is now; how long to wait before the next look at it."""
        subject.waits = False
        metrics.PENDING_EVENTS.set(to=self.waiting())
        try:
            found = await self._desk.unless_drained(lambda: self._resources.read(subject.uri))
        except MeshError as error:
            _log.warning("cannot read a resource", extra={"uri": subject.uri, "reason": str(error)})
            return self._again(subject)
        if found is None or not self._desk.can_begin:  # any more
            self._look_again(subject)
            return timedelta(0)
        text, digest = found
        if digest == subject.handled:
            return timedelta(0)
        metrics.REACTION_LAG.set(to=(self._desk.clock() - subject.last_change) * 1000)
        told = _told(subject.uri, text)
        order = Order(new_id(), Trigger.REACTION, self._instruction, told, subject=subject.uri)
        ended = await self._desk.execute(order, lambda live: self._engine.run(order, live))
        if ended.status is not Status.COMPLETED:
            _log.warning(
                "the run failed",
                extra={"run": order.id, "uri": subject.uri, "status": ended.status, "reason": ended.error},
            )
        if ended.passes:
            return self._again(subject, ended.retry_after)
        subject.handled, subject.pauses = digest, self._waits()
        return timedelta(0)

    def _again(self, subject: Subject, asked: timedelta | None = None) -> timedelta:
        self._look_again(subject)
        return timedelta(seconds=subject.pauses.at_least(asked))

    def _look_again(self, subject: Subject) -> None:
        subject.waits = True
        metrics.PENDING_EVENTS.set(to=self.waiting())
        self._desk.wake()


def _told(uri: str, text: str) -> str:
    content = text[:_MAX_CONTENT]
    cut = f" (the first {len(content)} of {len(text)} characters)" if len(content) < len(text) else ""
    return f"The resource {uri} changed. Its current content is{cut}:\n\n{content}"
