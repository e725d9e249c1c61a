"""A latency histogram: log buckets, at most 1.6 % wide, cheap to fill and to merge."""

from __future__ import annotations

from dataclasses import dataclass, field

_BITS = 6  # 64 buckets an octave
_BUCKETS = 40 << _BITS  # up to 2^39 ticks
_TICK = 1e-7  # seconds; the first octaves are exact to 0.1 µs


@dataclass
class Histogram:
    """Counts of durations in seconds. A percentile is the upper edge of its bucket, so never flattered."""

    counts: list[int] = field(default_factory=lambda: [0] * _BUCKETS)

    def record(self, seconds: float) -> None:
        ticks = int(seconds / _TICK)
        shift = max(ticks.bit_length() - _BITS - 1, 0)
        self.counts[min((shift << _BITS) + (ticks >> shift), _BUCKETS - 1)] += 1

    def merge(self, other: Histogram) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """Seconds within which this share of the durations lay (nearest rank); None when there are none."""
        rank = max(self.total * percent / 100, 1)
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return _upper_edge(index)
        return None


def _upper_edge(index: int) -> float:
    shift = max((index >> _BITS) - 1, 0)
    mantissa = index - (shift << _BITS)
    return ((mantissa + 1) << shift) * _TICK
