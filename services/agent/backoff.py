"""Waiting between two tries of what may pass."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta


class Pauses(Iterator[float]):
    """Seconds: doubling, and jittered so that many who failed at once do not try again at once."""

    def __init__(self, shortest: float = 1.0, longest: float = 60.0) -> None:
        self._next = shortest
        self._longest = longest

    def __next__(self) -> float:
        pause = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, self._longest)
        return pause

    def at_least(self, asked: timedelta | None) -> float:
        """The next; longer if a server asks for that, but never more than the longest."""
        return min(max(next(self), asked.total_seconds() if asked else 0.0), self._longest)
