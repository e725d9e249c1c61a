"""How every call of a step is made: timed from when it is sent, and repeated where that is safe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from grpc.aio import AioRpcError

from libs.errors import DeadlineError, UnavailableError
from libs.rpc.status import error_of

from .loops import StuckError, Window
from .tally import Step, Tally

_Answer = TypeVar("_Answer")
_Arguments = ParamSpec("_Arguments")
_PAUSE = 0.05  # seconds before a call is repeated


class Timed:
    """Makes calls, repeats those whose outcome is not known, and keeps the time of those in the window."""

    def __init__(
        self, step: Step, tally: Tally, window: Window, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tally = tally
        self._times = tally.service if step.rate else tally.latencies
        self._clock = clock
        self._measure, self._end, self._give_up = window.measure, window.end, window.give_up

    async def call(
        self,
        verb: str,
        method: Callable[_Arguments, Awaitable[_Answer]],
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Answer:
        """The answer. Other errors of the mesh than the two that are repeated are the caller's."""
        clock = self._clock
        while True:
            began = clock()
            try:
                answer = await method(*arguments, **options)
            except (AioRpcError, UnavailableError, DeadlineError) as raised:
                error = error_of(raised) if isinstance(raised, AioRpcError) else raised
                if not isinstance(error, UnavailableError | DeadlineError):
                    raise error from raised
                self._tally.errors[f"{verb} {error.code.name}"] += 1
                if began > self._give_up:
                    raise StuckError(f"{verb}: {error}") from error
                await asyncio.sleep(_PAUSE)
                continue
            ended = clock()
            if self._measure <= ended < self._end:
                self._tally.rpcs += 1
                self._times[verb].record(ended - began)
            return answer

    def settled(self, count: int) -> None:
        """So many cycles are complete, now."""
        if self._measure <= self._clock() < self._end:
            self._tally.cycles += count
