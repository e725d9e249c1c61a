"""Events into keys, keys into passes: one queue, several workers, one object at a time each.

Whatever a pass ends with concerns its object alone: a failure comes back with backoff, a bug is logged and
comes back too, and all others go on.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from libs.cluster import Object
from libs.cluster.kinds import AGENT_FLEET
from libs.cluster.lease import NotLeadingError
from libs.cluster.workqueue import WorkQueue
from libs.errors import InvalidError, MeshError, QueueInUseError, StaleShardError, UnavailableError

from .cache import Cache
from .key import Key
from .metrics import RECONCILE
from .pods import Ended, ended
from .queues import Coordination, Queues
from .reconciler import Pass

_log = logging.getLogger(__name__)

_MOST_ENDED = 10_000  # that a replica which does not lead keeps in mind
_SOON_SECONDS = 1.0, 5.0  # from then to then, until it is asked again whether a queue may be divided

Deny = Callable[[Ended], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class QueueKey:
    """A queue of coordination whose rules are to be looked at."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"Queue {self.namespace}/{self.name}"


Work = Key | QueueKey | Ended


class Controller:
    """Feed it by `wake` and `pod_changed` (a `Cache` does), run `lead` while this process leads."""

    def __init__(
        self,
        workers: int,
        resync: float,
        clock: Callable[[], float] = time.perf_counter,
        look_seconds: float = 15.0,
    ) -> None:
        """`resync`: seconds after which an object is looked at again, about. `look_seconds`: after which a
        queue with shards is, for the agents of a division that went get nothing."""
        self._workers = workers
        self._resync = resync
        self._look_seconds = look_seconds
        self._clock = clock
        self._queue: WorkQueue[Work] = WorkQueue()
        self._ended: deque[Ended] = deque(maxlen=_MOST_ENDED)
        self._leading = False
        self._waiting: dict[Key, list[asyncio.Future[Pass]]] = {}
        self.failing: dict[Work, str] = {}
        """What ended badly last, and how."""
        self.queues = Queues(self.look_at_queue, self.wake)

    def wake(self, key: Key) -> None:
        """Something happened to this object."""
        self._queue.add(key)

    def wake_within(self, key: Key, least: float, most: float) -> None:
        """Something happened to many objects: this one's turn comes in `least` to `most` seconds."""
        self._queue.add_after(key, random.uniform(least, most))

    def look_at_queue(self, namespace: str, name: str) -> None:
        """Coordination is to be asked about this queue."""
        self._queue.add(QueueKey(namespace, name))

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod is not as it was."""
        if end := ended(old, new):
            if self._leading:
                self._queue.add(end)
            else:
                self._ended.append(end)  # for the case that nobody leads at this moment

    def depths(self, namespace: str | None = None) -> dict[str, int]:
        """Keys that wait, by kind: of one namespace, or of all."""
        waiting = (key for key in self._queue.waiting if namespace in (None, key.namespace))
        return dict(Counter(str(key).partition(" ")[0] for key in waiting))

    async def reconcile_now(self, key: Key) -> Pass:
        """Waits for a pass that begins after this call. Raises what it raises."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._queue.add(key)
        found: Pass = await future
        return found

    async def lead(
        self,
        cache: Cache,
        reconcile: Callable[[Key], Awaitable[Pass]],
        register: Callable[[Key], None],
        coordination: Coordination | None,
        deny: Deny,
        check: Callable[[], None],
    ) -> None:
        """Works until cancelled, beginning with everything that there is. All fleets are known to `register`
        before coordination hears of any. `check` raises unless we lead."""
        self.queues.forget()
        for key in list(cache.everything()):
            if key.kind is AGENT_FLEET:
                register(key)
                await anyio.lowlevel.checkpoint()  # others want to go on meanwhile
            self._queue.add(key)
        actions = _Actions(self.queues, reconcile, coordination, deny, check, self._look_seconds)
        while self._ended:
            self._queue.add(self._ended.popleft())
        self._leading = True
        try:
            async with anyio.create_task_group() as group:
                for _ in range(self._workers):
                    group.start_soon(self._work, actions)
        finally:
            self._leading = False
            for futures in self._waiting.values():
                for future in futures:
                    if not future.done():
                        future.set_exception(NotLeadingError("this replica leads no more"))
            self._waiting.clear()

    async def _work(self, actions: _Actions) -> None:
        while True:
            work = await self._queue.get()
            finished = False
            try:
                await self._one(work, actions)
                finished = True
            finally:
                self._queue.done(work)
                if not finished:
                    self._queue.add(work)  # for when we lead again

    async def _one(self, work: Work, actions: _Actions) -> None:
        waiting = self._waiting.pop(work, []) if isinstance(work, Key) else []
        began = self._clock()
        # As a value, so that a bug in the pass of one object is no reason to stop those of others.
        (outcome,) = await asyncio.gather(actions.perform(work), return_exceptions=True)
        ended_at = self._clock()
        if isinstance(outcome, BaseException):
            self._failed(work, outcome)
            result = "failed"
        else:
            self._queue.forget(work)
            self.failing.pop(work, None)
            if not outcome.gone:
                self._queue.add_after(work, outcome.again or _about(self._resync))
            result, ended_at = outcome.result, outcome.last_write_at or ended_at
        RECONCILE.labels(str(work).partition(" ")[0], result).observe(ended_at - began)
        for future in waiting:
            if future.done():
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _failed(self, work: Work, error: BaseException) -> None:
        if isinstance(error, NotLeadingError):
            self._queue.retry(work)  # we are about to be told so
            return
        if isinstance(error, InvalidError) and not isinstance(work, Key):
            _log.error("%s is refused: %s", work, error)  # and asking again soon would not change that
            self._queue.forget(work)
            if isinstance(work, QueueKey):
                self.failing[work] = f"{type(error).__name__}: {error}"
                self._queue.add_after(work, self._resync)
            return
        self.failing[work] = f"{type(error).__name__}: {error}"
        if isinstance(error, MeshError):
            _log.warning("%s comes back later: %s", work, error, extra={"reason": error.reason})
        else:
            _log.error("%s: a bug in its pass", work, exc_info=error)
        self._queue.retry(work)


