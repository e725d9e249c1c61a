"""Between rows and the domain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from ...work import (
    Backoff,
    DeadCause,
    Failure,
    Grant,
    Held,
    Item,
    LeaseVerdict,
    Lost,
    NewItem,
    OnDeadHead,
    OnExpiry,
    Policy,
    Sharding,
    State,
    item_hash,
)

# What `look` selects of an item, in this order. A settled one has other times and a result. In a shard the
# priority is 16 more.
ITEM_COLUMNS = """
    i.id::text, q.name, i.state, i.priority & 15, i.attempt, i.max_attempts, i.submitter, i.holder,
    i.group_id, i.dedupe_key, i.ordering_key, i.size, i.attributes, i.failures::text, i.cause,
    i.cancel_reason, q.shard_count, ms_1(clock_timestamp() - 'epoch'), ms_1(i.submitted_at - 'epoch')"""
UNSETTLED_COLUMNS = f"""{ITEM_COLUMNS}, ms_1(i.ready_at - 'epoch'), ms_1(i.lease_until - 'epoch'),
    ms_1(i.died_at - 'epoch'), ''::bytea, '', i.ord, 0::int8"""
SETTLED_COLUMNS = f"""{ITEM_COLUMNS}, null::int8, null::int8,
    ms_1(i.settled_at - 'epoch'), i.result, i.result_type, i.ord, i.xid::text::int8"""
LISTED_COLUMNS = SETTLED_COLUMNS.replace("i.result,", "''::bytea,")

_STATES = tuple(State)


def attributes(new: NewItem) -> bytes:
    """What only the service reads of an item, as JSON."""
    if new.labels or new.trace:
        b = new.backoff
        return _encoded(
            new.content_type, new.shard_key, (b.initial_ms, b.maximum_ms, b.multiplier), new.labels, new.trace
        )
    return _plain(new.content_type, new.shard_key, new.backoff)


@lru_cache(4096)
def _plain(content_type: str, shard_key: str | None, b: Backoff) -> bytes:
    return _encoded(content_type, shard_key, (b.initial_ms, b.maximum_ms, b.multiplier), {}, {})


def _encoded(
    content_type: str,
    shard_key: str | None,
    backoff: tuple[int, int, float],
    labels: Mapping[str, str],
    trace: Mapping[str, str],
) -> bytes:
    kept = {"c": content_type, "s": shard_key, "b": backoff, "l": dict(labels), "t": dict(trace)}
    return json.dumps({name: value for name, value in kept.items() if value}, separators=(",", ":")).encode()


@lru_cache(4096)
def _decoded(data: bytes) -> tuple[str, Mapping[str, str], Mapping[str, str], str | None]:
    kept = json.loads(data)
    return kept.get("c", ""), kept.get("l", {}), kept.get("t", {}), kept.get("s")


def failures(text: str | None, now: int) -> tuple[Failure, ...]:
    """A history, `now` in ms of the server's clock."""
    if text is None:
        return ()
    return tuple(Failure(n, error, holder, max(0, now - at)) for n, error, holder, at in json.loads(text))


def grant(row: Any, now: int) -> Grant:
    """A row of `claim_3`."""
    _, id, token, attempt, most, left, _, _, payload, kept, group, ordering, history, _, queue = row
    content_type, labels, trace, _ = _decoded(kept)
    past = failures(history, now)
    return Grant(
        id, token, queue, attempt, most, left, payload, content_type, labels, group, ordering, past, trace
    )


def item(row: Any, payload: bytes | None = None) -> Item:
    """A row of UNSETTLED_COLUMNS or SETTLED_COLUMNS."""
    (
        id, queue, number, priority, attempt, most, submitter, holder, group, dedupe_key, ordering_key, size,
        kept, history, cause, cancel_reason, shards, now, submitted, ready, lease, settled, result,
        result_type, *_,
    ) = row  # fmt: skip
    content_type, labels, trace, shard_key = _decoded(kept)
    state = State(number)
    return Item(
        id=id,
        queue=queue,
        state=state,
        priority=priority,
        attempt=attempt,
        max_attempts=most,
        submitter=submitter,
        holder=holder if state is State.LEASED or state.settled else None,
        labels=labels,
        group=group,
        dedupe_key=dedupe_key,
        ordering_key=ordering_key,
        content_type=content_type,
        payload_size=size,
        payload=payload,
        result=result,
        result_content_type=result_type,
        failures=failures(history, now),
        trace=trace,
        age_ms=now - submitted,
        ready_in_ms=max(0, ready - now) if state is State.DELAYED else None,
        lease_expires_in_ms=max(0, lease - now) if state is State.LEASED and lease is not None else None,
        settled_ago_ms=max(0, now - settled) if settled is not None else None,
        dead_cause=None if cause is None else DeadCause(cause),
        cancel_reason=cancel_reason,
        shard=item_hash(shard_key, dedupe_key, id) % shards if shards else None,
    )


def verdict(row: Any) -> LeaseVerdict:
    """A row of type verdict_1, of a verb that answers leases; `ms` is for the verb to place."""
    _, status, lost, state, _, cancel, who = row
    return LeaseVerdict(
        Held(status),
        None if lost is None else Lost(lost),
        who,
        None if state is None else State(state),
        cancel_requested=cancel,
    )


def policy_text(policy: Policy) -> str:
    """As the queue table keeps it."""
    return json.dumps(asdict(policy))


def policy(text: str) -> Policy:
    """Fields that a newer program added are skipped, missing ones have their default."""
    kept = {f.name: value for f in fields(Policy) if (value := json.loads(text).get(f.name)) is not None}
    made = Policy(**kept)
    return Policy(
        **{
            **kept,
            "backoff": Backoff(**kept["backoff"]) if "backoff" in kept else made.backoff,
            "on_expiry": OnExpiry(made.on_expiry),
            "on_dead_head": OnDeadHead(made.on_dead_head),
            "agents": tuple(made.agents),
            "shards": Sharding(**kept["shards"]) if "shards" in kept else made.shards,
        }
    )
