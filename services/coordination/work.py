"""The domain: items, leases, policies, verdicts and the arithmetic of attempts. No clock, no I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from libs.errors import QueueInUseError, ShardRequiredError, StaleShardError

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS

MAX_ENTRIES = 1000
MAX_PAYLOAD = 1 << 20
MAX_GRANT_BYTES = 3 << 20
MAX_ERROR = 1024
MAX_FAILURES = 10
MAX_REFUNDS = 3
TOP_PRIORITY = 9
MAX_SHARDS = 1024
MAX_EPOCH = 1 << 50  # a store keeps it beside the index of a shard, in 64 bits


class State(IntEnum):
    """Where an item stands; the numbers are those of the wire."""

    READY = 1
    DELAYED = 2
    BLOCKED = 3
    LEASED = 4
    SUCCEEDED = 5
    DEAD = 6
    CANCELED = 7

    @property
    def settled(self) -> bool:
        return self >= State.SUCCEEDED


class DeadCause(IntEnum):
    """Why an item is in the dead letters; the numbers are those of the wire."""

    ATTEMPTS = 1
    TERMINAL = 2
    EXPIRED = 3
    LEASE_EXPIRED = 4


class OnExpiry(IntEnum):
    """What becomes of an item whose lease ran out."""

    RETRY = 1
    DEAD = 2


class OnDeadHead(IntEnum):
    """What becomes of the items behind a dead head of an ordering key."""

    HALT = 1
    SKIP = 2


@dataclass(frozen=True, slots=True)
class Backoff:
    """The n-th retry waits initial * multiplier^(n-1), at most maximum, less a random fifth."""

    initial_ms: int = 1000
    maximum_ms: int = 10 * MINUTE_MS
    multiplier: float = 2.0

    def delay_ms(self, attempt: int, rng: random.Random) -> int:
        """Wait after this attempt (from 1) failed."""
        grown = self.initial_ms * self.multiplier ** min(attempt - 1, 64)
        return int(min(grown, self.maximum_ms) * (1 - 0.2 * rng.random()))


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a queue, as whoever claims from it knows them."""

    index: int
    count: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a queue is divided. 0 shards: it is not. The epoch grows with every change of the count."""

    count: int = 0
    epoch: int = 0

    def resized(self, wanted: Sharding, above: int = 0) -> Sharding:
        """With the wanted count: unless it is the same, with a new epoch, more than `above`. StaleShardError
        when `wanted` then names an epoch (0: none) that is not this one.
        """
        if wanted.count == self.count:
            return self
        if wanted.epoch not in (0, self.epoch):
            raise StaleShardError(f"the queue has {self}, the change is for epoch {wanted.epoch}")
        return Sharding(wanted.count, max(self.epoch, above) + 1)

    def check_unused(self, held: int) -> None:
        """QueueInUseError if so many held items forbid that the queue is divided in another way than this."""
        if held:
            raise QueueInUseError(f"the queue has {self}, {held} items are held; stop who works on it first")

    def check(self, queue: str, shard: Shard | None) -> None:
        """StaleShardError or ShardRequiredError unless a claim of the queue with this shard fits."""
        if shard is None:
            if self.count:
                raise ShardRequiredError(f"queue {queue} has {self}; a claim must name its shard")
        elif not self.count or (shard.count, shard.epoch) != (self.count, self.epoch):
            raise StaleShardError(
                f"queue {queue} has {self}, the claim is for {shard.count}, epoch {shard.epoch}"
            )

    def __str__(self) -> str:
        return f"{self.count} shards, epoch {self.epoch}"


def shard_hash(key: bytes) -> int:
    """FNV-1a with 64 bits, unsigned."""
    hashed = 0xCBF29CE484222325
    for byte in key:
        hashed = (hashed ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return hashed


def item_hash(shard_key: str | None, dedupe_key: str | None, id: str) -> int:
    """What decides, modulo their count, in which shard an item is."""
    return shard_hash((shard_key or dedupe_key or id).encode())


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of a queue."""

    default_lease_ms: int = 30_000
    min_lease_ms: int = 1000
    max_lease_ms: int = 60 * MINUTE_MS
    max_hold_ms: int = DAY_MS
    max_attempts: int = 5
    backoff: Backoff = Backoff()
    on_expiry: OnExpiry = OnExpiry.RETRY
    on_dead_head: OnDeadHead = OnDeadHead.HALT
    dedupe_window_ms: int = 5 * MINUTE_MS
    settled_retention_ms: int = DAY_MS
    dead_retention_ms: int = 30 * DAY_MS
    max_backlog: int = 5_000_000
    max_payload_bytes: int = MAX_PAYLOAD
    agents: tuple[str, ...] = ()
    shards: Sharding = Sharding()

    def lease_ms(self, asked_ms: int | None) -> int:
        """The lease to give; a length out of bounds has been refused before."""
        return self.default_lease_ms if asked_ms is None else asked_ms


