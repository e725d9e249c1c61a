"""How many replicas there are to be: the arithmetic, second by second."""

from __future__ import annotations

import pytest

from services.plane.autoscaling.hpa import Decisions, Policy, replicas_for

POLICY = Policy(minimum=0, maximum=10, cooldown=5, window=5)


@pytest.mark.parametrize(
    ("metrics", "replicas"),
    [
        ([], 0),
        ([(0, 4)], 0),
        ([(1, 4)], 1),
        ([(4, 4)], 1),
        ([(4.1, 4)], 2),
        ([(5, 4)], 2),
        ([(21, 2)], 11),
        ([(41, 4)], 11),  # of 10 replicas, which the HPA's tolerance would leave
        ([(4, 4), (90, 30)], 3),
        ([(40, 4), (90, 30)], 10),
        ([(-5, 4)], 0),
        ([(3, 0.5)], 6),
        ([(1e9, 0.001)], 10**12),
    ],
)
def test_the_largest_number_that_a_metric_needs_counts(metrics, replicas):
    assert replicas_for(metrics) == replicas


@pytest.mark.parametrize(
    ("minimum", "maximum", "is_active", "needed", "replicas"),
    [
        (0, 10, False, 0, 0),
        (0, 10, True, 0, 1),
        (0, 10, True, 7, 7),
        (0, 10, True, 11, 10),
        (2, 10, False, 0, 2),
        (2, 10, True, 1, 2),
        (2, 2, True, 9, 2),
        (0, 0, True, 9, 0),
    ],
)
def test_replicas_stay_between_the_bounds(minimum, maximum, is_active, needed, replicas):
    policy = Policy(minimum=minimum, maximum=maximum, cooldown=5, window=5)
    assert Decisions(policy, 0, 0).known(0, 0, is_active, needed) == replicas


def played(decisions, replicas, needs, start=0):
    """Replicas after each second in which so many are needed; None: not known."""
    seen = []
    for now, needed in enumerate(needs, start):
        if needed is None:
            replicas = decisions.unknown(now, replicas)
        else:
            replicas = decisions.known(now, replicas, needed > 0, needed)
        seen.append(replicas)
    return seen


def test_they_grow_at_once_and_shrink_when_less_was_needed_for_the_whole_window():
    seen = played(Decisions(POLICY, 0, 0), 0, [1, 8, 3, 3, 6, 2, 2, 2, 2, 2])
    assert seen == [1, 8, 8, 8, 8, 8, 6, 6, 6, 2]


def test_there_are_none_when_nothing_was_active_for_the_cooldown():
    policy = Policy(minimum=0, maximum=10, cooldown=5, window=2)
    assert played(Decisions(policy, 0, 0), 0, [4, 0, 0, 0, 0, 0, 0]) == [4, 4, 1, 1, 1, 0, 0]


def test_one_that_is_active_again_keeps_them():
    assert played(Decisions(POLICY, 0, 0), 0, [4, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0])[:10] == [4] * 10


def test_a_cooldown_of_nothing_is_none():
    policy = Policy(minimum=0, maximum=10, cooldown=0, window=0)
    assert played(Decisions(policy, 0, 0), 0, [4, 2, 0, 3]) == [4, 2, 0, 3]


def test_who_comes_anew_shrinks_nothing_before_a_window_has_passed():
    assert played(Decisions(POLICY, 0, 7), 7, [0, 0, 0, 0, 0, 0]) == [7, 7, 7, 7, 7, 0]
    assert played(Decisions(POLICY, 0, 7), 7, [2, 2, 2, 2, 2, 2]) == [7, 7, 7, 7, 7, 2]


def test_while_nothing_is_known_they_stay_and_that_time_counts_for_nothing():
    decisions = Decisions(POLICY, 0, 0)
    assert played(decisions, 0, [4, 0, 0] + [None] * 20) == [4] * 23
    assert played(decisions, 4, [0] * 6, start=23) == [4, 4, 4, 4, 0, 0]


def test_none_stay_none_while_nothing_is_known():
    assert played(Decisions(POLICY, 0, 0), 0, [None] * 9) == [0] * 9


def test_after_enough_failures_in_a_row_the_fallback_counts():
    policy = Policy(minimum=0, maximum=10, cooldown=5, window=3, fallback=3, threshold=3)
    assert played(Decisions(policy, 0, 0), 0, [None, None, 0, None, None, None, None]) == [0] * 5 + [3] * 2
    decisions = Decisions(policy, 0, 6)
    assert played(decisions, 6, [None] * 6) == [6] * 6  # what runs holds
    assert decisions.falls_back
    decisions.known(6, 3, True, 3)
    assert not decisions.falls_back


def test_bounds_that_were_moved_count_at_once():
    assert played(Decisions(Policy(minimum=0, maximum=4, cooldown=5, window=5), 0, 9), 9, [9]) == [4]
    assert played(Decisions(Policy(minimum=3, maximum=4, cooldown=5, window=5), 0, 0), 0, [0]) == [3]
