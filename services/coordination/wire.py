"""Between the wire and the domain: checks with field paths on the way in, messages on the way out."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError
from libs.identity import LABEL
from libs.ids import new_id

from .rates import Rates
from .work import (
    DAY_MS,
    MAX_ENTRIES,
    MAX_EPOCH,
    MAX_ERROR,
    MAX_GRANT_BYTES,
    MAX_PAYLOAD,
    MAX_SHARDS,
    MINUTE_MS,
    OK,
    TOP_PRIORITY,
    AckOrder,
    Backoff,
    ClaimOrder,
    DeadCause,
    FailOrder,
    Failure,
    Grant,
    Granted,
    Item,
    ItemFilter,
    Lease,
    LeaseVerdict,
    NewItem,
    OnDeadHead,
    OnExpiry,
    Policy,
    QueueStats,
    Shard,
    Sharding,
    State,
    Submitted,
    SubmitVerdict,
)

_NAMESPACE = re.compile(LABEL)
_QUEUE = re.compile(rf"{LABEL}/[a-z0-9](?:[a-z0-9.-]{{0,198}}[a-z0-9])?")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_LABEL_KEY = re.compile(r"[^=\0]{1,63}")
_AGENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_TOKEN_MAX = (1 << 63) - 1
_LONGEST_MS = 366 * DAY_MS
_DEFAULTS = (Policy(),)

_REPORTED = 20  # violations named in one error

Violations = dict[str, str]


def _refuse(violations: Violations) -> None:
    if violations:
        raise InvalidError(violations=dict(list(violations.items())[:_REPORTED]))


def invalid(field: str, why: str) -> InvalidError:
    """The error for one field."""
    return InvalidError(violations={field: why})


# --- Scalars ---------------------------------------------------------------------------------


def duration_ms(value: Duration) -> int:
    """Milliseconds, rounded up, so that a positive duration is never none."""
    return value.seconds * 1000 + -(-value.nanos // 1_000_000)


def duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def _bounded_ms(message: Message, field: str, path: str, low: int, high: int) -> int | None:
    """The duration in a message's field, None if absent. InvalidError out of [low, high] ms."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    ms = duration_ms(value)
    if not low <= ms <= high or value.seconds < 0 or not 0 <= value.nanos < 1_000_000_000:
        raise invalid(path + field, f"must be a duration of {_human(low)} to {_human(high)}")
    return ms


