"""What the memory store keeps: rows, queues, groups, and logs to read them by. No rules here."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from ...work import (
    TOP_PRIORITY,
    DeadCause,
    Failure,
    Grant,
    Item,
    ItemFilter,
    LeaseVerdict,
    Lost,
    NewItem,
    Policy,
    QueueStats,
    Scope,
    State,
    item_hash,
)

_NO_FAILURES: tuple[Failure, ...] = ()


@dataclass(slots=True)
class Ended:
    """How one lease ended, so that a repeat gets the first verdict."""

    holder: str
    lost: Lost
    verb: str
    args: object
    verdict: LeaseVerdict


@dataclass(slots=True, eq=False)
class Request:
    """A claim with a request id, while any of its grants lives."""

    key: tuple[str, str]
    args: int
    grants: list[tuple[Row, int]] = field(default_factory=list)
    live: int = 0


class Row:
    """An item with all that the store knows of it. Times are ms of the store's clock; 0: none."""

    __slots__ = (
        "answers", "armed", "attempt", "cancel_reason", "chained", "dead_cause", "ended", "expires_at",
        "failures", "forget_at", "granted_at", "hash", "holder", "key_until", "lease_end", "new", "past",
        "queue", "ready_at", "ready_since", "refunds", "request", "result", "result_type", "seq",
        "settled_at", "settled_seq", "state", "submitted_at", "token",
    )  # fmt: skip

    def __init__(self, new: NewItem, queue: Queue, seq: int, now: int) -> None:
        self.new = new
        self.queue = queue
        self.seq = seq
        self.state = State.READY
        self.submitted_at = now
        self.expires_at = now + new.expires_in_ms if new.expires_in_ms else 0
        self.ready_at = now + new.delay_ms if new.delay_ms else 0
        self.attempt = self.refunds = self.token = 0
        self.hash: int | None = None  # once it was asked for
        self.answers = 0  # that have told of its lease: the claim's, and those of its repeats
        self.holder: str | None = None
        self.lease_end = self.granted_at = self.ready_since = 0
        self.settled_at = self.settled_seq = self.forget_at = self.key_until = 0
        self.armed = 0
        self.chained = False  # stands in the chain of its ordering key
        self.ended: Ended | None = None  # how the lease of `token` ended, None while it runs
        self.past: dict[int, Ended] | None = None
        self.failures: list[tuple[int, str, str, int]] | None = None
        self.request: Request | None = None
        self.result = b""
        self.result_type = ""
        self.dead_cause: DeadCause | None = None
        self.cancel_reason: str | None = None

    def next_time(self) -> int:
        """The earliest moment at which something happens to this row by itself; 0: never."""
        match self.state:
            case State.LEASED:
                return self.lease_end
            case State.DELAYED:
                return min(self.ready_at, self.expires_at or self.ready_at)
            case State.READY | State.BLOCKED:
                return self.expires_at
            case State.DEAD:
                return self.forget_at
            case _:
                return self.key_until

    def live(self, holder: str, token: int, now: int) -> bool:
        """Whether this lease runs."""
        return (
            self.token == token
            and self.holder == holder
            and self.state is State.LEASED
            and self.lease_end > now
        )

    def ran_out(self) -> Lost:
        """Why the present lease is lost when its end has come."""
        longest = self.granted_at + self.queue.policy.max_hold_ms
        return Lost.MAX_HOLD if self.lease_end >= longest else Lost.EXPIRED

    def lapsed(self, now: int) -> bool:
        """Whether the item's lifetime is over."""
        return self.expires_at != 0 and self.expires_at <= now

    def shard(self) -> int | None:
        """Index of its shard, None in a queue without."""
        if not (count := self.queue.policy.shards.count):
            return None
        if self.hash is None:
            self.hash = item_hash(self.new.shard_key, self.new.dedupe_key, self.new.id)
        return self.hash % count

    def lease_ended(self, token: int) -> Ended | None:
        """How the lease of this token ended, if it did and is remembered."""
        return self.ended if self.token == token else self.past.get(token) if self.past else None

    def in_scope(self, scope: Scope) -> bool:
        return scope.sees(self.queue.name, self.new.submitter, self._holder())

    def matches(self, matching: ItemFilter) -> bool:
        """Whether all that is set in the filter, states apart, holds."""
        new = self.new
        return (
            (not matching.ids or new.id in matching.ids)
            and (matching.group is None or new.group == matching.group)
            and (matching.cause is None or self.dead_cause is matching.cause)
            and all(new.labels.get(name) == value for name, value in matching.labels.items())
        )

    def carried(self) -> int:
        """Bytes of labels, trace and failures. What else an answer has of an item is less than 1 KiB, but for
        its payload and its result.
        """
        new = self.new
        size = 0
        for carried in (new.labels, new.trace):
            for key, text in carried.items():
                size += 10 + len(key.encode()) + len(text.encode())
        for _, error, holder, _ in self.failures or ():
            size += 40 + len(error.encode()) + len(holder)
        return size

    def grant(self, now: int) -> Grant:
        """What the holder gets."""
        new = self.new
        return Grant(
            new.id, self.token, self.queue.name, self.attempt, new.max_attempts, self.lease_end - now,
            new.payload, new.content_type, new.labels, new.group, new.ordering_key,
            self._failures(now), new.trace,
        )  # fmt: skip

    def item(self, now: int, *, with_payload: bool = False, with_result: bool = True) -> Item:
        """What people see."""
        new, state = self.new, self.state
        return Item(
            id=new.id, queue=self.queue.name, state=state, priority=new.priority, attempt=self.attempt,
            max_attempts=new.max_attempts, submitter=new.submitter,
            holder=self._holder(),
            labels=new.labels, group=new.group, dedupe_key=new.dedupe_key, ordering_key=new.ordering_key,
            content_type=new.content_type, payload_size=len(new.payload),
            payload=new.payload if with_payload else None,
            result=self.result if with_result else b"", result_content_type=self.result_type,
            failures=self._failures(now),
            trace=new.trace, age_ms=now - self.submitted_at,
            ready_in_ms=max(0, self.ready_at - now) if state is State.DELAYED else None,
            lease_expires_in_ms=max(0, self.lease_end - now) if state is State.LEASED else None,
            settled_ago_ms=now - self.settled_at if state.settled else None,
            dead_cause=self.dead_cause, cancel_reason=self.cancel_reason, shard=self.shard(),
        )  # fmt: skip

    def _holder(self) -> str | None:
        """Who holds it, or held it when it settled."""
        return self.holder if self.state is State.LEASED or self.state.settled else None

    def _failures(self, now: int) -> tuple[Failure, ...]:
        if self.failures is None:
            return _NO_FAILURES
        return tuple(Failure(n, error, holder, now - at) for n, error, holder, at in self.failures)


