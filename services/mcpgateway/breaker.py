"""A circuit breaker: who fails again and again is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

from libs.errors import UnavailableError


class Breaker:
    """Opens after so many failures in a row, for so many seconds; then one call tries."""

    def __init__(
        self, name: str, most: int = 5, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._failures = 0
        self._closed_from = float("-inf")

    def enter(self) -> None:
        """UnavailableError while it is open."""
        if self._failures < self._most:
            return
        now = self._clock()
        if now < self._closed_from:
            raise UnavailableError(
                f"{self._name} has failed {self._failures} times in a row: try again later"
            )
        self._closed_from = now + self._seconds  # for the others, while this one tries

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._closed_from = self._clock() + self._seconds
