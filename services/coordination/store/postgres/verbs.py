"""The statements that change work, as verbs of a lane: parameters out, verdicts back, waiters woken."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from ...work import (
    MAX_GRANT_BYTES,
    OK,
    TOP_PRIORITY,
    AckOrder,
    Canceled,
    CancelVerdict,
    ClaimOrder,
    FailOrder,
    Grant,
    Lease,
    LeaseVerdict,
    NewItem,
    Scope,
    Sharding,
    State,
    Submitted,
    SubmitVerdict,
    item_hash,
)
from . import rows
from .arrays import blobs, bools, given, int2s, int4s, int8s, texts, uuids
from .flush import MOST_ROWS, Verb
from .watermarks import Watermarks

Woken = Callable[[str, int, int | None], None]
"""Queue, about how many items, and the lowest new place among the ready ones, if any became ready."""


Group = tuple[int, int | None, int]
"""Orders that are looked for together: queue, lane (see migration 10), and how many shards they know of."""

_UNDIVIDED = Sharding()
_NO_LOWS = (0,) * (TOP_PRIORITY + 1)


@dataclass(frozen=True, slots=True)
class Submission:
    """One item for a queue."""

    queue: int
    name: str
    new: NewItem
    shards: Sharding = _UNDIVIDED  # the queue's, as far as known


@dataclass(frozen=True, slots=True)
class Claiming:
    """An order for a queue."""

    queue: int
    key: int | None
    order: ClaimOrder
    group: Group


def claiming(queue: int, key: int | None, order: ClaimOrder) -> Claiming:
    """The entry for an order."""
    shard = order.shard
    group = (queue, None, 0) if shard is None else (queue, lane(shard.epoch, shard.index), shard.count)
    return Claiming(queue, key, order, group)


@dataclass(slots=True)
class Granting:
    """What an order got, or why it got nothing."""

    grants: list[Grant]
    more: bool = False
    changed: bool = False  # its request id was used with other arguments
    moving: bool = False  # more items than one claim moves are on their way to their shards: ask again
    shards: Sharding | None = None  # the queue's, which its shard is not of


def lane(epoch: int, index: int) -> int:
    """Where the items of a shard stand."""
    return epoch << 12 | index


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def digest(data: bytes) -> int:
    """64 bits to tell contents apart by."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)


def submit(woken: Woken) -> Verb[Submission, SubmitVerdict]:
    def keys(entry: Submission) -> tuple[Hashable, ...]:
        new = entry.new
        return (new.id,) if new.dedupe_key is None else (new.id, (entry.queue, new.dedupe_key))

    def lines(entry: Submission) -> tuple[Hashable, ...]:
        key = entry.new.ordering_key
        return () if key is None else ((entry.queue, key),)

    def encode(entries: list[Submission]) -> Sequence[object]:
        news = [entry.new for entry in entries]
        masks: dict[int, int] = {}
        for entry in entries:
            masks[entry.queue] = masks.get(entry.queue, 0) | 1 << entry.new.priority
        hashes = [
            item_hash(entry.new.shard_key, entry.new.dedupe_key, entry.new.id) if entry.shards.count else None
            for entry in entries
        ]
        lanes = [
            None if hashed is None else lane(entry.shards.epoch, hashed % entry.shards.count)
            for entry, hashed in zip(entries, hashes, strict=True)
        ]
        some = lanes.count(None) < len(lanes)
        return (
            int4s(list(masks)),
            int4s(list(masks.values())),
            int4s([entry.queue for entry in entries]),
            uuids([new.id for new in news]),
            int2s([new.priority for new in news]),
            int8s([new.delay_ms for new in news]),
            int8s([new.expires_in_ms or None for new in news]),
            int4s([new.max_attempts for new in news]),
            int4s([len(new.payload) for new in news]),
            int8s([digest(new.payload) for new in news]),
            texts([new.submitter for new in news]),
            given([new.group for new in news]),
            given([new.dedupe_key for new in news]),
            given([new.ordering_key for new in news]),
            blobs([rows.attributes(new) for new in news]),
            blobs([new.payload for new in news]),
            int8s(lanes) if some else None,
            int8s([None if hashed is None else _signed(hashed) for hashed in hashes]) if some else None,
        )

    def decode(entries: list[Submission], found: list[Any]) -> list[SubmitVerdict]:
        verdicts = [SubmitVerdict(Submitted.ACCEPTED, entry.new.id) for entry in entries]
        lowest = None
        for n, status, state, depth, cap, who in found:
            if n == 0:
                lowest = depth
            else:
                verdicts[n - 1] = SubmitVerdict(
                    Submitted(status),
                    who or entries[n - 1].new.id,
                    None if state is None else State(state),
                    depth or 0,
                    cap or 0,
                )
        added: dict[str, int] = {}
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict.status is Submitted.ACCEPTED:
                added[entry.name] = added.get(entry.name, 0) + 1
        for name, count in added.items():
            woken(name, count, lowest)
        return verdicts

    return Verb(
        f"select * from submit_2({', '.join(['%s'] * 18)})",
        keys,
        encode,
        decode,
        size=lambda entry: len(entry.new.payload),
        lines=lines,
    )


