"""Between the wire and the domain: durations, defaults, and what a violation says."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError

from .. import wire
from ..work import OK, Backoff, Held, LeaseVerdict, Lost, OnExpiry, Policy, Shard, Sharding, State, amend

WORKER = "spiffe://test.example/ns/team/agent/writer/pod/writer-0/uid"


@given(st.integers(0, 366 * 24 * 3600 * 1000))
def test_a_duration_comes_back_as_it_was(ms):
    assert wire.duration_ms(wire.duration(ms)) == ms


def test_a_positive_duration_is_never_rounded_to_none():
    assert wire.duration_ms(Duration(nanos=1)) == 1
    assert wire.duration_ms(Duration(seconds=1, nanos=1)) == 1001


def test_an_item_gets_the_queues_defaults():
    policy = Policy(max_attempts=3, backoff=Backoff(5, 50, 3.0))
    (item,) = wire.items_from_pb([work_pb2.WorkItem(payload=b"x")], policy, WORKER)
    assert (item.max_attempts, item.backoff, item.submitter) == (3, policy.backoff, WORKER)
    assert (item.dedupe_key, item.group, item.ordering_key, item.expires_in_ms) == (None, None, None, None)
    assert len(item.id) == 36


def test_an_items_backoff_takes_what_it_lacks_from_the_queue():
    given_ = work_pb2.WorkItem(backoff=work_pb2.Backoff(maximum=Duration(seconds=9)))
    (item,) = wire.items_from_pb([given_], Policy(backoff=Backoff(5, 50, 3.0)), WORKER)
    assert item.backoff == Backoff(5, 9000, 3.0)


def test_a_violation_says_what_is_allowed_in_words():
    with pytest.raises(InvalidError) as raised:
        wire.items_from_pb([work_pb2.WorkItem(delay=Duration(seconds=-1))], Policy(), WORKER)
    assert raised.value.violations == {"items[0].delay": "must be a duration of 0 ms to 366 d"}


def test_a_thousand_violations_are_not_all_named():
    with pytest.raises(InvalidError) as raised:
        wire.items_from_pb([work_pb2.WorkItem(priority=99)] * 1000, Policy(), WORKER)
    assert len(raised.value.violations) == 20


def test_a_claim_is_one_order_per_queue_with_one_checksum_of_its_arguments():
    def orders(**changes):
        asked = {"queues": ["a/a", "a/b"], "request_id": "r", **changes}
        return wire.claim_from_pb(pb.ClaimRequest(**asked), "", WORKER, [Policy()])

    first, second = orders()
    assert (first.queue, second.queue, first.max_items, first.lease_ms) == ("a/a", "a/b", 1, None)
    assert first.request_args == second.request_args == orders()[0].request_args
    one: dict[str, Any] = {"queues": ["a/a"]}
    shards: list[dict[str, Any]] = [
        {**one, "shard": work_pb2.Shard(index=n, count=2, epoch=1)} for n in range(2)
    ]
    for changed in ({"max_items": 2}, {"max_bytes": 5}, one, *shards, {"lease": Duration(seconds=9)}):
        assert orders(**changed)[0].request_args != first.request_args
    assert len({orders(**changed)[0].request_args for changed in (one, *shards)}) == 3
    assert orders(wait=Duration(seconds=9))[0].request_args == first.request_args  # how long is no matter


def test_a_lease_must_be_within_the_bounds_of_every_queue():
    request = pb.ClaimRequest(queues=["a/a"], lease=Duration(seconds=20))
    strict = Policy(max_lease_ms=10_000, default_lease_ms=5000)
    assert wire.lease_ms(request, "", [Policy()]) == 20_000
    with pytest.raises(InvalidError, match="1 s to 10 s"):
        wire.lease_ms(request, "", [Policy(), strict])


def test_a_policy_comes_back_as_it_was():
    policy = Policy(
        default_lease_ms=7000, backoff=Backoff(1, 2, 1.5), on_expiry=OnExpiry.DEAD, agents=("a", "b"),
        shards=Sharding(3, 1),
    )  # fmt: skip
    changes = wire.policy_changes(wire.policy_to_pb(policy), Policy())
    assert amend(Policy(shards=policy.shards), changes) == policy


def test_absent_fields_of_a_policy_change_nothing():
    assert wire.policy_changes(work_pb2.QueuePolicy(), Policy()) == {}
    changes = wire.policy_changes(work_pb2.QueuePolicy(agents=work_pb2.AgentList()), Policy(agents=("a",)))
    assert changes == {"agents": ()}


def test_a_claim_of_a_shard_says_which():
    request = pb.ClaimRequest(queues=["a/a"], shard=work_pb2.Shard(index=1023, count=1024, epoch=1 << 40))
    (order,) = wire.claim_from_pb(request, "", WORKER, [])
    assert order.shard == Shard(1023, 1024, 1 << 40)
    request.ClearField("shard")
    assert wire.claim_from_pb(request, "", WORKER, [])[0].shard is None


def test_the_epoch_of_a_policy_says_which_shards_the_change_is_for():
    given_ = work_pb2.QueuePolicy(shards=work_pb2.Sharding(count=2, epoch=4))
    assert wire.policy_changes(given_, Policy()) == {"shards": Sharding(2, 4)}


def test_a_name_of_a_queue_may_be_more_than_dns_labels_and_is_told_so():
    assert wire.queue_name("demo/a..b.-c") == "demo/a..b.-c"
    for name in ("demo/A", "demo/.a", f"demo/{'a' * 201}"):
        with pytest.raises(InvalidError, match="1 to 200 lower-case letters, digits, dots and dashes"):
            wire.queue_name(name)


def test_verdicts_say_what_they_know_and_no_more():
    regranted = LeaseVerdict(Held.LOST, Lost.REGRANTED, WORKER)
    dead = LeaseVerdict(Held.OK, state=State.DEAD)
    later = LeaseVerdict(Held.OK, retry_in_ms=1500)
    renewed = LeaseVerdict(Held.OK, expires_in_ms=0, cancel_requested=True)
    assert wire.lease_verdicts([OK, regranted, dead, later, renewed]) == [
        pb.LeaseVerdict(status=pb.LEASE_STATUS_OK),
        pb.LeaseVerdict(status=pb.LEASE_STATUS_LOST, lost_reason=pb.LOST_REASON_REGRANTED, holder=WORKER),
        pb.LeaseVerdict(status=pb.LEASE_STATUS_OK, state=work_pb2.WORK_STATE_DEAD),
        pb.LeaseVerdict(status=pb.LEASE_STATUS_OK, retry_in=Duration(seconds=1, nanos=500_000_000)),
        pb.LeaseVerdict(status=pb.LEASE_STATUS_OK, expires_in=Duration(), cancel_requested=True),
    ]