@dataclass(slots=True)  # like others here not frozen: made for every item or call, and four times cheaper so
class NewItem:
    """An item to add, checked, with the queue's defaults filled in."""

    id: str
    payload: bytes
    submitter: str
    content_type: str = ""
    dedupe_key: str | None = None
    priority: int = 0
    delay_ms: int = 0
    expires_in_ms: int | None = None
    max_attempts: int = 5
    backoff: Backoff = Backoff()
    group: str | None = None
    ordering_key: str | None = None
    shard_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """How a lease ended without success."""

    attempt: int
    error: str
    holder: str
    ago_ms: int


@dataclass(slots=True)
class Grant:
    """An item and the right to work on it."""

    id: str
    token: int
    queue: str
    attempt: int
    max_attempts: int
    expires_in_ms: int
    payload: bytes
    content_type: str
    labels: Mapping[str, str]
    group: str | None
    ordering_key: str | None
    failures: tuple[Failure, ...]
    trace: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Item:
    """An item as the store sees it now; times are relative to the store's clock."""

    id: str
    queue: str
    state: State
    priority: int
    attempt: int
    max_attempts: int
    submitter: str
    holder: str | None
    labels: Mapping[str, str]
    group: str | None
    dedupe_key: str | None
    ordering_key: str | None
    content_type: str
    payload_size: int
    payload: bytes | None
    result: bytes
    result_content_type: str
    failures: tuple[Failure, ...]
    trace: Mapping[str, str]
    age_ms: int
    ready_in_ms: int | None = None
    lease_expires_in_ms: int | None = None
    settled_ago_ms: int | None = None
    dead_cause: DeadCause | None = None
    cancel_reason: str | None = None
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue, its rules and its counters."""

    name: str
    policy: Policy
    paused: bool = False
    ready: int = 0
    delayed: int = 0
    blocked: int = 0
    leased: int = 0
    dead: int = 0
    oldest_ready_age_ms: int | None = None
    submitted_total: int = 0
    granted_total: int = 0
    settled_total: int = 0

    @property
    def backlog(self) -> int:
        return self.ready + self.delayed + self.blocked + self.leased


# --- What is asked ---------------------------------------------------------------------------------


@dataclass(slots=True)
class ClaimOrder:
    """A checked Claim of one queue for one holder (waiting and several queues are above the store)."""

    queue: str
    holder: str
    max_items: int
    max_bytes: int
    lease_ms: int | None
    request_id: str | None = None
    request_args: int = 0  # a checksum of the arguments, to recognise a changed repeat
    dedupe_key: str | None = None
    shard: Shard | None = None


@dataclass(slots=True)
class Lease:
    """This item, by this grant."""

    id: str
    token: int


@dataclass(slots=True)
class AckOrder:
    """An item done."""

    id: str
    token: int
    result: bytes = b""
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class FailOrder:
    """A lease that ends in an error."""

    id: str
    token: int
    error: str
    retryable: bool = True
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What a caller may see: a namespace (None: all) and in it everything, or only items that one
    principal submitted or holds.
    """

    namespace: str | None = None
    submitter: str | None = None
    holder: str | None = None

    def sees_queue(self, queue: str) -> bool:
        return self.namespace is None or queue.startswith(self.namespace + "/")

    def sees(self, queue: str, submitter: str, holder: str | None) -> bool:
        if not self.sees_queue(queue):
            return False
        if self.submitter is None and self.holder is None:
            return True
        return submitter == self.submitter or (holder is not None and holder == self.holder)


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """Which items of a queue; all that is set must hold."""

    states: frozenset[State] = frozenset()
    ids: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    cause: DeadCause | None = None