def claim(
    woken: Woken, lows: Watermarks, undo: Callable[[Sequence[Claiming], Sequence[Granting]], None]
) -> Verb[Claiming, Granting]:
    typical: dict[int, int] = {}  # queue → the size of payload to expect

    def keys(entry: Claiming) -> tuple[Hashable, ...]:
        return () if entry.key is None else (entry.key,)

    def encode(entries: list[Claiming]) -> Sequence[object]:
        groups: dict[Group, list[int]] = {}
        singles = []
        for n, entry in enumerate(entries, 1):
            slots = groups.setdefault(entry.group, [])
            if entry.order.dedupe_key is None:
                slots += [n] * min(entry.order.max_items, MOST_ROWS)
            else:
                singles.append(n)
        lasts: list[int] = []
        slots = []
        for some in groups.values():
            slots += some
            lasts.append(len(slots))
        orders = [entry.order for entry in entries]
        keyed = [entry.key for entry in entries]
        some_key = keyed.count(None) < len(keyed)
        some_lane = any(at is not None for _, at, _ in groups)
        return (
            int4s([queue for queue, _, _ in groups]),
            int4s([1, *(last + 1 for last in lasts[:-1])]),
            int4s(lasts),
            int8s(
                [low for queue, at, _ in groups for low in (lows.start(queue) if at is None else _NO_LOWS)]
            ),
            int4s(slots),
            texts([order.holder for order in orders]),
            int8s([order.lease_ms for order in orders]),
            int4s([min(order.max_bytes, MAX_GRANT_BYTES) for order in orders]),
            int8s(keyed) if some_key else None,
            int8s([order.request_args for order in orders]) if some_key else None,
            int4s(singles) if singles else None,
            int4s([entries[n - 1].queue for n in singles]) if singles else None,
            texts([orders[n - 1].dedupe_key for n in singles]) if singles else None,
            int8s([at for _, at, _ in groups]) if some_lane else None,
            int4s([count for _, _, count in groups]) if some_lane else None,
        )

    def decode(entries: list[Claiming], found: list[Any]) -> list[Granting]:
        groups = list(dict.fromkeys(entry.group for entry in entries))
        grantings = [Granting([]) for _ in entries]
        more: set[Group] = set()
        holes: set[Group] = set()
        afresh: set[Group] = set()
        moving: set[Group] = set()
        moved: dict[int, int] = {}
        stale: dict[Group, Sharding] = {}
        highest: dict[Group, dict[int, int]] = {}
        sizes: dict[int, int] = {}
        now = time.time_ns() // 1_000_000
        for row in found:
            slot, id, token, attempt, count = row[:5]
            if id is None:
                if attempt == -1:
                    grantings[slot - 1].changed = True
                elif attempt == -5:
                    stale[groups[slot - 1]] = Sharding(count, token)
                elif attempt == -6:
                    moved[groups[slot - 1][0]] = count
                else:
                    {-2: more, -3: holes, -4: afresh, -7: moving}[attempt].add(groups[slot - 1])
                continue
            entry = entries[slot - 1]
            grantings[slot - 1].grants.append(rows.grant(row, now))
            if row[7] and entry.order.dedupe_key is None:  # those are taken out of turn
                top = highest.setdefault(entry.group, {})
                top[row[6]] = max(row[7], top.get(row[6], 0))
            sizes[entry.queue] = max(row[13], sizes.get(entry.queue, 0))
        for queue, size in sizes.items():
            typical[queue] = max(size, typical.get(queue, 0) * 7 // 8)
        for group in groups:
            if group[1] is None:
                top = {} if group in holes else highest.get(group, {})
                lows.granted(group[0], top, afresh=group in afresh or group[0] in moved)
        # Others passed over what a budget then left, or what was being moved: they are to look again.
        left: dict[str, tuple[int, int | None]] = {}
        for entry, granting in zip(entries, grantings, strict=True):
            name, group = entry.order.queue, entry.group
            if granting.grants:
                granting.more = group in more
                left[name] = (max(left.get(name, (0, None))[0], int(group in holes)), None)
            elif not granting.changed:
                granting.moving = group in moving
                granting.shards = stale.get(group)
            if entry.queue in moved:
                left[name] = (moved[entry.queue], 0)
        for name, (n, lowest) in left.items():
            woken(name, n, lowest)
        return grantings

    return Verb(
        f"select * from claim_3({', '.join(['%s'] * 15)})",
        keys,
        encode,
        decode,
        undo,
        rows=lambda entry: entry.order.max_items,
        size=lambda entry: min(
            entry.order.max_bytes, entry.order.max_items * typical.get(entry.queue, 1 << 14)
        ),
    )


# --- Ending leases ---

Held = tuple[str, Lease]
Acked = tuple[str, AckOrder]
Failed = tuple[str, FailOrder]


@dataclass(frozen=True, slots=True)
class Canceling:
    """An item to cancel, as far as the scope sees it."""

    id: str
    reason: str
    scope: Scope


def _id(entry: tuple[str, Any]) -> tuple[Hashable, ...]:
    return (entry[1].id,)


def _keyed(entries: Sequence[tuple[str, Any]]) -> object:
    """Those whose token says that they have an ordering key."""
    ids = [order.id for _, order in entries if order.token & 1]
    return uuids(ids) if ids else None


def _leases(entries: Sequence[tuple[str, Any]]) -> tuple[object, ...]:
    return (
        uuids([order.id for _, order in entries]),
        int8s([order.token for _, order in entries]),
        texts([holder for holder, _ in entries]),
    )


def wakes(found: list[Any], woken: Woken) -> list[Any]:
    """Wake what the rows say; the other rows."""
    for row in found:
        if row[0] == 0:
            woken(row[6], row[1], row[4])
    return [row for row in found if row[0]]


def ack(woken: Woken) -> Verb[Acked, LeaseVerdict]:
    def encode(entries: list[Acked]) -> Sequence[object]:
        return (
            *_leases(entries),
            blobs([order.result for _, order in entries]),
            texts([order.content_type for _, order in entries]),
            _keyed(entries),
        )

    def decode(entries: list[Acked], found: list[Any]) -> list[LeaseVerdict]:
        verdicts = [OK] * len(entries)
        for row in wakes(found, woken):
            verdicts[row[0] - 1] = rows.verdict(row)
        return verdicts

    return Verb(
        "select * from ack_1(%s, %s, %s, %s, %s, %s)",
        _id,
        encode,
        decode,
        size=lambda entry: len(entry[1].result),
    )


Renewed = tuple[str, Lease, int | None]


def renew(changed: Callable[[], None]) -> Verb[Renewed, LeaseVerdict]:
    """`changed`: ends of leases, which may have come nearer."""

    def encode(entries: list[Renewed]) -> Sequence[object]:
        return (*_leases([entry[:2] for entry in entries]), int8s([lease_ms for _, _, lease_ms in entries]))

    def decode(entries: list[Renewed], found: list[Any]) -> list[LeaseVerdict]:
        verdicts = [OK] * len(entries)
        changed()
        for row in found:
            verdicts[row[0] - 1] = replace(rows.verdict(row), expires_in_ms=row[4])
        return verdicts

    return Verb("select * from renew_1(%s, %s, %s, %s)", lambda entry: (entry[1].id,), encode, decode)


def fail(woken: Woken) -> Verb[Failed, LeaseVerdict]:
    def encode(entries: list[Failed]) -> Sequence[object]:
        return (
            *_leases(entries),
            texts([order.error for _, order in entries]),
            bools([order.retryable for _, order in entries]),
            int8s([order.retry_after_ms for _, order in entries]),
            _keyed(entries),
        )

    def decode(entries: list[Failed], found: list[Any]) -> list[LeaseVerdict]:
        verdicts = [OK] * len(entries)
        for row in wakes(found, woken):
            verdicts[row[0] - 1] = replace(rows.verdict(row), retry_in_ms=row[4])
        return verdicts

    return Verb("select * from fail_1(%s, %s, %s, %s, %s, %s, %s)", _id, encode, decode)


def release(woken: Woken, *, undo: bool) -> Verb[Held, LeaseVerdict]:
    """`undo`: the grants never arrived; that is forgiven MAX_REFUNDS times an item."""

    def encode(entries: list[Held]) -> Sequence[object]:
        return (*_leases(entries), undo, _keyed(entries))

    def decode(entries: list[Held], found: list[Any]) -> list[LeaseVerdict]:
        verdicts = [OK] * len(entries)
        for row in wakes(found, woken):
            verdicts[row[0] - 1] = rows.verdict(row)
        return verdicts

    return Verb("select * from release_2(%s, %s, %s, %s, %s)", _id, encode, decode)


def release_worker(woken: Woken) -> Verb[tuple[str, str], int]:
    def decode(entries: list[tuple[str, str]], found: list[Any]) -> list[int]:
        return [len(wakes(found, woken))]

    return Verb(
        "select * from release_worker_2(%s, %s)",
        lambda entry: (),
        lambda entries: entries[0],
        decode,
        rows=lambda entry: MOST_ROWS,
    )


def cancel(woken: Woken) -> Verb[Canceling, CancelVerdict]:
    def encode(entries: list[Canceling]) -> Sequence[object]:
        return (
            uuids([entry.id for entry in entries]),
            texts([entry.reason for entry in entries]),
            texts([entry.scope.namespace for entry in entries]),
            texts([entry.scope.submitter for entry in entries]),
            texts([entry.scope.holder for entry in entries]),
        )

    def decode(entries: list[Canceling], found: list[Any]) -> list[CancelVerdict]:
        verdicts = [CancelVerdict(Canceled.NOT_FOUND)] * len(entries)
        for n, status, _, state, *_ in wakes(found, woken):
            verdicts[n - 1] = CancelVerdict(Canceled(status), None if state is None else State(state))
        return verdicts

    return Verb("select * from cancel_1(%s, %s, %s, %s, %s)", lambda entry: (entry.id,), encode, decode)
