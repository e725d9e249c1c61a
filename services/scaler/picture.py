"""The demand of every queue as coordination last said it, and who waits for a change. One loop, no I/O."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from libs.errors import UnavailableError

from .demand import Demand

STALE_SECONDS = 5.0
_NOTHING = Demand()


class Picture:
    """Good for `stale_seconds` after it was last confirmed. Until it has been, and after that, nobody knows
    anything: UnavailableError, never zero. A queue that a whole picture does not have has nothing to
    do; while the picture is not whole, nobody knows about that queue."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stale_seconds: float = STALE_SECONDS
    ) -> None:
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._demands: dict[str, Demand] = {}
        self._is_whole = False
        self._confirmed_at = float("-inf")
        self._watches: dict[str, set[asyncio.Event]] = {}

    def replace(self, demands: Mapping[str, Demand], *, is_whole: bool = True) -> None:
        """These are all queues that there are; if it is not whole: at least these are."""
        before = {queue: self._is_active(queue) for queue in self._watches}
        self._demands, self._is_whole = dict(demands), is_whole
        self.confirm()
        self.wake([queue for queue, was in before.items() if self._is_active(queue) != was])

    def update(self, demands: Mapping[str, Demand]) -> None:
        """These have changed."""
        turned = [queue for queue, demand in demands.items() if self._is_active(queue) != demand.is_active]
        self._demands.update(demands)
        self.confirm()
        self.wake(turned)

    def confirm(self) -> None:
        """It is still so."""
        was_fresh = self.is_fresh
        self._confirmed_at = self._clock()
        if not was_fresh:
            self.wake()

    def now(self) -> float:
        """The clock by which demands are told."""
        return self._clock()

    @property
    def is_fresh(self) -> bool:
        """Whether it is known to be so."""
        return self._clock() - self._confirmed_at <= self._stale_seconds

    def check(self) -> None:
        """UnavailableError unless it is fresh and whole."""
        self._check_fresh()
        if not self._is_whole:
            raise UnavailableError("coordination has not told of all queues yet")

    def _check_fresh(self) -> None:
        if not self.is_fresh:
            raise UnavailableError("there is no news from coordination: what there is to do is not known")

    def find(self, queue: str) -> Demand | None:
        """Of one queue; None: it is not known."""
        if not self.is_fresh:
            return None
        return self._demands.get(queue, _NOTHING if self._is_whole else None)

    def demand(self, queue: str) -> Demand:
        """Of one queue. UnavailableError."""
        self._check_fresh()
        if (demand := self.find(queue)) is None:
            raise UnavailableError("coordination has not told of all queues yet, and not of this one")
        return demand

    @contextmanager
    def watch(self, queue: str) -> Iterator[asyncio.Event]:
        """An event, set when the queue turns active or inactive, and when the picture is fresh again."""
        moved = asyncio.Event()
        watches = self._watches.setdefault(queue, set())
        watches.add(moved)
        try:
            yield moved
        finally:
            watches.discard(moved)
            if not watches and self._watches.get(queue) is watches:
                del self._watches[queue]

    def wake(self, queues: Iterable[str] | None = None) -> None:
        """Sets the events of these queues; None: of all."""
        for queue in self._watches if queues is None else queues:
            for moved in self._watches.get(queue, ()):
                moved.set()

    def _is_active(self, queue: str) -> bool | None:
        demand = self._demands.get(queue, _NOTHING if self._is_whole else None)
        return None if demand is None else demand.is_active
