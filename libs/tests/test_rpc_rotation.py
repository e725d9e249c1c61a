"""When a process looks at the files of its certificate."""

from __future__ import annotations

import pytest

from libs.rpc.rotation import pace, until_beat


@pytest.mark.parametrize("seconds", [0.02, 1.0, 5.0])
def test_all_that_wait_wake_at_one_moment(seconds):
    moments = {(now + until_beat(now, seconds)) / seconds % 1 for now in (0.0, 7.31, 1234.567, 86400.1)}
    assert max(moments) - min(moments) < 1e-6 or max(moments) - min(moments) > 1 - 1e-6


def test_who_wakes_a_little_early_does_not_wake_again_at_once():
    beat = 100 + until_beat(100.0, 5.0)
    assert until_beat(beat - 0.01, 5.0) == pytest.approx(5.01)
    assert until_beat(beat, 5.0) == pytest.approx(5.0)


def test_agents_look_less_often_than_what_they_stand_on(mesh):
    assert pace(mesh.identity("cp/coordination")) == 1.0
    assert pace(mesh.identity("agent/worker/uid-1")) == 5.0
