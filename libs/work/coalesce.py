"""Batches that make themselves: calls that are ready when an RPC can leave, leave in it together.

The rule has no timer. A lone call leaves at once; while its RPC is in flight, others gather, and leave in
the next. So an idle process pays no delay and a busy one sends few, large requests.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio

from libs.errors import DeadlineError, ExhaustedError, InvalidError, MeshError, UnavailableError

from .item import MAX_ENTRIES, MAX_REQUEST
from .task import clock

K = TypeVar("K", bound=Hashable)
E = TypeVar("E")
R = TypeVar("R")

TRANSIENT = (UnavailableError, DeadlineError, ExhaustedError)


def pauses(shortest: float = 0.05, longest: float = 5.0) -> Iterator[float]:
    """Waits between attempts: doubling, and jittered so that a restarted server is not met by all at once."""
    pause = shortest
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest)


@dataclass(slots=True, eq=False)
class Call(Generic[E, R]):
    """One caller's entries on their way, and where its answer goes."""

    entries: Sequence[E]
    size: int
    replay_until: float  # on `clock()`; 0: an unknown outcome is the caller's to repeat
    answer: asyncio.Future[R]

    def settle(self, answer: R) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def refuse(self, error: MeshError) -> None:
        """A copy, so that callers do not share a traceback."""
        if not self.answer.done():
            self.answer.set_exception(copy.copy(error))


@dataclass(slots=True, eq=False)
class _Lane(Generic[E, R]):
    waiting: deque[Call[E, R]] = field(default_factory=deque)
    in_flight: int = 0
    leaving: bool = False

    def take(self) -> list[Call[E, R]]:
        """The calls of the next RPC. Those whose caller is gone are dropped; nothing was sent for them."""
        batch: list[Call[E, R]] = []
        entries = size = 0
        while self.waiting:
            call = self.waiting[0]
            if not call.answer.done():
                entries += len(call.entries)
                size += call.size
                if batch and (entries > MAX_ENTRIES or size > MAX_REQUEST):
                    break
                batch.append(call)
            self.waiting.popleft()
        return batch


class Coalescer(Generic[K, E, R]):
    """One verb: calls with the same key may share a request.

    `build` makes a request of calls, `send` is the RPC, and `split(key, calls, answer, sent)` gives one
    answer per call, in order; `sent` is the time on `clock()` before this copy of the request left. A
    replay is the very same request. A request that is refused as malformed is repeated call by call, so
    one caller's mistake stays its own.
    """

    def __init__(
        self,
        build: Callable[[K, list[Call[E, R]]], Any],
        send: Callable[[Any], Awaitable[Any]],
        split: Callable[[K, list[Call[E, R]], Any, float], Sequence[R]],
        *,
        in_flight: int = 1,
    ) -> None:
        self._build = build
        self._send = send
        self._split = split
        self._most = in_flight
        self._loop = asyncio.get_running_loop()  # kept, since Python 3.11 makes a system call of each look
        self._lanes: dict[K, _Lane[E, R]] = {}
        self._flights: set[asyncio.Task[None]] = set()
        self._context: Context = copy_context()  # an RPC belongs to no single caller's trace
        self._closed = False

    def call(self, key: K, entries: Sequence[E], size: int, replay_until: float = 0.0) -> asyncio.Future[R]:
        """The answer to these entries (1..1000, `size` bytes, checked). Cancel the future to withdraw them
        if they have not left.
        """
        call: Call[E, R] = Call(entries, size, replay_until, self._loop.create_future())
        if self._closed:
            call.refuse(UnavailableError("the client is closed"))
            return call.answer
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        lane.waiting.append(call)
        if not lane.leaving and lane.in_flight < self._most:
            lane.leaving = True
            self._loop.call_soon(self._leave, key, lane, context=self._context)
        return call.answer

    async def settle(self, within: float) -> None:
        """Wait until everything has left and is answered, at most `within` seconds."""
        with anyio.move_on_after(within):
            while self._lanes:
                await (asyncio.wait(self._flights) if self._flights else asyncio.sleep(0))

    async def close(self) -> None:
        """Callers still waiting get UnavailableError."""
        self._closed = True
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)
        for lane in self._lanes.values():
            for call in lane.waiting:
                call.refuse(UnavailableError("the client was closed"))

    def _leave(self, key: K, lane: _Lane[E, R]) -> None:
        lane.leaving = False
        if self._closed:
            return
        if batch := lane.take():
            lane.in_flight += 1
            flight = self._loop.create_task(self._fly(key, lane, batch))
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)
        elif not lane.in_flight:
            self._lanes.pop(key, None)

    async def _fly(self, key: K, lane: _Lane[E, R], batch: list[Call[E, R]]) -> None:
        try:
            await self._deliver(key, batch)
        finally:
            for call in batch:
                call.refuse(UnavailableError("the client was closed, the outcome is unknown"))
            lane.in_flight -= 1
            if not lane.leaving:
                lane.leaving = True
                self._loop.call_soon(self._leave, key, lane)

    async def _deliver(self, key: K, calls: list[Call[E, R]]) -> None:
        request = self._build(key, calls)
        for pause in pauses():
            sent = clock()
            try:
                answer = await self._send(request)
            except InvalidError as error:
                if len(calls) == 1:
                    calls[0].refuse(error)
                else:
                    for call in calls:
                        await self._deliver(key, [call])
                return
            except TRANSIENT as error:
                again = clock() + pause
                for call in calls:
                    if call.replay_until < again:
                        call.refuse(error)
                if all(call.answer.done() for call in calls):
                    return
                await asyncio.sleep(pause)
            except MeshError as error:
                for call in calls:
                    call.refuse(error)
                return
            else:
                for call, part in zip(calls, self._split(key, calls, answer, sent), strict=True):
                    call.settle(part)
                return
