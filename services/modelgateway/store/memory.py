"""Usage in memory: for one replica, and for tests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from ..budgets import Hold, Key, Level, Record, Refusal, Request, Spend, Usage, reserve
from . import Page, Store, after, keys_of

_MOST_RECORDS = 10_000


@dataclass(slots=True)
class _Bucket:
    key: Key
    start: int
    level: Level = field(default_factory=Level)


class MemoryStore(Store):
    """As PostgreSQL's, while the process lives. It keeps the last 10,000 records."""

    def __init__(self, retention_seconds: float = 7 * 86400, clock: Callable[[], float] = time.time) -> None:
        self._retention = retention_seconds
        self._clock = clock
        self._ids = count(1)
        self._numbers: dict[tuple[Key, int], int] = {}
        self._buckets: dict[int, _Bucket] = {}
        self._holds: dict[str, tuple[Hold, float]] = {}
        self._records: deque[tuple[int, Record]] = deque(maxlen=_MOST_RECORDS)

    async def reserve(self, request: Request) -> Hold | Refusal:
        now = self._clock()
        numbers = {key: self._number(key, now) for key in keys_of([request])}
        levels = {key: self._buckets[number].level for key, number in numbers.items()}
        (refused,) = reserve([request], levels, now)
        if refused is not None:
            return refused
        hold = Hold(request.id, request.tokens, tuple(numbers.values()))
        self._holds[hold.id] = hold, now + request.seconds
        return hold

    async def settle(self, spend: Spend) -> None:
        now = self._clock()
        if spend.hold is not None:
            numbers = spend.hold.buckets
            self._free(spend.hold.id)
        else:
            numbers = tuple(self._number(key, now) for key in keys_of([spend]))
        for number in numbers:
            if bucket := self._buckets.get(number):
                bucket.level.used += spend.tokens
        if spend.record is not None:
            self._records.append((next(self._ids), spend.record))

    async def usage(self, namespace: str, pool: str = "") -> list[Usage]:
        now = self._clock()
        found = [
            Usage(bucket.key, bucket.level.used, bucket.level.reserved, bucket.key.end(now))
            for bucket in self._buckets.values()
            if bucket.key.namespace == namespace
            and pool in ("", bucket.key.pool)
            and bucket.start == bucket.key.start(now)
            and (bucket.level.used or bucket.level.reserved)
        ]
        return sorted(found, key=lambda each: (each.key.pool, each.key.scope, each.key.name, each.key.window))

    async def calls(
        self, namespace: str, pool: str = "", agent: str = "", *, size: int = 100, token: str = ""
    ) -> Page:
        below = after(token)
        found = [
            (number, record)
            for number, record in reversed(self._records)
            if number < below
            and record.namespace == namespace
            and pool in ("", record.pool)
            and agent in ("", record.agent, record.fleet)
        ]
        page = found[:size]
        return Page([record for _, record in page], str(page[-1][0]) if len(found) > size else "")

    async def tidy(self) -> int:
        now = self._clock()
        expired = [id for id, (_, until) in self._holds.items() if until <= now]
        for id in expired:
            self._free(id)
        oldest = now - self._retention
        while self._records and self._records[0][1].started_at < oldest:
            self._records.popleft()
        for number, bucket in list(self._buckets.items()):
            if bucket.key.window and bucket.start + bucket.key.window < oldest and not bucket.level.reserved:
                del self._buckets[number], self._numbers[bucket.key, bucket.start]
        return len(expired)

    async def check(self) -> None:
        pass

    def _number(self, key: Key, now: float) -> int:
        start = key.start(now)
        number = self._numbers.get((key, start))
        if number is None:
            number = self._numbers[key, start] = next(self._ids)
            self._buckets[number] = _Bucket(key, start)
        return number

    def _free(self, id: str) -> None:
        hold, _ = self._holds.pop(id, (None, 0.0))
        if hold is not None:
            for number in hold.buckets:
                self._buckets[number].level.reserved -= hold.tokens