class Log:
    """Rows in order of a growing number, to be read from any number on."""

    __slots__ = ("_numbers", "rows")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self.rows: list[Row] = []

    def append(self, number: int, row: Row) -> None:
        self._numbers.append(number)
        self.rows.append(row)

    def after(self, number: int) -> Iterator[tuple[int, Row]]:
        start = bisect_right(self._numbers, number)
        return zip(islice(self._numbers, start, None), islice(self.rows, start, None), strict=True)

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        kept = [(n, r) for n, r in zip(self._numbers, self.rows, strict=True) if wanted(r)]
        self._numbers = [n for n, _ in kept]
        self.rows = [r for _, r in kept]


class Group:
    """The items of a queue that share a group."""

    __slots__ = ("results", "rows", "unsettled")

    def __init__(self) -> None:
        self.results = Log()
        self.rows = 0
        self.unsettled: dict[str, Row] = {}


Lane = list[deque[Row]]
"""Ready rows by priority."""


def _lane() -> Lane:
    return [deque() for _ in range(TOP_PRIORITY + 1)]


class Queue:
    """A queue with its rows by every order in which they are looked for."""

    __slots__ = (
        "chains", "counts", "dead", "dedupe", "granted_total", "groups", "items", "name", "paused",
        "policy", "ready", "results", "rows", "settled_total", "stale", "submitted_total", "submitters",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.policy = Policy()
        self.paused = False
        self.ready: dict[int | None, Lane] = {None: _lane()}  # shard → its ready rows
        self.stale = 0  # entries of `ready` whose row is no longer READY
        self.counts = [0] * (State.CANCELED + 1)
        self.dead: dict[str, Row] = {}
        self.dedupe: dict[str, Row] = {}
        self.chains: dict[str, deque[Row]] = {}  # ordering key → its unsettled rows, head first
        self.groups: dict[str, Group] = {}
        self.submitters: dict[str, int] = {}  # → unsettled rows
        self.items = Log()  # every row, by submission
        self.results = Log()  # every settled row, by settling
        self.rows = 0
        self.submitted_total = self.granted_total = self.settled_total = 0

    @property
    def backlog(self) -> int:
        c = self.counts
        return c[State.READY] + c[State.DELAYED] + c[State.BLOCKED] + c[State.LEASED]

    def keeper(self, dedupe_key: str, now: int) -> Row | None:
        """The row that holds this key now."""
        row = self.dedupe.get(dedupe_key)
        return None if row is None or (row.key_until and row.key_until <= now) else row

    def count(self, row: Row, unsettled: int) -> None:
        """One unsettled row more (1) or less (-1)."""
        new = row.new
        if left := self.submitters.get(new.submitter, 0) + unsettled:
            self.submitters[new.submitter] = left
        else:
            self.submitters.pop(new.submitter, None)
        if new.group is not None:
            group = self.groups[new.group]
            if unsettled > 0:
                group.unsettled[new.id] = row
            else:
                group.unsettled.pop(new.id, None)

    def lane(self, row: Row) -> deque[Row]:
        """Where a row stands when it is ready."""
        shard = row.shard() if self.policy.shards.count else None
        if (lane := self.ready.get(shard)) is None:
            lane = self.ready[shard] = _lane()
        return lane[row.new.priority]

    def divide(self) -> None:
        """Put the ready rows where the policy now wants them, the older first."""
        rows = {row for lane in self.ready.values() for some in lane for row in some}
        self.ready = {None: _lane()}
        self.stale = 0
        for row in sorted(rows, key=lambda row: (row.ready_since, row.seq)):
            if row.state is State.READY:
                self.lane(row).append(row)

    def tidy(self) -> None:
        """Sweep stale entries out of `ready` when they are the majority."""
        if self.stale > self.counts[State.READY] + 1000:
            for lane in self.ready.values():
                lane[:] = [deque(row for row in some if row.state is State.READY) for some in lane]
            self.stale = 0

    def stats(self, now: int) -> QueueStats:
        c = self.counts
        lanes = (some for lane in self.ready.values() for some in lane)
        heads = (next((row for row in some if row.state is State.READY), None) for some in lanes)
        since = min((row.ready_since for row in heads if row is not None), default=None)
        return QueueStats(
            self.name, self.policy, self.paused, c[State.READY], c[State.DELAYED], c[State.BLOCKED],
            c[State.LEASED], c[State.DEAD], None if since is None else max(0, now - since),
            self.submitted_total, self.granted_total, self.settled_total,
        )  # fmt: skip
