"""Rates of a queue from its totals: the difference to a sample of about ten seconds ago."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .work import QueueStats

WINDOW = 10.0
STEP = 1.0  # least time between two samples, seconds


@dataclass(frozen=True, slots=True)
class Rates:
    """Items per second."""

    submitted: float = 0.0
    granted: float = 0.0
    settled: float = 0.0


class RateMeter:
    """Remembers a dozen samples a queue; a queue seen for the first time has no rate."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, QueueStats]]] = {}

    def observe(self, stats: QueueStats, now: float) -> Rates:
        samples = self._samples.setdefault(stats.name, deque())
        while len(samples) > 1 and now - samples[1][0] >= WINDOW:
            samples.popleft()
        if not samples or now - samples[-1][0] >= STEP:
            samples.append((now, stats))
        then, old = samples[0]
        if (seconds := now - then) < STEP:
            return Rates()
        return Rates(
            max(0, stats.submitted_total - old.submitted_total) / seconds,
            max(0, stats.granted_total - old.granted_total) / seconds,
            max(0, stats.settled_total - old.settled_total) / seconds,
        )