def _human(ms: int) -> str:
    for unit, size in (("d", DAY_MS), ("h", 60 * MINUTE_MS), ("min", MINUTE_MS), ("s", 1000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


_is_queue = lru_cache(maxsize=4096)(_QUEUE.fullmatch)  # few names, asked with every call


def queue_name(name: str, field: str = "queue") -> str:
    """A checked queue name."""
    if not _is_queue(name):
        raise invalid(
            field,
            "must be namespace/name: the namespace a DNS label, the name 1 to 200 lower-case letters, digits,"
            " dots and dashes, a letter or digit first and last",
        )
    return name


def queue_names(names: Sequence[str], field: str, most: int = MAX_ENTRIES) -> list[str]:
    """Checked queue names, one at least."""
    count(names, field, most)
    names = names[:]  # the cheapest way to a list, here and below
    if not all(map(_is_queue, names)):
        for n, name in enumerate(names):
            queue_name(name, f"{field}[{n}]")
    return list(names)


def namespace_name(name: str, field: str = "namespace") -> str:
    """A checked namespace."""
    if not _NAMESPACE.fullmatch(name):
        raise invalid(field, "must be a DNS label")
    return name


def pod_uid(value: str) -> str:
    """A checked uid of a pod."""
    if not _UID.fullmatch(value):
        raise invalid("pod_uid", "must have 1 to 64 letters, digits and dashes")
    return value


def item_id(value: str, field: str) -> str:
    """A checked item id."""
    if not _ID.fullmatch(value):
        raise invalid(field, "must be a UUID in lower-case text form")
    return value


def text(value: str, field: str, most: int) -> str:
    """A checked string: no NUL, bounded in bytes."""
    if "\0" in value:
        raise invalid(field, "must not contain NUL")
    if len(value.encode()) > most:
        raise invalid(field, f"must have at most {most} bytes")
    return value


def count(entries: Sequence[object], field: str, most: int = MAX_ENTRIES) -> None:
    """Refuse an empty or an overlong list."""
    if not 1 <= len(entries) <= most:
        raise invalid(field, f"must have 1 to {most} entries, has {len(entries)}")


def _within(value: int, field: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise invalid(field, f"must be {low} to {high}")
    return value


def page_size(value: int) -> int:
    return _within(value or 100, "page_size", 1, 1000)


def limit(value: int) -> int:
    return _within(value or 1000, "limit", 1, 1000)


# --- In ----------------------------------------------------------------------------------------


def items_from_pb(items: Sequence[work_pb2.WorkItem], policy: Policy, submitter: str) -> list[NewItem]:
    """Checked items with the queue's defaults filled in. Names every wrong field, up to twenty."""
    count(items, "items")
    violations: Violations = {}
    checked = []
    seen: set[str] = set()
    for n, item in enumerate(items[:]):
        try:
            new = _item_from_pb(item, policy, submitter)
        except InvalidError as error:
            violations |= {f"items[{n}].{field}": why for field, why in error.violations.items()}
            continue
        if new.id in seen:
            violations[f"items[{n}].id"] = "stands twice in this list"
        seen.add(new.id)
        checked.append(new)
    _refuse(violations)
    return checked


def _item_from_pb(item: work_pb2.WorkItem, policy: Policy, submitter: str) -> NewItem:
    payload = item.payload
    if len(payload) > policy.max_payload_bytes:
        raise invalid("payload", f"has {len(payload)} bytes, at most {policy.max_payload_bytes}")
    id = item.id
    content_type = item.content_type
    priority = item.priority
    return NewItem(
        item_id(id, "id") if id else new_id(),
        payload,
        submitter,
        text(content_type, "content_type", 128) if content_type else "",
        _optional(item.dedupe_key, "dedupe_key", 256),
        _within(priority, "priority", 0, TOP_PRIORITY) if priority else 0,
        _bounded_ms(item, "delay", "", 0, 366 * DAY_MS) or 0 if item.HasField("delay") else 0,
        _bounded_ms(item, "expires_in", "", 0, 366 * DAY_MS) or None if item.HasField("expires_in") else None,
        _within(item.max_attempts or policy.max_attempts, "max_attempts", 1, 1000),
        _backoff(item.backoff, "backoff.", policy.backoff) if item.HasField("backoff") else policy.backoff,
        _optional(item.group, "group", 256),
        _optional(item.ordering_key, "ordering_key", 256),
        _optional(item.shard_key, "shard_key", 256),
        labels(item.labels, "labels") if item.labels else {},
        _trace(item.trace_context, "trace_context") if item.trace_context else {},
    )


def _optional(value: str, field: str, most: int) -> str | None:
    return text(value, field, most) if value else None


def labels(given: Mapping[str, str], field: str) -> dict[str, str]:
    """Checked labels."""
    if len(given) > 32:
        raise invalid(field, "must have at most 32 labels")
    for key, value in given.items():
        if not _LABEL_KEY.fullmatch(key) or len(key.encode()) > 63:
            raise invalid(f"{field}[{key[:70]!r}]", "a key must have 1 to 63 bytes, without '=' and NUL")
        text(value, f"{field}[{key!r}]", 255)
    return dict(given)


def _trace(given: Mapping[str, str], field: str) -> dict[str, str]:
    if not given.keys() <= {"traceparent", "tracestate", "baggage"}:
        raise invalid(field, "must have only the keys traceparent, tracestate and baggage")
    return {key: text(value, f"{field}[{key}]", 512) for key, value in given.items()}


def _backoff(given: work_pb2.Backoff, path: str, default: Backoff) -> Backoff:
    initial = _bounded_ms(given, "initial", path, 0, DAY_MS)
    maximum = _bounded_ms(given, "maximum", path, 0, DAY_MS)
    multiplier = given.multiplier or default.multiplier
    if not 1 <= multiplier <= 10:
        raise invalid(path + "multiplier", "must be 1 to 10")
    return Backoff(
        default.initial_ms if initial is None else initial,
        default.maximum_ms if maximum is None else maximum,
        multiplier,
    )


def lease_ms(message: Message, path: str, policies: Sequence[Policy]) -> int | None:
    """The asked lease, None if absent. InvalidError outside the bounds of any of the policies."""
    if not message.HasField("lease"):
        return None
    low, high = 0, _LONGEST_MS
    for policy in policies or _DEFAULTS:
        low = max(low, policy.min_lease_ms)
        high = min(high, policy.max_lease_ms)
    return _bounded_ms(message, "lease", path, low, high)


def claim_from_pb(
    request: pb.ClaimRequest, path: str, holder: str, policies: Sequence[Policy]
) -> list[ClaimOrder]:
    """One order a queue. The caller has checked queue names and rights."""
    queues = request.queues[:]
    if not 1 <= (max_items := request.max_items or 1) <= MAX_ENTRIES:
        raise invalid(path + "max_items", f"must be 1 to {MAX_ENTRIES}")
    if not 1 <= (max_bytes := request.max_bytes or MAX_GRANT_BYTES) <= MAX_GRANT_BYTES:
        raise invalid(path + "max_bytes", f"must be 1 to {MAX_GRANT_BYTES}")
    lease = lease_ms(request, path, policies)
    request_id = _optional(request.request_id, path + "request_id", 64)
    dedupe_key = _optional(request.dedupe_key, path + "dedupe_key", 256)
    if dedupe_key is not None and len(queues) != 1:
        raise invalid(path + "dedupe_key", "needs exactly one queue")
    shard = _shard(request, path) if request.HasField("shard") else None
    args = 0
    if request_id is not None:
        asked: tuple[object, ...] = (queues, max_items, max_bytes, lease, dedupe_key)
        args = zlib.crc32(repr(asked if shard is None else (*asked, shard)).encode())
    return [
        ClaimOrder(queue, holder, max_items, max_bytes, lease, request_id, args, dedupe_key, shard)
        for queue in queues
    ]


def _shard(request: pb.ClaimRequest, path: str) -> Shard:
    if len(request.queues) != 1:
        raise invalid(path + "shard", "needs exactly one queue")
    if request.dedupe_key:
        raise invalid(path + "shard", "cannot stand together with dedupe_key")
    given = request.shard
    count = _within(given.count, path + "shard.count", 1, MAX_SHARDS)
    index = _within(given.index, path + "shard.index", 0, count - 1)
    return Shard(index, count, _within(given.epoch, path + "shard.epoch", 1, MAX_EPOCH))


def wait_ms(request: pb.ClaimRequest, path: str = "") -> int:
    return _bounded_ms(request, "wait", path, 0, MINUTE_MS) or 0


def leases_from_pb(leases: Sequence[work_pb2.Lease]) -> list[Lease]:
    count(leases, "leases")
    return [Lease(*_lease(lease, "leases", n)) for n, lease in enumerate(leases)]


def _lease(lease: work_pb2.Lease | pb.Ack | pb.LeaseFailure, field: str, n: int) -> tuple[str, int]:
    id, token = lease.item_id, lease.token
    if not _ID.fullmatch(id):
        raise invalid(f"{field}[{n}].item_id", "must be a UUID in lower-case text form")
    if not 0 < token <= _TOKEN_MAX:
        raise invalid(f"{field}[{n}].token", "must be positive, as granted")
    return id, token


def acks_from_pb(acks: Sequence[pb.Ack]) -> list[AckOrder]:
    count(acks, "acks")
    orders = []
    is_id = _ID.fullmatch
    for n, ack in enumerate(acks[:]):
        id, token = ack.item_id, ack.token
        if not is_id(id) or not 0 < token <= _TOKEN_MAX:
            _lease(ack, "acks", n)  # says what is wrong
        result = ack.result
        if len(result) > MAX_PAYLOAD:
            raise invalid(f"acks[{n}].result", f"has {len(result)} bytes, at most {MAX_PAYLOAD}")
        content_type = ack.result_content_type
        if content_type:
            text(content_type, f"acks[{n}].result_content_type", 128)
        orders.append(AckOrder(id, token, result, content_type))
    return orders


def failures_from_pb(failures: Sequence[pb.LeaseFailure]) -> list[FailOrder]:
    count(failures, "failures")
    orders = []
    for n, failure in enumerate(failures):
        path = f"failures[{n}]."
        id, token = _lease(failure, "failures", n)
        error = text(failure.error, path + "error", MAX_ERROR)
        retryable = failure.retryable if failure.HasField("retryable") else True
        after = _bounded_ms(failure, "retry_after", path, 0, DAY_MS)
        orders.append(FailOrder(id, token, error, retryable, after))
    return orders


def ids_from_pb(ids: Sequence[str], field: str, most: int = MAX_ENTRIES) -> list[str]:
    count(ids, field, most)
    return [item_id(id, f"{field}[{n}]") for n, id in enumerate(ids)]


def reason(value: str) -> str:
    return text(value, "reason", MAX_ERROR)


def list_filter(request: pb.ListItemsRequest) -> ItemFilter:
    try:
        states = frozenset(State(state) for state in request.states)
    except ValueError:
        raise invalid("states", "must be states of an item") from None
    return ItemFilter(
        states, labels=labels(request.labels, "labels"), group=_optional(request.group, "group", 256)
    )


def dead_filter(given: pb.DeadLetterFilter) -> ItemFilter:
    ids = frozenset(ids_from_pb(given.item_ids, "filter.item_ids")) if given.item_ids else frozenset()
    try:
        cause = DeadCause(given.cause) if given.cause else None
    except ValueError:
        raise invalid("filter.cause", "must be a cause of death") from None
    return ItemFilter(
        frozenset({State.DEAD}),
        ids=ids,
        labels=labels(given.labels, "filter.labels"),
        group=_optional(given.group, "filter.group", 256),
        cause=cause,
    )


_POLICY_DURATIONS: dict[str, tuple[int, int]] = {
    "default_lease": (100, DAY_MS),
    "min_lease": (100, DAY_MS),
    "max_lease": (100, DAY_MS),
    "max_hold": (100, 30 * DAY_MS),
    "dedupe_window": (0, 30 * DAY_MS),
    "settled_retention": (MINUTE_MS, 366 * DAY_MS),
    "dead_retention": (MINUTE_MS, 366 * DAY_MS),
}
_POLICY_NUMBERS: dict[str, tuple[int, int]] = {
    "max_attempts": (1, 1000),
    "max_backlog": (1, 100_000_000),
    "max_payload_bytes": (1, MAX_PAYLOAD),
}


def policy_changes(given: work_pb2.QueuePolicy, current: Policy) -> dict[str, object]:
    """The fields that are present, checked one by one."""
    changes: dict[str, object] = {}
    for field, (low, high) in _POLICY_DURATIONS.items():
        if (ms := _bounded_ms(given, field, "policy.", low, high)) is not None:
            changes[field + "_ms"] = ms
    for field, (low, high) in _POLICY_NUMBERS.items():
        if given.HasField(field):  # type: ignore[arg-type]  # names of optional fields
            changes[field] = _within(getattr(given, field), "policy." + field, low, high)
    if given.HasField("backoff"):
        changes["backoff"] = _backoff(given.backoff, "policy.backoff.", current.backoff)
    try:
        if given.on_expiry:
            changes["on_expiry"] = OnExpiry(given.on_expiry)
        if given.on_dead_head:
            changes["on_dead_head"] = OnDeadHead(given.on_dead_head)
    except ValueError:
        raise invalid("policy", "on_expiry and on_dead_head must be values of their enums") from None
    if given.HasField("agents"):
        names = tuple(given.agents.names)
        if len(names) > 64 or not all(_AGENT.fullmatch(name) for name in names):
            raise invalid("policy.agents", "must be at most 64 names of agents")
        changes["agents"] = names
    if given.HasField("shards"):
        changes["shards"] = Sharding(
            _within(given.shards.count, "policy.shards.count", 0, MAX_SHARDS),
            _within(given.shards.epoch, "policy.shards.epoch", 0, MAX_EPOCH),
        )
    return changes


# --- Out ---------------------------------------------------------------------------------------


def submit_response(verdicts: Sequence[SubmitVerdict]) -> pb.SubmitResponse:
    response = pb.SubmitResponse()
    add = response.verdicts.add
    for verdict in verdicts:
        if verdict.status is Submitted.ACCEPTED:
            add(status=1, item_id=verdict.id)
        else:
            add(
                status=int(verdict.status),
                item_id=verdict.id,
                state=int(verdict.state or 0),
                depth=verdict.depth,
                cap=verdict.cap,
            )
    return response


def claim_response(granted: Granted, waited_ms: int) -> pb.ClaimResponse:
    response = pb.ClaimResponse(more=granted.more)
    if waited_ms:
        response.waited.CopyFrom(duration(waited_ms))
    add = response.grants.add
    for grant in granted.grants:
        _fill_grant(add(), grant)
    return response


def _fill_grant(out: work_pb2.Grant, grant: Grant) -> None:
    out.item_id = grant.id
    out.token = grant.token
    out.queue = grant.queue
    out.attempt = grant.attempt
    out.max_attempts = grant.max_attempts
    ms = grant.expires_in_ms
    expires_in = out.expires_in
    expires_in.seconds = ms // 1000
    expires_in.nanos = ms % 1000 * 1_000_000
    out.payload = grant.payload
    if grant.content_type:
        out.content_type = grant.content_type
    if grant.labels:
        out.labels.update(grant.labels)
    if grant.group:
        out.group = grant.group
    if grant.ordering_key:
        out.ordering_key = grant.ordering_key
    if grant.failures:
        out.failures.extend(_failure_to_pb(failure) for failure in grant.failures)
    if grant.trace:
        out.trace_context.update(grant.trace)


def _failure_to_pb(failure: Failure) -> work_pb2.Failure:
    return work_pb2.Failure(
        attempt=failure.attempt, error=failure.error, holder=failure.holder, ago=duration(failure.ago_ms)
    )


_OK_VERDICT = pb.LeaseVerdict(status=1)  # type: ignore[arg-type]  # copied into each answer


def lease_verdicts(verdicts: Iterable[LeaseVerdict]) -> list[pb.LeaseVerdict]:
    return [_OK_VERDICT if verdict is OK else _lease_verdict(verdict) for verdict in verdicts]


def _lease_verdict(verdict: LeaseVerdict) -> pb.LeaseVerdict:
    out = pb.LeaseVerdict(
        status=int(verdict.status),  # type: ignore[arg-type]
        lost_reason=int(verdict.lost or 0),  # type: ignore[arg-type]
        state=int(verdict.state or 0),  # type: ignore[arg-type]
        cancel_requested=verdict.cancel_requested,
    )
    if verdict.holder is not None:  # the store names one only to those who held the item themselves
        out.holder = verdict.holder
    if verdict.expires_in_ms is not None:
        out.expires_in.CopyFrom(duration(verdict.expires_in_ms))
    if verdict.retry_in_ms is not None:
        out.retry_in.CopyFrom(duration(verdict.retry_in_ms))
    return out


def item_to_pb(item: Item, *, with_result: bool = True) -> work_pb2.Item:
    out = work_pb2.Item(
        id=item.id,
        queue=item.queue,
        state=int(item.state),  # type: ignore[arg-type]
        priority=item.priority,
        attempt=item.attempt,
        max_attempts=item.max_attempts,
        submitter=item.submitter,
        holder=item.holder or "",
        labels=item.labels,
        group=item.group or "",
        dedupe_key=item.dedupe_key or "",
        ordering_key=item.ordering_key or "",
        content_type=item.content_type,
        payload_size=item.payload_size,
        payload=item.payload or b"",
        result=item.result if with_result else b"",
        result_content_type=item.result_content_type,
        failures=[_failure_to_pb(failure) for failure in item.failures],
        age=duration(item.age_ms),
        dead_cause=int(item.dead_cause or 0),  # type: ignore[arg-type]
        cancel_reason=item.cancel_reason or "",
        trace_context=item.trace,
        shard=item.shard,
    )
    for field, ms in (
        ("ready_in", item.ready_in_ms),
        ("lease_expires_in", item.lease_expires_in_ms),
        ("settled_ago", item.settled_ago_ms),
    ):
        if ms is not None:
            getattr(out, field).CopyFrom(duration(ms))
    return out


def policy_to_pb(policy: Policy) -> work_pb2.QueuePolicy:
    return work_pb2.QueuePolicy(
        default_lease=duration(policy.default_lease_ms),
        min_lease=duration(policy.min_lease_ms),
        max_lease=duration(policy.max_lease_ms),
        max_hold=duration(policy.max_hold_ms),
        max_attempts=policy.max_attempts,
        backoff=work_pb2.Backoff(
            initial=duration(policy.backoff.initial_ms),
            maximum=duration(policy.backoff.maximum_ms),
            multiplier=policy.backoff.multiplier,
        ),
        on_expiry=int(policy.on_expiry),  # type: ignore[arg-type]
        on_dead_head=int(policy.on_dead_head),  # type: ignore[arg-type]
        dedupe_window=duration(policy.dedupe_window_ms),
        settled_retention=duration(policy.settled_retention_ms),
        dead_retention=duration(policy.dead_retention_ms),
        max_backlog=policy.max_backlog,
        max_payload_bytes=policy.max_payload_bytes,
        agents=work_pb2.AgentList(names=policy.agents),
        shards=work_pb2.Sharding(count=policy.shards.count, epoch=policy.shards.epoch),
    )


def queue_to_pb(stats: QueueStats, rates: Rates, parked: int) -> work_pb2.Queue:
    out = work_pb2.Queue(
        name=stats.name,
        policy=policy_to_pb(stats.policy),
        paused=stats.paused,
        ready_count=stats.ready,
        delayed_count=stats.delayed,
        blocked_count=stats.blocked,
        leased_count=stats.leased,
        dead_count=stats.dead,
        submitted_total=stats.submitted_total,
        granted_total=stats.granted_total,
        settled_total=stats.settled_total,
        submitted_per_second=rates.submitted,
        granted_per_second=rates.granted,
        settled_per_second=rates.settled,
        parked_claims_count=parked,
    )
    if stats.oldest_ready_age_ms is not None:
        out.oldest_ready_age.CopyFrom(duration(stats.oldest_ready_age_ms))
    return out


def interval_ms(request: pb.WatchQueuesRequest) -> int:
    return _bounded_ms(request, "min_interval", "", 0, MINUTE_MS) or 100
