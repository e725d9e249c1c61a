from __future__ import annotations

import itertools

import pytest

from loadgen.arrivals import Arrivals, instants


def test_fixed_arrivals_of_two_processes_interleave():
    both = [list(itertools.islice(instants(Arrivals.FIXED, 5, "", phase), 3)) for phase in (0.0, 0.5)]
    assert both == [pytest.approx([0.0, 0.2, 0.4]), pytest.approx([0.1, 0.3, 0.5])]


def test_random_arrivals_have_the_rate_and_are_the_same_for_the_same_seed():
    def draw(seed):
        return list(itertools.islice(instants(Arrivals.POISSON, 200, seed), 20_000))

    one = draw("1/0")
    assert one == draw("1/0") == sorted(one)
    assert one != draw("1/1")
    assert len(one) / one[-1] == pytest.approx(200, rel=0.05)
    gaps = [after - before for before, after in itertools.pairwise(one)]
    assert sum(gap > 1 / 200 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)  # 1/e
