from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import loadgen
from loadgen.control import SyncRate, host
from loadgen.ledger import Ledger
from loadgen.report import Report, line_of
from loadgen.row import row_of
from loadgen.summary import write_csv, write_json
from loadgen.tally import Mode, Step, Tally, Violations

DOCS = Path(loadgen.__file__).parents[1] / "docs" / "loadgen.md"
OPEN = Step(Mode.SINGLE, clients=8, connections=2, processes=2, duration=2.0, rate=100)


def tally(**fields):
    it = Tally(Ledger("tag", 0, 36))
    for name, value in fields.items():
        setattr(it, name, value)
    return it


def open_row(corrected=0.2):
    one = tally(cycles=90, arrived=100, backlog=3)
    two = tally(cycles=70, arrived=100, backlog=4, shed=20)
    for each in (one, two):
        for verb in ("start", "submit", "claim", "ack", "cycle"):
            each.latencies[verb].record(corrected)
            each.service[verb].record(0.1)
    return row_of("memory", OPEN, [one, two], [], Violations())


def control():
    check = tally(rpcs=4000)
    check.latencies["check"].record(0.001)
    step = replace(OPEN, mode=Mode.CHECK, rate=0.0)
    return row_of("memory", step, [check], [], Violations())


def written(tmp_path, *rows):
    report = Report(host(), SyncRate(1000, 1, 2), "h2corn", {"seed": 1}, list(rows))
    write_json(report, tmp_path / "out.json")
    write_csv(report, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        return json.loads((tmp_path / "out.json").read_text()), list(csv.DictReader(file))


def test_an_open_loop_has_what_was_offered_done_and_not_begun(tmp_path):
    summary, lines = written(tmp_path, control(), open_row())
    row = summary["rows"][1]
    assert (row["offered_per_second"], row["cycles_per_second"], row["shed_per_second"]) == (100, 80, 10)
    assert (row["most_waiting"], row["kept_up"]) == (7, False)
    assert row["latencies_ms"]["cycle"]["p99"] == pytest.approx(200, rel=0.02)
    assert row["service_ms"]["cycle"]["p99"] == pytest.approx(100, rel=0.02)
    assert row["calls"]["cycle"] == 2
    assert float(lines[1]["cycle_p50_ms"]) == pytest.approx(200, rel=0.02)
    assert float(lines[1]["cycle_service_max_ms"]) == pytest.approx(100, rel=0.02)
    assert lines[1]["kept_up"] == "False"
    assert lines[0]["cycle_p50_ms"] == lines[0]["offered_per_second"] == ""


def test_the_control_figure_has_a_place_of_its_own(tmp_path):
    summary, _ = written(tmp_path, control())
    assert summary["control"]["memory"]["rpcs_per_second"] == 2000
    assert summary["control"]["memory"]["latency_ms"]["max"] == pytest.approx(1, rel=0.02)


def test_every_key_is_documented(tmp_path):
    summary, _ = written(tmp_path, control(), open_row())
    docs = DOCS.read_text()
    keys = {*summary, *summary["host"], *summary["fdatasync"], *summary["control"]["memory"]}
    keys |= {*summary["rows"][0], *summary["rows"][0]["latencies_ms"]["check"]}
    assert {key for key in keys if f"`{key}`" not in docs} == set()


def test_who_does_not_keep_up_is_told_so():
    assert "DID NOT KEEP UP with 100/s" in line_of(open_row())
    kept = replace(open_row(), cycles_per_second=99.5, shed_per_second=0)
    assert "NOT" not in line_of(kept)
    assert "kept up with 100/s" in line_of(kept)


def test_a_wake_is_counted_from_the_sending_and_from_the_answer_of_its_submit():
    step = Step(Mode.WAKE, clients=2, connections=1, processes=2)
    submitter = tally(sent={"a": (1.0, 1.3), "b": (2.0, 2.5), "lost": (3.0, 3.1)}, woken={"a": 1.4})
    other = tally(woken={"b": 2.2, "before the window": 0.1})
    row = row_of("memory", step, [submitter, other], [], Violations())
    assert row.calls == {"wake": 2, "wake_answered": 2}
    assert row.latencies_ms["wake"][0] == pytest.approx(200, rel=0.02)
    assert row.latencies_ms["wake"][-1] == pytest.approx(400, rel=0.02)
    assert row.latencies_ms["wake_answered"][0] < 0.001  # the claim was first
    assert row.latencies_ms["wake_answered"][-1] == pytest.approx(100, rel=0.02)
