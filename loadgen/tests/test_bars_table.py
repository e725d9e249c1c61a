from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from loadgen.bars import Judgement
from loadgen.bars_table import Bars
from loadgen.control import Host, SyncRate
from loadgen.states.line import Line, at_most, loss_limit, loss_text

HOST = Host("a CPU", 2, 24_000, "6.0", "3.11", {"agentctl": "0.1.0"}, (0.0, 0.0, 0.0))
MET = Line("batch", "memory", "61,000/s", (Judgement("≥ 60,000/s", True),), cost="9 µs/item", control="5/s")
MISSED = Line("single", "memory", "4,000/s", (Judgement("≥ 4,500/s", False),), Judgement("≥ 9,000/s", False))
WRONG = Line("parked", "postgres", "1 %", (Judgement("≤ 1 %", True),), violations=("one was lost",))
PRINTED = Line("idle", "memory", "0 %", notes=("a note | with a bar",))


def bars(*lines, failures=()):
    return Bars(HOST, SyncRate(1000.0, 1.0, 2.0), lines=list(lines), failures=list(failures))


def on_a_terminal(result):
    output = io.StringIO()
    console = Console(file=output, width=200)
    console.print(result.table())
    return output.getvalue()


@pytest.mark.parametrize(("value", "met"), [(0.9, True), (1.0, True), (1.01, False)])
def test_a_limit_is_kept_up_to_its_value(value, met):
    assert at_most("1 %", value, 1.0) == Judgement("≤ 1 %", met)


def test_a_loss_is_judged_and_a_gain_is_none():
    assert [loss_limit(loss).met for loss in (-0.1, 0.2, 0.21)] == [True, True, False]
    assert [loss_text(loss) for loss in (0.25, -0.1)] == ["25.0% loss", "no loss (10.0% faster)"]


def test_a_line_keeps_its_bar_only_when_its_work_was_right():
    assert [line.met for line in (MET, MISSED, WRONG, PRINTED)] == [True, False, False, None]


def test_a_missed_bar_is_no_error_and_wrong_work_is():
    assert bars(MET, MISSED, PRINTED).verified
    assert not bars(MET, WRONG).verified
    assert not bars(MET, failures=["backlog: it took too long"]).verified
    assert not bars().verified


def test_the_table_has_figure_bar_goal_and_verdicts():
    text = on_a_terminal(bars(MET, MISSED, WRONG, PRINTED))
    for said in (
        "61,000/s",
        "≥ 60,000/s met",
        "≥ 4,500/s missed",
        "≥ 9,000/s missed",
        "NOT VERIFIED",
        "9 µs/item",
    ):
        assert said in text
    assert bars(MET, MISSED, WRONG, PRINTED).summary.startswith("1 of 3 bars met")


def test_the_page_keeps_what_is_around_the_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- agentctl-loadgen bars: begin -->\nold\n<!-- agentctl-loadgen bars: end -->\nafter\n"
    )
    for _ in range(2):  # again and again
        bars(MET, WRONG, PRINTED, failures=["fresh: gone"]).write_markdown(page)
    text = page.read_text()
    assert text.startswith("before\n<!--")
    assert text.endswith("-->\nafter\n")
    assert "old" not in text
    assert text.count("| memory | batch | **61,000/s** | ≥ 60,000/s met |") == 1
    assert "not verified: parked: one was lost" in text
    assert "not measured: fresh: gone" in text
    assert "a note \\| with a bar" in text


def test_without_marks_the_table_is_the_page(tmp_path):
    page = tmp_path / "page.md"
    bars(MET).write_markdown(page)
    assert page.read_text() == bars(MET).markdown()


def test_programs_get_everything(tmp_path):
    bars(MET, WRONG).write_json(tmp_path / "out.json")
    summary = json.loads((tmp_path / "out.json").read_text())
    assert not summary["verified"]
    assert [line["met"] for line in summary["lines"]] == [True, False]
    assert summary["host"]["cpu"] == "a CPU"
