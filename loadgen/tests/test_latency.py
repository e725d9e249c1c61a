from __future__ import annotations

import random

import pytest

from loadgen.latency import Histogram


def test_percentiles_are_within_two_percent_above_the_exact_ones():
    rng = random.Random(7)
    durations = [rng.lognormvariate(-6, 1.5) for _ in range(20_000)]
    histogram = Histogram()
    for duration in durations:
        histogram.record(duration)
    exact = sorted(durations)
    for percent in (1, 50, 90, 99, 99.9):
        rank = exact[max(int(len(exact) * percent / 100) - 1, 0)]
        assert rank <= (histogram.percentile(percent) or 0) <= rank * 1.02


def test_merging_is_recording_into_one():
    one, two, both = Histogram(), Histogram(), Histogram()
    for index in range(1000):
        (one if index % 3 else two).record(index / 1000)
        both.record(index / 1000)
    one.merge(two)
    assert one == both
    assert one.total == 1000


def test_an_empty_histogram_has_no_percentiles():
    assert Histogram().percentile(50) is None


@pytest.mark.parametrize("seconds", [0, 1e-9, 1e-7, 1e-3, 30, 3600, 1e6])
def test_no_duration_is_lost(seconds):
    histogram = Histogram()
    histogram.record(seconds)
    assert histogram.total == 1
    assert histogram.percentile(100)
