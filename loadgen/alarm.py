"""Sleep to a tenth of a millisecond. Event loops count in whole ones, longer than many a call takes."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

_LEAST = 1e-6  # 0 would mean never


class Alarm:
    """The process's interval timer, so one at a time, for one sleeper, in the main thread."""

    def __init__(self) -> None:
        self._rings = asyncio.Event()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, self._rings.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGALRM)

    async def sleep(self, seconds: float) -> None:
        """May return a little early."""
        self._rings.clear()
        signal.setitimer(signal.ITIMER_REAL, max(seconds, _LEAST))
        await self._rings.wait()
