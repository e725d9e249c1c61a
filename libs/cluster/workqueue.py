"""Keys that wait for a worker, each at most once, with delays and backoff: client-go's work queue.

A key that is added while a worker has it is handed out again after `done`, never to a second worker at the
same time. Keys come out in the order in which they became due. What a key stands for is looked up when it is
worked on, so nothing is lost by adding it twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

_BASE = 0.05
_CAP = 300.0


class Timers(Protocol):
    """A clock and its alarms, in seconds. An event loop is one."""

    def time(self) -> float:
        """Now; it never goes back."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        """Calls back after so long, unless the handle is cancelled before."""


class WorkQueue(Generic[K]):
    """A queue for the tasks of one event loop. It is made inside the loop unless it gets `timers`."""

    def __init__(self, timers: Timers | None = None, jitter: Callable[[], float] = random.random) -> None:
        """`jitter` gives a number from 0 to 1: which part of the upper half of a backoff is waited."""
        self._timers = timers or asyncio.get_running_loop()
        self._jitter = jitter
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._since: dict[K, float] = {}  # of those in _ready, in the same order
        self._working: dict[K, float | None] = {}  # and since when it is wanted again, if it is
        self._alarms: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Wants this key worked on as soon as may be."""
        if key in self._since:
            return
        if key in self._working:
            if self._working[key] is None:
                self._working[key] = self._timers.time()
            return
        self._enqueue(key, self._timers.time())

    def add_after(self, key: K, seconds: float) -> None:
        """Adds it after so long. Of several delays of a key, the one that ends first counts."""
        if seconds <= 0:
            return self.add(key)
        due = self._timers.time() + seconds
        if key in self._alarms:
            earlier, alarm = self._alarms[key]
            if earlier <= due:
                return
            alarm.cancel()
        self._alarms[key] = due, self._timers.call_later(seconds, lambda: self._ring(key))

    def retry(self, key: K) -> None:
        """Adds it after a backoff that doubles with each retry since the last `forget`: 50 ms to 5 minutes,
        of which between half and all is waited."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(_CAP, _BASE * 2 ** min(failures, 20))
        self.add_after(key, delay * (0.5 + 0.5 * self._jitter()))

    def forget(self, key: K) -> None:
        """Its work went well: the next backoff is the shortest again."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often it was retried since the last `forget`."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The key that waits longest. The caller says `done` when it is through, whatever came of it."""
        key = await self._ready.get()
        del self._since[key]
        self._working[key] = None
        return key

    def done(self, key: K) -> None:
        """Its worker has finished. KeyError if nobody had it."""
        since = self._working.pop(key)
        if since is not None:
            self._enqueue(key, since)

    @property
    def depth(self) -> int:
        """How many keys are due and have no worker."""
        return len(self._since)

    @property
    def waiting(self) -> tuple[K, ...]:
        """The keys that are due and have no worker, in order."""
        return tuple(self._since)

    @property
    def oldest_seconds(self) -> float:
        """How long the key that is next has been due; 0 if there is none."""
        return self._timers.time() - next(iter(self._since.values())) if self._since else 0.0

    def _enqueue(self, key: K, since: float) -> None:
        self._since[key] = since
        self._ready.put_nowait(key)

    def _ring(self, key: K) -> None:
        del self._alarms[key]
        self.add(key)