# --- What is answered ------------------------------------------------------------------------------


class Submitted(IntEnum):
    """What became of a submitted item; the numbers are those of the wire."""

    ACCEPTED = 1
    DUPLICATE = 2
    FULL = 3
    ID_CONFLICT = 4


@dataclass(slots=True)
class SubmitVerdict:
    """DUPLICATE names the first item; FULL names depth and cap."""

    status: Submitted
    id: str
    state: State | None = None
    depth: int = 0
    cap: int = 0


@dataclass(slots=True)
class Granted:
    """What a claim got. None and `more`: there may be some at once."""

    grants: tuple[Grant, ...]
    more: bool = False


class Held(IntEnum):
    """What became of a lease; the numbers are those of the wire."""

    OK = 1
    LOST = 2
    SETTLED = 3


class Lost(IntEnum):
    """Why a lease is lost; the numbers are those of the wire."""

    UNKNOWN = 1
    EXPIRED = 2
    RELEASED = 3
    FAILED = 4
    REGRANTED = 5
    MAX_HOLD = 6


@dataclass(slots=True)
class LeaseVerdict:
    """What became of a lease."""

    status: Held
    lost: Lost | None = None
    holder: str | None = None
    state: State | None = None
    expires_in_ms: int | None = None
    retry_in_ms: int | None = None
    cancel_requested: bool = False


OK = LeaseVerdict(Held.OK)
UNKNOWN = LeaseVerdict(Held.LOST, Lost.UNKNOWN)


class Canceled(IntEnum):
    """What became of a cancel; the numbers are those of the wire."""

    CANCELED = 1
    LEASED = 2
    SETTLED = 3
    NOT_FOUND = 4


@dataclass(frozen=True, slots=True)
class CancelVerdict:
    """What became of a cancel."""

    status: Canceled
    state: State | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some items, and where the next page begins ("" on the last)."""

    items: tuple[Item, ...]
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive put back."""

    ids: tuple[str, ...]
    duplicates: tuple[str, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge deleted."""

    count: int
    more: bool


@dataclass(frozen=True, slots=True)
class Results:
    """Settled items in settle order, and the cursor behind them. `held_back`: none is told, but some have
    settled already and will be."""

    items: tuple[Item, ...]
    cursor: str
    held_back: bool = False


def amend(policy: Policy, changes: Mapping[str, object], epochs_above: int = 0) -> Policy:
    """The policy with these fields changed, `shards` by `Sharding.resized`. ValueError when the bounds
    contradict each other.
    """
    amended = replace(policy, **changes)  # type: ignore[arg-type]  # keys come from one table in wire.py
    amended = replace(amended, shards=policy.shards.resized(amended.shards, epochs_above))
    low, high = amended.min_lease_ms, amended.max_lease_ms
    if not low <= amended.default_lease_ms <= high:
        raise ValueError(f"default_lease: must be within min_lease ({low} ms) and max_lease ({high} ms)")
    if amended.max_hold_ms < low:
        raise ValueError(f"max_hold: must be at least min_lease ({low} ms)")
    return amended
