"""Waiting between two tries of what may pass."""

from __future__ import annotations

import random
from collections.abc import Iterator


def pauses(shortest: float = 1.0, longest: float = 60.0) -> Iterator[float]:
    """Seconds: doubling, and jittered so that many who failed at once do not try again at once."""
    pause = shortest
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest)
