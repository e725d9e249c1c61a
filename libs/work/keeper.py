"""Keeping leases: renew what is held, and stop work on it before somebody else can get it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

import anyio

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from libs.errors import MeshError

from .task import Task, clock, seconds

log = logging.getLogger(__name__)
_LONGEST_SLEEP = 1.0  # sleeps do not count time in suspend, leases do
_LONGEST_MARGIN = 2.0


class Stop(Enum):
    """Why a handler was cancelled."""

    LOST = "the lease was lost"
    FENCED = "the lease was about to end"
    CANCELED = "cancel was requested"
    DRAINED = "the worker drained"
    SUSPENDED = "the worker was suspended"


@dataclass(slots=True, eq=False)
class Held:
    """A task somebody works on inside `scope`."""

    task: Task
    length: timedelta | None
    scope: anyio.CancelScope
    renew_at: float = 0.0
    fence_at: float = 0.0
    renewing: bool = False
    stop: Stop | None = None

    def extend(self, now: float) -> None:
        """Plan for the time that is left: renew at a third, fence a tenth before the end."""
        left = self.task.deadline - now
        self.renew_at = now + left / 3
        self.fence_at = self.task.deadline - min(left / 10, _LONGEST_MARGIN)

    def end(self, stop: Stop) -> None:
        """Cancel the handler."""
        if self.stop is None:
            self.stop = stop
            self.task.lost = stop in (Stop.LOST, Stop.FENCED)
            self.scope.cancel()


class Keeper:
    """Keeps the leases of one process, in as few Renews as there are lease lengths. Costs nothing while
    nothing is held.
    """

    def __init__(
        self,
        renew: Callable[[timedelta | None, Sequence[Task]], Awaitable[Sequence[pb.LeaseVerdict]]],
    ) -> None:
        self._renew = renew
        self._held: dict[Held, None] = {}
        self._watch: asyncio.Task[None] | None = None
        self._renewals: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._wake_at = 0.0
        self._context = copy_context()  # renewals belong to no single item's trace

    def hold(self, task: Task, length: timedelta | None, scope: anyio.CancelScope) -> Held:
        """Keep the lease, renewing to `length`, and cancel `scope` in time if that does not work."""
        held = Held(task, length, scope)
        held.extend(task.deadline - task.lease)
        self._held[held] = None
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._run(), context=self._context)
        elif held.renew_at < self._wake_at:
            self._wake.set()
        return held

    def drop(self, held: Held) -> None:
        """Keep it no longer."""
        self._held.pop(held, None)

    async def close(self) -> None:
        """Keep nothing any more."""
        tasks = [*self._renewals, *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._keep()
        finally:
            self._watch = None

    async def _keep(self) -> None:
        while self._held:
            now = clock()
            self._wake_at = now + _LONGEST_SLEEP
            due: dict[timedelta | None, list[Held]] = {}
            for held in self._held:
                if held.stop is not None:
                    continue
                if now >= held.fence_at:
                    held.end(Stop.FENCED)
                elif held.renewing:
                    self._wake_at = min(self._wake_at, held.fence_at)
                elif now >= held.renew_at - held.task.lease / 12:  # not due, but in good company
                    due.setdefault(held.length, []).append(held)
                    self._wake_at = min(self._wake_at, held.fence_at)
                else:
                    self._wake_at = min(self._wake_at, held.renew_at, held.fence_at)
            for length, batch in due.items():
                renewal = asyncio.create_task(self._prolong(length, batch))
                self._renewals.add(renewal)
                renewal.add_done_callback(self._renewals.discard)
            self._wake.clear()
            with anyio.move_on_after(max(self._wake_at - clock(), 0.001)):
                await self._wake.wait()

    async def _prolong(self, length: timedelta | None, batch: list[Held]) -> None:
        for held in batch:
            held.renewing = True
        sent = clock()
        try:
            verdicts = await self._renew(length, [held.task for held in batch])
        except MeshError as error:
            log.warning("could not renew %d leases, trying again: %s", len(batch), error)
            for held in batch:
                held.renew_at = clock() + min(held.task.lease / 12, 1.0) * random.uniform(0.5, 1.0)
        else:
            for held, verdict in zip(batch, verdicts, strict=True):
                if verdict.status != pb.LEASE_STATUS_OK:
                    held.end(Stop.LOST)
                    continue
                held.task.deadline = sent + seconds(verdict.expires_in)
                held.extend(sent)
                if verdict.cancel_requested:
                    held.end(Stop.CANCELED)
        finally:
            for held in batch:
                held.renewing = False
            self._wake.set()
