"""What is kept of runs that have ended."""

from __future__ import annotations

import itertools

import pytest

from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.errors import NotFoundError
from services.bridge.runs import MAX_ENDED, MAX_RESULT_BYTES, Runs


def ended(runs, run_id, result=""):
    entry = runs.begin(run_id, Trigger.MESSAGE, "a question")
    runs.end(entry, Status.COMPLETED, result=result)
    return entry


def test_what_ended_first_is_forgotten_first_however_long_it_took():
    runs = Runs(clock=itertools.count().__next__)
    long = runs.begin("long", Trigger.MESSAGE, "a question")
    for n in range(MAX_ENDED):
        ended(runs, f"short-{n}")
    runs.end(long, Status.COMPLETED, result="at last")
    assert runs.find("long").result == "at last"
    with pytest.raises(NotFoundError):
        runs.find("short-0")
    assert runs.find("short-1")


def test_old_results_make_room_for_new_ones_and_their_runs_are_still_known():
    runs = Runs(clock=itertools.count().__next__)
    entries = [ended(runs, f"r-{n}", "ä" * 1024 * 1024) for n in range(4)]
    assert MAX_RESULT_BYTES == 8 * 1024 * 1024
    assert [bool(each.result) for each in entries] == [False, False, True, True]
    assert runs.find("r-0").status is Status.COMPLETED