@dataclass(frozen=True, slots=True)
class _Actions:
    queues: Queues
    reconcile: Callable[[Key], Awaitable[Pass]]
    coordination: Coordination | None
    deny: Deny
    check: Callable[[], None]
    look_seconds: float

    async def perform(self, work: Work) -> Pass:
        match work:
            case Key():
                return await self.reconcile(work)
            case QueueKey(namespace, name):
                return await self._configure(namespace, name)
            case Ended():
                await self.deny(work)
                if work.certain and self.coordination is not None:
                    self.check()
                    await self.coordination.release(work.namespace, work.uid, f"pod {work.pod} ended")
                return Pass(gone=True)

    async def _configure(self, namespace: str, name: str) -> Pass:
        rules = self.queues.rules(namespace, name)
        if rules is None or self.coordination is None:
            return Pass(gone=True)
        try:
            changed, shards = await self.coordination.configure(f"{namespace}/{name}", rules, self.check)
        except UnavailableError:
            raise  # that says nothing of the queue
        except (QueueInUseError, StaleShardError) as error:
            self.queues.settle(namespace, name, "", wait=str(error))
            return Pass(again=random.uniform(*_SOON_SECONDS))
        except MeshError as error:
            self.queues.settle(namespace, name, str(error))
            raise
        self.queues.settle(namespace, name, "", shards)
        rules = self.queues.rules(namespace, name)
        if rules is not None and rules.shards not in (None, shards.count):
            return Pass(int(changed), again=random.uniform(*_SOON_SECONDS))  # somebody else divided it
        is_divided = self.queues.is_divided(namespace, name)
        return Pass(int(changed), again=_about(self.look_seconds) if is_divided else None)


def _about(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)
