"""How every call of a step is made: timed, and repeated where that is safe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from libs.errors import DeadlineError, MeshError, UnavailableError

from .loops import StuckError, Window
from .tally import Tally

_Answer = TypeVar("_Answer")
_PAUSE = 0.05  # seconds before a call is repeated


class Timed:
    """Makes calls, repeats those whose outcome is not known, and keeps the time of those in the window."""

    def __init__(self, tally: Tally, window: Window) -> None:
        self._tally = tally
        self._window = window

    async def call(self, verb: str, attempt: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The answer. Other errors of the mesh than the two that are repeated are the caller's."""
        while True:
            began = time.monotonic()
            try:
                answer = await attempt()
            except (UnavailableError, DeadlineError) as error:
                self.failed(verb, error)
                if began > self._window.give_up:
                    raise StuckError(f"{verb}: {error}") from error
                await asyncio.sleep(_PAUSE)
                continue
            ended = time.monotonic()
            if self._window.measures(ended):
                self._tally.rpcs += 1
                self._tally.latencies[verb].record(ended - began)
            return answer

    def failed(self, verb: str, error: MeshError) -> None:
        """A call came back with an error."""
        self._tally.errors[f"{verb} {error.code.name}"] += 1

    def settled(self, count: int) -> None:
        """So many cycles are complete, now."""
        if self._window.measures(time.monotonic()):
            self._tally.cycles += count
