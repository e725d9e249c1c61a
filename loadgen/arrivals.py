"""When the cycles of an open loop begin: a schedule that knows nothing of the server."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from enum import StrEnum


class Arrivals(StrEnum):
    """How the instants are spread."""

    POISSON = "poisson"  # independent of each other, as many users are
    FIXED = "fixed"  # one as far from the next as all others


def instants(arrivals: Arrivals, rate: float, seed: str, phase: float = 0.0) -> Iterator[float]:
    """Seconds from the start, ascending, without end, `rate` a second; the same for the same seed.
    Fixed ones begin at `phase`, a share of the interval, so that several schedules can interleave.
    """
    if arrivals is Arrivals.FIXED:
        return ((count + phase) / rate for count in itertools.count())
    source = random.Random(seed)
    return itertools.accumulate(source.expovariate(rate) for _ in itertools.count())
