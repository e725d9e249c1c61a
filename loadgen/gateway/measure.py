"""The steps: all sides in turn, round by round, so that whoever else uses the cores meets them alike."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..latency import Histogram
from ..processes import Usage
from .closed import Loop, Tally
from .sides import DIRECT, LITELLM, OURS, Side

ADDED_BAR_MS = 1.0
TIMES_BAR = 10.0
_FIRST_SECONDS, _WARM_SECONDS = 2.0, 0.5


@dataclass(frozen=True)
class Plan:
    """What is asked."""

    concurrency: Sequence[int]
    seconds: float
    rounds: int


@dataclass
class _Sum:
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    gateway: float = 0.0
    database: float = 0.0
    client: float = 0.0
    resident: int = 0


@dataclass(frozen=True)
class Row:
    """One side in one kind of step. Times are milliseconds; added is the difference to `direct`."""

    side: str
    streams: bool
    concurrency: int
    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    added_p99_ms: float
    first_p50_ms: float
    first_p99_ms: float
    added_first_p50_ms: float
    added_first_p99_ms: float
    per_core: float | None
    """Requests for each second of CPU of the gateway, without its database. None: there is no gateway."""
    gateway_us: float
    database_us: float
    client_us: float
    """CPU a request."""
    resident_mib: float
    """Of the gateway, at the end of the step."""
    wrong: int
    sample: str


async def measure(plan: Plan, sides: Sequence[Side], say: Callable[[str], None]) -> list[Row]:
    """A row for each side and step. OSError if a connection is refused or lost."""
    for side in sides:
        say(f"warming up {side.name}")
        loop = Loop(side.target, 4, streams=False)
        try:
            await loop.open(_FIRST_SECONDS)
        finally:
            await loop.close()
    found: dict[tuple[bool, int, str], _Sum] = {}
    for number in range(plan.rounds):
        for streams in (False, True):
            for connections in plan.concurrency:
                for side in sides:
                    what = "streams" if streams else "whole"
                    say(f"round {number + 1} of {plan.rounds}: {what}, {connections}, {side.name}")
                    sums = found.setdefault((streams, connections, side.name), _Sum())
                    await _step(plan.seconds, side, connections, streams, sums)
    return [_row(key, sums, found[key[0], key[1], DIRECT]) for key, sums in found.items()]


async def _step(seconds: float, side: Side, connections: int, streams: bool, sums: _Sum) -> None:
    loop = Loop(side.target, connections, streams=streams)
    try:
        await loop.open(_WARM_SECONDS)
        before, client = side.usage(), _own_seconds()
        began = time.perf_counter()
        tally = await loop.count(seconds)
        elapsed, after = time.perf_counter() - began, side.usage()
        sums.client += _own_seconds() - client
    finally:
        await loop.close()
    sums.tally.merge(tally)
    sums.seconds += elapsed
    sums.gateway += _spent(before[0], after[0])
    sums.database += _spent(before[1], after[1])
    sums.resident = after[0].resident_bytes


def _spent(before: Usage, after: Usage) -> float:
    return after.cpu_seconds - before.cpu_seconds


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _row(key: tuple[bool, int, str], sums: _Sum, direct: _Sum) -> Row:
    streams, connections, side = key
    count = sums.tally.whole.total
    each = 1e6 / count if count else 0.0
    p50, p99 = _times(sums.tally.whole)
    first_p50, first_p99 = _times(sums.tally.first)
    base_p50, base_p99 = _times(direct.tally.whole)
    base_first_p50, base_first_p99 = _times(direct.tally.first)
    return Row(
        side=side,
        streams=streams,
        concurrency=connections,
        requests=count,
        per_second=count / sums.seconds,
        p50_ms=p50,
        p99_ms=p99,
        added_p50_ms=p50 - base_p50,
        added_p99_ms=p99 - base_p99,
        first_p50_ms=first_p50,
        first_p99_ms=first_p99,
        added_first_p50_ms=first_p50 - base_first_p50,
        added_first_p99_ms=first_p99 - base_first_p99,
        per_core=count / sums.gateway if sums.gateway else None,
        gateway_us=sums.gateway * each,
        database_us=sums.database * each,
        client_us=sums.client * each,
        resident_mib=sums.resident / 2**20,
        wrong=sums.tally.wrong,
        sample=sums.tally.sample,
    )


def _times(histogram: Histogram) -> tuple[float, float]:
    """p50 and p99; NaN of nothing."""
    p50, p99 = (histogram.percentile(percent) or math.nan for percent in (50, 99))
    return p50 * 1000, p99 * 1000


def bars(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """What this project holds itself to, and whether it does."""
    whole = [row for row in rows if not row.streams]
    alone = min((row.concurrency for row in whole), default=0)
    found = [
        (
            f"{row.side}: added p50 at concurrency {alone}: {row.added_p50_ms:.2f} ms ≤ {ADDED_BAR_MS:g} ms",
            row.added_p50_ms <= ADDED_BAR_MS,
        )
        for row in whole
        if row.concurrency == alone and row.side not in (DIRECT, LITELLM)
    ]
    theirs = max((row.per_core or 0.0 for row in whole if row.side == LITELLM), default=0.0)
    ours = max((row.per_core or 0.0 for row in whole if row.side == OURS), default=0.0)
    if theirs:
        times = ours / theirs
        text = (
            f"requests/s per core: {ours:.0f} is {times:.1f} times {LITELLM}'s {theirs:.0f} ≥ {TIMES_BAR:g}"
        )
        found.append((text, times >= TIMES_BAR))
    return found
