"""Calls of one sort: how long those took that were answered as they had to be, and what was wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from libs.errors import MeshError

from ..latency import Histogram

Call = Callable[[int], Awaitable[str]]
"""The call of that number; answers what is wrong with its answer, "" if nothing is."""

_WARM_UP = 0.25  # of the seconds that count


@dataclass(frozen=True)
class Row:
    """A line of the table. Latencies are milliseconds; None when no call was answered well."""

    call: str
    by: str
    callers: int
    pods: int | None
    until: str
    calls: int
    wrong: int
    calls_per_second: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    complaint: str
    """What was wrong first."""


@dataclass
class Sample:
    """What was measured so far."""

    latencies: Histogram = field(default_factory=Histogram)
    complaints: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """That the calls took, those together that were under way together."""

    async def take(self, answer: Awaitable[str]) -> float:
        """Awaits one call and counts it; how many seconds it took."""
        begun = time.perf_counter()
        try:
            complaint = await answer
        except MeshError as error:
            complaint = f"{error.reason}: {error}"
        seconds = time.perf_counter() - begun
        if complaint:
            self.complaints.append(complaint)
        else:
            self.latencies.record(seconds)
        return seconds

    def row(self, call: str, by: str, *, callers: int = 1, pods: int | None = None, until: str = "") -> Row:
        """Its line."""
        calls = self.latencies.total
        p50, p95, p99, most = (_milliseconds(self.latencies.percentile(each)) for each in (50, 95, 99, 100))
        rate = calls / self.seconds if self.seconds else 0.0
        return Row(
            call,
            by,
            callers,
            pods,
            until,
            calls,
            wrong=len(self.complaints),
            calls_per_second=rate,
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            max_ms=most,
            complaint=self.complaints[0] if self.complaints else "",
        )


async def closed_loop(callers: int, seconds: float, call: Call) -> Sample:
    """So many callers, each of which asks again once it is answered, for so many seconds; a quarter of that
    before is not counted."""
    await _asked(callers, seconds * _WARM_UP, call)
    return await _asked(callers, seconds, call)


async def _asked(callers: int, seconds: float, call: Call) -> Sample:
    sample, begun = Sample(), time.perf_counter()

    async def caller(number: int) -> None:
        while True:
            await sample.take(call(number))
            number += 1
            if time.perf_counter() - begun >= seconds:
                return

    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(caller(number))
    sample.seconds = time.perf_counter() - begun
    return sample


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
