"""Why something is not delivered, in order of importance."""

from __future__ import annotations

from typing import Any

import pytest

from ..explain import Refused, obstacles
from ..rates import RateMeter, Rates
from ..work import DeadCause, Item, Policy, QueueStats, Shard, Sharding, State

HEAD = "0190c42e-0000-7000-8000-000000000001"


def queue(**changes: Any) -> QueueStats:
    return QueueStats(**{"name": "demo/docs", "policy": Policy(), **changes})


def item(state: State, **changes: Any) -> Item:
    plain: dict[str, Any] = {
        "id": HEAD, "queue": "demo/docs", "priority": 0, "attempt": 1, "max_attempts": 5, "submitter": "s",
        "holder": None, "labels": {}, "group": None, "dedupe_key": None, "ordering_key": "k",
        "content_type": "", "payload_size": 0, "payload": None, "result": b"", "result_content_type": "",
        "failures": (), "trace": {}, "age_ms": 0,
    }  # fmt: skip
    return Item(**{**plain, "state": state, **changes})


@pytest.mark.parametrize(
    ("stats", "parked", "codes"),
    [
        (queue(), 0, ["EMPTY"]),
        (queue(), 3, ["EMPTY"]),
        (queue(paused=True), 0, ["PAUSED", "EMPTY"]),
        (queue(delayed=2), 1, ["NOTHING_READY"]),
        (queue(leased=2, dead=1), 1, ["NOTHING_READY"]),
        (queue(ready=1), 0, ["NO_WORKER_POLLING"]),
        (queue(ready=1, paused=True), 0, ["PAUSED", "NO_WORKER_POLLING"]),
        (queue(ready=1), 1, []),
    ],
)
def test_of_a_queue(stats, parked, codes):
    assert [code for code, _ in obstacles(stats, None, None, parked)] == codes


@pytest.mark.parametrize(
    ("it", "ahead", "codes", "words"),
    [
        (item(State.READY), None, ["NO_WORKER_POLLING"], "are workers running"),
        (item(State.DELAYED, ready_in_ms=2500), None, ["DELAYED", "NO_WORKER_POLLING"], "ready in 2.5 s"),
        (item(State.BLOCKED), (HEAD, State.LEASED), ["ORDERING_KEY_BUSY", "NO_WORKER_POLLING"], "(LEASED)"),
        (item(State.BLOCKED), None, ["ORDERING_KEY_BUSY", "NO_WORKER_POLLING"], "another item"),
        (item(State.BLOCKED), (HEAD, State.DEAD), ["ORDERING_KEY_HALTED", "NO_WORKER_POLLING"], HEAD),
        (item(State.LEASED, holder="pod", lease_expires_in_ms=900), None, ["LEASED"], "pod holds it"),
        (item(State.SUCCEEDED), None, ["SETTLED"], "SUCCEEDED"),
        (item(State.CANCELED), None, ["SETTLED"], "CANCELED"),
        (item(State.DEAD, dead_cause=DeadCause.EXPIRED), None, ["DEAD"], "cause EXPIRED"),
    ],
)  # fmt: skip
def test_of_an_item(it, ahead, codes, words):
    found = obstacles(queue(ready=1), it, ahead, 0)
    assert [code for code, _ in found] == codes
    assert words in found[0][1]


def test_a_pause_is_told_after_the_items_own_obstacle():
    found = obstacles(queue(ready=1, paused=True), item(State.DELAYED, ready_in_ms=1), None, 1)
    assert [code for code, _ in found] == ["DELAYED", "PAUSED"]


def test_rates_are_over_about_ten_seconds():
    meter = RateMeter()
    assert meter.observe(queue(submitted_total=1000), 0.0) == Rates()
    assert meter.observe(queue(submitted_total=1100), 0.5) == Rates()  # too soon to tell
    assert meter.observe(queue(submitted_total=1200, granted_total=10), 2.0) == Rates(100.0, 5.0, 0.0)
    for second in range(3, 31):
        rates = meter.observe(
            queue(submitted_total=1200 + 50 * (second - 2), granted_total=10), float(second)
        )
    assert rates.submitted == pytest.approx(50)
    assert rates.granted == 0


def test_totals_that_fell_give_no_negative_rate():
    meter = RateMeter()
    meter.observe(queue(settled_total=10), 0.0)
    assert meter.observe(queue(settled_total=5), 5.0).settled == 0  # a redrive takes settles back


@pytest.mark.parametrize(
    ("sharding", "shard", "ago", "parked", "codes"),
    [
        (Sharding(3, 7), Shard(0, 2, 6), 59.0, 0, ["CLAIMS_REFUSED"]),
        (Sharding(3, 7), Shard(0, 2, 6), 61.0, 0, ["NO_WORKER_POLLING"]),
        (Sharding(3, 7), None, 1.0, 2, ["CLAIMS_REFUSED"]),
        (Sharding(0, 8), Shard(0, 3, 7), 1.0, 1, ["CLAIMS_REFUSED"]),
        (Sharding(3, 7), Shard(0, 3, 7), 1.0, 0, ["NO_WORKER_POLLING"]),  # right again
    ],
)
def test_of_a_queue_whose_claims_are_refused(sharding, shard, ago, parked, codes):
    stats = queue(ready=1, policy=Policy(shards=sharding))
    found = obstacles(stats, None, None, parked, refused=Refused(shard, ago))
    assert [code for code, _ in found] == codes
    assert all(f"has {sharding}" in words for code, words in found if code == "CLAIMS_REFUSED")


def test_an_item_that_is_held_or_done_minds_no_refused_claims():
    stats = queue(policy=Policy(shards=Sharding(3, 7)))
    for state, codes in (
        (State.DELAYED, ["DELAYED", "CLAIMS_REFUSED"]),
        (State.LEASED, ["LEASED"]),
        (State.SUCCEEDED, ["SETTLED"]),
    ):
        found = obstacles(stats, item(state), None, 0, refused=Refused(None, 1.0))
        assert [code for code, _ in found] == codes


@pytest.mark.parametrize(
    ("state", "shard", "parked", "codes"),
    [
        (State.READY, 2, {0, 1}, ["SHARD_IDLE"]),
        (State.READY, 2, set(), ["SHARD_IDLE"]),
        (State.READY, 2, {2}, []),
        (State.READY, None, set(), ["NO_WORKER_POLLING"]),
        (State.DELAYED, 2, {0}, ["DELAYED"]),
    ],
)
def test_of_an_item_in_a_shard(state, shard, parked, codes):
    found = obstacles(queue(ready=1), item(state, shard=shard), None, len(parked), parked)
    assert [code for code, _ in found] == codes
    assert all("shard 2 is parked at this replica" in words for code, words in found if code == "SHARD_IDLE")
