"""The domain: arithmetic of attempts, policies that hold together, and who sees what."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.errors import PreconditionError, StaleShardError

from ..work import Backoff, OnExpiry, Policy, Scope, Shard, Sharding, State, amend, item_hash, shard_hash

DAY_MS = 24 * 3600 * 1000

backoffs = st.builds(
    Backoff,
    initial_ms=st.integers(0, DAY_MS),
    maximum_ms=st.integers(0, DAY_MS),
    multiplier=st.floats(1, 10),
)


class Fixed(random.Random):
    """Always the same chance."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def random(self) -> float:
        return self.chance


def test_backoff_grows_by_its_multiplier_up_to_its_maximum():
    backoff = Backoff(initial_ms=1000, maximum_ms=5000, multiplier=2)
    assert [backoff.delay_ms(n, Fixed(0)) for n in (1, 2, 3, 4, 5)] == [1000, 2000, 4000, 5000, 5000]


def test_backoff_is_less_a_random_fifth():
    backoff = Backoff(initial_ms=1000, maximum_ms=5000)
    waits = {backoff.delay_ms(1, random.Random(seed)) for seed in range(200)}
    assert 800 <= min(waits) < 830
    assert 970 < max(waits) <= 1000


@given(backoff=backoffs, attempt=st.integers(1, 1000), chance=st.floats(0, 1, exclude_max=True))
def test_backoff_stays_within_its_bounds_for_every_attempt(backoff, attempt, chance):
    wait = backoff.delay_ms(attempt, Fixed(chance))
    assert 0 <= wait <= backoff.maximum_ms
    assert wait >= int(0.8 * min(backoff.initial_ms, backoff.maximum_ms))


@given(backoff=backoffs, attempt=st.integers(1, 999))
def test_backoff_never_shrinks(backoff, attempt):
    assert backoff.delay_ms(attempt, Fixed(0)) <= backoff.delay_ms(attempt + 1, Fixed(0))


def test_amend_changes_only_the_fields_named():
    policy = amend(Policy(), {"max_attempts": 9, "on_expiry": OnExpiry.DEAD})
    assert policy == Policy(max_attempts=9, on_expiry=OnExpiry.DEAD)
    assert amend(policy, {}) == policy


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"default_lease_ms": 999}, "default_lease"),
        ({"default_lease_ms": 3_600_001}, "default_lease"),
        ({"min_lease_ms": 30_001}, "default_lease"),
        ({"max_lease_ms": 29_999}, "default_lease"),
        ({"min_lease_ms": 5000, "max_lease_ms": 4000}, "default_lease"),
        ({"max_hold_ms": 999}, "max_hold"),
    ],
)
def test_amend_refuses_bounds_that_contradict_each_other(changes, field):
    with pytest.raises(ValueError, match=f"^{field}: must be"):
        amend(Policy(), changes)


def test_amend_takes_bounds_that_just_hold():
    narrow = Policy(min_lease_ms=5, default_lease_ms=5, max_lease_ms=5, max_hold_ms=5)
    same = {"min_lease_ms": 5, "default_lease_ms": 5, "max_lease_ms": 5, "max_hold_ms": 5}
    assert amend(Policy(), same) == narrow


@pytest.mark.parametrize(
    ("scope", "seen"),
    [
        (Scope(), True),
        (Scope("team"), True),
        (Scope("tea"), False),
        (Scope("team2"), False),
        (Scope("team", submitter="s"), True),
        (Scope("team", submitter="x"), False),
        (Scope("team", holder="h"), True),
        (Scope("team", holder="x"), False),
        (Scope("team", submitter="x", holder="h"), True),
        (Scope("team", submitter="s", holder="x"), True),
        (Scope("team", submitter="h", holder="s"), False),
        (Scope("other", submitter="s", holder="h"), False),
        (Scope(None, submitter="s"), True),
    ],
)
def test_scope_sees_its_namespace_and_there_what_one_submitted_or_holds(scope, seen):
    assert scope.sees("team/work", "s", "h") is seen


def test_scope_of_a_holder_does_not_see_what_nobody_holds():
    assert not Scope("team", holder="h").sees("team/work", "s", None)
    assert not Scope("team", submitter="x").sees("team/work", "s", None)


def test_settled_states_are_those_that_have_a_result():
    assert {state for state in State if state.settled} == {State.SUCCEEDED, State.DEAD, State.CANCELED}


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"", 0xCBF29CE484222325), (b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)],
)
def test_the_hash_of_a_shard_key_is_fnv_1a(key, hashed):
    assert shard_hash(key) == hashed


def test_the_shard_key_goes_before_the_dedupe_key_and_that_before_the_id():
    assert item_hash("a", "b", "c") == shard_hash(b"a")
    assert item_hash(None, "b", "c") == shard_hash(b"b")
    assert item_hash(None, None, "c") == shard_hash(b"c")


@given(st.lists(st.integers(0, 4), max_size=20))
def test_no_epoch_is_used_for_two_counts(counts):
    policy = Policy()
    used = {policy.shards.epoch: 0}
    for count in counts:
        policy = amend(policy, {"shards": Sharding(count)})
        assert policy.shards.count == count
        assert used.setdefault(policy.shards.epoch, count) == count
        assert policy.shards.epoch == max(used)


def test_a_change_for_another_epoch_is_stale_unless_nothing_changes():
    policy = Policy(shards=Sharding(2, 4))
    for epoch in (0, 4):
        assert amend(policy, {"shards": Sharding(3, epoch)}).shards == Sharding(3, 5)
    with pytest.raises(StaleShardError, match="2 shards, epoch 4"):
        amend(policy, {"shards": Sharding(3, 5)})
    assert amend(policy, {"shards": Sharding(2, 3)}).shards == Sharding(2, 4)


def test_a_shard_fits_only_the_count_and_the_epoch_that_it_names():
    now = Sharding(3, 7)
    now.check("team/work", Shard(2, 3, 7))
    Sharding(0, 8).check("team/work", None)
    for sharding, shard, reason in (
        (now, Shard(0, 3, 6), "STALE_SHARD"),
        (now, Shard(0, 2, 7), "STALE_SHARD"),
        (now, None, "SHARD_REQUIRED"),
        (Sharding(0, 8), Shard(0, 3, 8), "STALE_SHARD"),
    ):
        with pytest.raises(
            PreconditionError, match=f"queue team/work has {sharding.count} shards, epoch"
        ) as raised:
            sharding.check("team/work", shard)
        assert raised.value.reason == reason
