from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from loadgen.control import SyncRate, host
from loadgen.plot import PlotError, check, draw
from loadgen.report import Report
from loadgen.row import Row
from loadgen.tally import Mode, Step


def row(mode, store="memory", clients=16, rate=0.0):
    verbs = {Mode.WAKE: ("wake", "wake_answered")}.get(mode, ("submit", "claim", "cycle"))
    return Row(
        store=store,
        step=Step(mode, clients=clients, connections=16, processes=2, rate=rate),
        cycles_per_second=10.0 * clients,
        rpcs_per_second=30.0 * clients,
        latencies_ms=dict.fromkeys(verbs, (1, 2, 3, 4, 5)),
        service_ms={"cycle": (1, 1, 1, 1, 1)} if rate else {},
        errors={},
        generator_us_per_rpc=None,
        generator_us_per_cycle=None,
    )


def drawn(tmp_path, *rows):
    path = tmp_path / "out.svg"
    report = Report(host(), SyncRate(1234, 1, 2), "h2corn", {"payload": 128}, [row(Mode.CHECK), *rows])
    draw(report, path)
    return path.read_text()


def test_a_picture_has_a_line_for_each_store_and_mode_and_what_it_was_measured_on(tmp_path):
    picture = drawn(
        tmp_path,
        *(row(Mode.SINGLE, store, clients) for store in ("memory", "postgres") for clients in (1, 256)),
    )
    for text in ("memory single p99", "postgres single p50", "verified cycles/s", "logical clients"):
        assert text in picture
    assert "control: memory 480 health checks/s" in picture
    assert "fdatasync: 1,234/s" in picture
    assert "payload 128" in picture
    assert "Open loop" not in picture
    assert "NOT VERIFIED" not in picture


def test_open_loops_and_wakes_have_panels_of_their_own(tmp_path):
    rows = [row(Mode.SINGLE, rate=rate) for rate in (100, 200)] + [row(Mode.WAKE)]
    picture = drawn(tmp_path, *rows)
    for text in (
        "offered cycles/s",
        "memory single p99 corrected",
        "memory single p99 as sent",
        "parked claims",
    ):
        assert text in picture
    assert "Closed loop" not in picture


def test_figures_that_are_not_verified_are_marked(tmp_path):
    assert "NOT VERIFIED" in drawn(tmp_path, replace(row(Mode.SINGLE), violations=["lost"]))


def test_what_was_not_measured_leaves_a_gap(tmp_path):
    assert "single" in drawn(tmp_path, replace(row(Mode.SINGLE), latencies_ms={}, cycles_per_second=0))


def test_nothing_cannot_be_drawn(tmp_path):
    with pytest.raises(PlotError, match="nothing"):
        drawn(tmp_path)


def test_without_matplotlib_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    check(tmp_path / "out.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match="agentctl\\[load\\]"):
        check(tmp_path / "out.png")
