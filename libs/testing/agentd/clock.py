"""Times as agentd writes them, and cron lines as it reads them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def now() -> str:
    """The present, RFC 3339 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """300ms, 5s, 2m, 1h; a bare number is seconds. ValueError for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration (300ms, 5s, 2m, 1h)")
    return float(match[1]) * _SECONDS[match[2] or "s"]


class Cron:
    """Five fields, in UTC: `*`, numbers, lists, ranges and steps. ValueError for anything else."""

    def __init__(self, line: str) -> None:
        fields = line.split()
        if len(fields) != len(_CRON_RANGES):
            raise ValueError(f"{line!r} has not five fields")
        self._minutes, self._hours, self._days, self._months, weekdays = (
            _values(field, *bounds) for field, bounds in zip(fields, _CRON_RANGES, strict=True)
        )
        self._weekdays = {day % 7 for day in weekdays}
        self._any_day = fields[2].startswith("*") or fields[4].startswith("*")

    def fires(self, at: datetime) -> bool:
        """Whether this minute is one of its."""
        day, weekday = at.day in self._days, at.isoweekday() % 7 in self._weekdays
        on_day = day and weekday if self._any_day else day or weekday
        return on_day and at.month in self._months and at.hour in self._hours and at.minute in self._minutes

    def wait(self, at: datetime) -> float:
        """Seconds until it fires next, at most a day; at the end of a day without one, ask again."""
        minute = at.replace(second=0, microsecond=0)
        for _ in range(24 * 60):
            minute += timedelta(minutes=1)
            if self.fires(minute):
                break
        return (minute - at).total_seconds()


def _values(field: str, low: int, high: int) -> set[int]:
    chosen: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = int(first)
            end = int(last) if dash else (high if step else begin)
        if not low <= begin <= end <= high or (step and int(step) < 1):
            raise ValueError(f"{field!r} is not within {low}-{high}")
        chosen.update(range(begin, end + 1, int(step or 1)))
    return chosen
