"""Who waits for what: parked claims, and streams that watch queues. One event loop, no I/O.

A parked claim registers before its last look, so no wake-up is lost. As many are woken as there is work,
the one parked last first; one that goes away without having looked passes its wake on. A wake does not say
of which shard the work is, so it goes to all that wait for one, no more often than that costs little, and
need not be passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from libs.errors import ExhaustedError, UnavailableError

MAX_PARKED = 20_000
MAX_PARKED_PER_HOLDER = 2_500
MAX_WATCHES = 5_000
_LOST_SECONDS = 1.0
_LOOKS_OF_SHARDS = 1000  # a second, by those who wait for shards of one queue
_LOST_OF_SHARDS = 100  # of which so many make up for lost wakes


class Waiter:
    """One parked claim."""

    __slots__ = ("_waiting", "queues", "shard", "woken")

    def __init__(self, waiting: Waiting, queues: Sequence[str], shard: int | None) -> None:
        self._waiting = waiting
        self.queues = queues
        self.shard = shard
        self.woken: asyncio.Future[None] | None = None  # done: a wake that no whole look has followed

    def arm(self) -> None:
        """From here on a wake is remembered; look at the queues after this, then `wait`."""
        if self.woken is None or self.woken.done():
            self.woken = asyncio.get_running_loop().create_future()
            self._waiting.park(self)

    async def wait(self, seconds: float) -> None:
        """Until woken, or so long."""
        if self.woken is not None:
            await asyncio.wait((self.woken,), timeout=seconds)


class Waiting:
    """All that wait in this process: at most so many parked claims and watches, and so many of one holder."""

    def __init__(
        self,
        most: int = MAX_PARKED,
        most_of_holder: int = MAX_PARKED_PER_HOLDER,
        most_watches: int = MAX_WATCHES,
    ) -> None:
        self._most, self._most_of_holder, self._most_watches = most, most_of_holder, most_watches
        self.drained = asyncio.Event()  # set: nobody shall wait any more
        self._parked: dict[str, dict[Waiter, None]] = {}  # queue → waiters, the last parked last
        self._sharded: dict[str, dict[Waiter, None]] = {}  # those of them that wait for a shard
        # queue whose shards were woken just now → whether they must be again
        self._paced: dict[str, bool] = {}
        self._holders: dict[str, int] = {}
        self._parked_total = 0
        self._watches: dict[str, dict[asyncio.Event, None]] = {"": {}}  # queue → events; "": of any queue
        self._watches_total = 0

    def wake(self, queue: str, ready: int) -> None:
        """About so many more items are ready in the queue, or something else moved there (0). No name:
        look at everything.
        """
        if not self._parked_total and not self._watches_total:
            return
        if not queue:
            for waiters in [*self._parked.values(), *self._sharded.values()]:
                for waiter in list(waiters):
                    self._rouse(waiter)
        elif ready > 0:
            if parked := self._parked.get(queue):
                for _ in range(min(ready, len(parked))):
                    self._rouse(next(reversed(parked)))
            if queue in self._sharded:
                self._rouse_shards(queue)
        for watched in (queue, "") if queue else list(self._watches):
            for event in self._watches.get(watched, ()):
                event.set()

    async def run(self) -> None:
        """Until cancelled: once a second one waiter of each queue looks again, in case a wake was lost on its
        way here. If it finds more than it takes, it wakes the next. Of those who wait for shards a hundred
        do, those first who have not looked for longest.
        """
        while True:
            await asyncio.sleep(_LOST_SECONDS)
            for parked in list(self._parked.values()):
                if parked:
                    self._rouse(next(iter(parked)))
            for sharded in list(self._sharded.values()):
                for waiter in list(islice(sharded, _LOST_OF_SHARDS)):
                    self._rouse(waiter)

    @property
    def draining(self) -> bool:
        """Whether nobody shall wait any more."""
        return self.drained.is_set()

    def drain(self) -> None:
        """Everybody who is parked answers now, and nobody parks any more."""
        self.drained.set()
        self.wake("", 0)

    def check(self) -> None:
        """Raise UnavailableError when draining: who watches goes on at another replica."""
        if self.draining:
            raise UnavailableError("draining")

    def park(self, waiter: Waiter) -> None:
        places = self._parked if waiter.shard is None else self._sharded
        for queue in waiter.queues:
            places.setdefault(queue, {})[waiter] = None

    def _unpark(self, waiter: Waiter) -> None:
        places = self._parked if waiter.shard is None else self._sharded
        for queue in waiter.queues:
            if (parked := places.get(queue)) is not None:
                parked.pop(waiter, None)
                if not parked:
                    del places[queue]

    def _rouse_shards(self, queue: str) -> None:
        """Now, or soon if they were roused just now."""
        if queue in self._paced:
            self._paced[queue] = True
            return
        waiters = list(self._sharded.get(queue, ()))
        for waiter in waiters:
            self._rouse(waiter)
        self._paced[queue] = False
        asyncio.get_running_loop().call_later(len(waiters) / _LOOKS_OF_SHARDS, self._calm, queue)

    def _calm(self, queue: str) -> None:
        if self._paced.pop(queue):
            self._rouse_shards(queue)

    def _rouse(self, waiter: Waiter) -> None:
        self._unpark(waiter)
        if waiter.woken is not None and not waiter.woken.done():
            waiter.woken.set_result(None)

    @contextmanager
    def waiter(self, queues: Sequence[str], holder: str, shard: int | None = None) -> Iterator[Waiter]:
        """A place to park. ExhaustedError when the holder, or everybody together, has too many."""
        mine = self._holders.get(holder, 0)
        if mine >= self._most_of_holder:
            raise ExhaustedError(f"too many parked claims (at most {self._most_of_holder} a holder)")
        if self._parked_total >= self._most:
            raise ExhaustedError(f"too many parked claims (at most {self._most} here)")
        self._holders[holder] = mine + 1
        self._parked_total += 1
        waiter = Waiter(self, queues, shard)
        try:
            yield waiter
        finally:
            self._unpark(waiter)
            self._parked_total -= 1
            self._holders[holder] -= 1
            if not self._holders[holder]:
                del self._holders[holder]
            if shard is None and waiter.woken is not None and waiter.woken.done():
                for queue in queues:  # gone without having looked since: somebody else should
                    self.wake(queue, 1)

    @contextmanager
    def watch(self, queues: frozenset[str] | None) -> Iterator[asyncio.Event]:
        """An event that is set whenever something moves in these queues (None: in any)."""
        if self._watches_total >= self._most_watches:
            raise ExhaustedError(f"too many watches (at most {self._most_watches})")
        event = asyncio.Event()
        names = ("",) if queues is None else tuple(queues)
        for name in names:
            self._watches.setdefault(name, {})[event] = None
        self._watches_total += 1
        try:
            yield event
        finally:
            self._watches_total -= 1
            for name in names:
                del self._watches[name][event]
                if name and not self._watches[name]:
                    del self._watches[name]

    def parked(self, queue: str) -> int:
        """How many claims are parked for the queue here."""
        return len(self._parked.get(queue, ())) + len(self._sharded.get(queue, ()))

    def shards(self, queue: str) -> frozenset[int | None]:
        """Of which shards of the queue claims are parked here."""
        return frozenset(waiter.shard for waiter in self._sharded.get(queue, ()))
