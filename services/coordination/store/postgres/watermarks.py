"""From where a claim looks for ready items: below, all of a queue's priority have been granted.

Skipping those matters when old row versions cannot be removed yet, since an index still leads to them.
Whoever makes items ready says their lowest place, which lowers the mark, here at once and in other replicas
soon. Until then a mark can hide items, so a claim that finds less than it wants asks the counters whether
it did, and looks from the beginning if so; and once a second one does it anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ...work import TOP_PRIORITY

RESCAN_SECONDS = 1.0
_EVERYTHING = 0
_NEVER = 1 << 62


class Watermarks:
    """By queue and priority."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lows: dict[int, list[int]] = {}
        self._floors: dict[int, int] = {}  # the lowest place told of since the claim in flight began
        self._looked: dict[int, float] = {}

    def start(self, queue: int) -> Sequence[int]:
        """The marks for a claim that begins now."""
        lows = self._lows.setdefault(queue, [_EVERYTHING] * (TOP_PRIORITY + 1))
        self._floors[queue] = _NEVER
        now = self._clock()
        if now - self._looked.get(queue, 0) > RESCAN_SECONDS:
            self._looked[queue] = now
            lows[:] = [_EVERYTHING] * (TOP_PRIORITY + 1)
        return list(lows)

    def granted(self, queue: int, highest: Mapping[int, int], *, afresh: bool) -> None:
        """The highest place granted of each priority by the claim that began last; `afresh`: it looked from
        the beginning.
        """
        lows, floor = self._lows.get(queue), self._floors.get(queue, _NEVER)
        if lows is None:
            return
        if afresh:
            lows[:] = [_EVERYTHING] * (TOP_PRIORITY + 1)
        for priority, place in highest.items():
            lows[priority] = min(max(lows[priority], place), floor)

    def lower(self, queue: int, place: int) -> None:
        """Items above `place` may have become ready."""
        if (lows := self._lows.get(queue)) is not None:
            self._floors[queue] = min(place, self._floors.get(queue, _NEVER))
            if place < max(lows):
                lows[:] = [min(low, place) for low in lows]

    def forget(self) -> None:
        """Look from the beginning everywhere."""
        self._lows.clear()
        self._floors.clear()
