"""Claims that share: the claimants of one process that want the same wait behind one parked RPC."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import MeshError, UnavailableError
from libs.ids import new_id

from .coalesce import TRANSIENT, pauses
from .item import MAX_ENTRIES, duration
from .task import Task, clock, seconds

_GRACE = 0.25  # the server's own answer to a wait that passed is given this long
_SLACK = 0.01
_CLOSING = 2.0


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the `count` shards of a queue, 0..count-1, as it is divided since `epoch`."""

    index: int
    count: int
    epoch: int


class Options(NamedTuple):
    """Claims that agree in these can share a request."""

    queues: tuple[str, ...]
    lease: timedelta | None = None
    dedupe_key: str = ""
    shard: Shard | None = None

    def request(self, max_items: int, wait: float = 0.0) -> pb.ClaimRequest:
        """A new request, with an id of its own."""
        request = pb.ClaimRequest(
            queues=self.queues,
            max_items=min(max_items, MAX_ENTRIES),
            dedupe_key=self.dedupe_key,
            request_id=new_id(),
        )
        if wait > 0:
            request.wait.CopyFrom(duration(timedelta(seconds=wait)))
        if self.lease is not None:
            request.lease.CopyFrom(duration(self.lease))
        if self.shard is not None:
            index, count, epoch = self.shard.index, self.shard.count, self.shard.epoch
            request.shard.CopyFrom(work_pb2.Shard(index=index, count=count, epoch=epoch))
        return request


@dataclass(slots=True, eq=False)
class _Waiter:
    want: int
    until: float  # on the event loop's clock
    answer: asyncio.Future[list[Task]]


@dataclass(slots=True, eq=False)
class _Lane:
    """`unanswered` is a request whose outcome is unknown: it is replayed before another one is made."""

    waiting: dict[_Waiter, None] = field(default_factory=dict)
    serving: asyncio.Task[None] | None = None
    parked: asyncio.Future[pb.ClaimResponse] | None = None
    unanswered: pb.ClaimRequest | None = None
    error: MeshError | None = None
    timer: asyncio.TimerHandle | None = None  # one for all who wait, at the earliest end of a wait

    def mind(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that a wait that is over by then ends, even if the server says nothing."""
        if self.timer is None or until + _GRACE < self.timer.when():
            if self.timer is not None:
                self.timer.cancel()
            self.timer = loop.call_at(until + _GRACE, self._end_waits, loop)

    def _end_waits(self, loop: asyncio.AbstractEventLoop) -> None:
        self.timer = None
        now = loop.time() + _SLACK
        for waiter in list(self.waiting):
            if waiter.until + _GRACE <= now:
                self.expire(waiter)
            else:
                self.mind(waiter.until, loop)

    def expire(self, waiter: _Waiter) -> None:
        """Nothing came in time; during an outage that would be a lie, so the error is the answer."""
        if waiter.answer.done():
            return
        if self.error is not None:
            waiter.answer.set_exception(copy.copy(self.error))
        else:
            waiter.answer.set_result([])

    def withdraw(self) -> None:
        """Nobody waits any more: take the parked RPC back."""
        if not self.waiting and self.parked is not None:
            self.parked.cancel()


class ClaimDesk:
    """Hands out what is claimed: to whoever waits for it, in order; what nobody wants goes to `give_back`."""

    def __init__(
        self,
        send: Callable[[pb.ClaimRequest], Awaitable[pb.ClaimResponse]],
        give_back: Callable[[list[Task]], None],
    ) -> None:
        self._send = send
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[Options, _Lane] = {}
        self._context = copy_context()
        self._closed = False

    async def claim(self, options: Options, want: int, wait: float) -> list[Task]:
        """1..want tasks, or [] after `wait` seconds."""
        if self._closed:
            raise UnavailableError("the client is closed")
        loop = self._loop
        lane = self._lanes.setdefault(options, _Lane())
        waiter = _Waiter(want, loop.time() + wait, loop.create_future())
        lane.waiting[waiter] = None
        if lane.serving is None:
            lane.serving = loop.create_task(self._serve(options, lane), context=self._context)
        lane.mind(waiter.until, loop)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            if not waiter.answer.cancelled() and waiter.answer.exception() is None:
                self.offer(options, waiter.answer.result())
            raise
        finally:
            lane.waiting.pop(waiter, None)
            lane.withdraw()

    def offer(self, options: Options, tasks: list[Task]) -> None:
        """Give tasks to those who wait, the rest back to the queue."""
        if lane := self._lanes.get(options):
            for waiter in list(lane.waiting):
                if not tasks:
                    break
                if not waiter.answer.done():
                    waiter.answer.set_result(tasks[: waiter.want])
                    tasks = tasks[waiter.want :]
                del lane.waiting[waiter]
            lane.withdraw()
        if tasks:
            self._give_back(tasks)

    async def close(self) -> None:
        """Waiters get UnavailableError; what a request without an answer was granted is given back."""
        self._closed = True
        for options, lane in self._lanes.items():
            _refuse(lane.waiting, UnavailableError("the client was closed"))
            lane.waiting.clear()
            lane.withdraw()
            if lane.serving is None:
                lane.serving = self._loop.create_task(self._serve(options, lane), context=self._context)
        serving = [lane.serving for lane in self._lanes.values() if lane.serving is not None]
        if serving:
            await asyncio.wait(serving, timeout=_CLOSING)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, options: Options, lane: _Lane) -> None:
        try:
            await self._answer_all(options, lane)
        finally:
            lane.serving = None
            _refuse(lane.waiting, UnavailableError("the claim ended without an answer"))
            if lane.unanswered is None:
                self._lanes.pop(options, None)

    async def _answer_all(self, options: Options, lane: _Lane) -> None:
        backoff = pauses()
        while lane.waiting or lane.unanswered:
            wanted = bool(lane.waiting)
            request = lane.unanswered
            if request is None:
                until = max(waiter.until for waiter in lane.waiting)
                wait = max(until - self._loop.time(), 0.001)
                request = options.request(sum(waiter.want for waiter in lane.waiting), wait)
            elif not wanted:
                request.ClearField("wait")
            lane.unanswered = request
            sent = clock()
            try:
                answer = asyncio.ensure_future(self._send(request))
                lane.parked = answer if wanted else None  # a look is never withdrawn
                response = await answer
            except asyncio.CancelledError:
                if wanted and not _cancelled():
                    continue  # withdrawn: one look, without waiting, at what it may have been granted
                raise
            except TRANSIENT as error:
                lane.error = error
                if not lane.waiting and not self._closed:
                    return
                await asyncio.sleep(next(backoff))
                continue
            except MeshError as error:
                lane.unanswered = lane.error = None
                _refuse(lane.waiting, error)
                lane.waiting.clear()
                continue
            finally:
                lane.parked = None
            lane.unanswered = lane.error = None
            self.offer(
                options, [Task.of(grant, sent + seconds(response.waited)) for grant in response.grants]
            )
            if response.grants or clock() - sent > seconds(request.wait) - _SLACK:
                backoff = pauses()
            elif lane.waiting:
                await asyncio.sleep(next(backoff))  # an early empty answer: the server drains
            if not response.grants:
                self._end_waits(lane)

    def _end_waits(self, lane: _Lane) -> None:
        now = self._loop.time() + _SLACK
        for waiter in [waiter for waiter in lane.waiting if waiter.until <= now]:
            del lane.waiting[waiter]
            lane.expire(waiter)


def _refuse(waiters: Iterable[_Waiter], error: MeshError) -> None:
    for waiter in waiters:
        if not waiter.answer.done():
            waiter.answer.set_exception(copy.copy(error))


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
