"""The report: small enough always, written where it can be, read if it is one."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contract.report import MAX_BYTES, Report, parse
from libs.contract.run import Run, State, Trigger, Usage, state_of
from libs.contract.statuses import Status

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUN = Run(
    "r-1",
    Trigger.ONCE,
    state=State.FAILED,
    status=Status.TOO_LARGE,
    error="1.2 MiB",
    result="a secret answer",
    usage=Usage(10, 20, 3, 4),
    took=timedelta(seconds=90),
)
REPORT = Report.of(RUN, agent="worker", mode="once", ended_at=NOON)


def test_it_says_what_became_of_the_run():
    assert json.loads(REPORT.encoded()) == {
        "contract_version": "1.1",
        "run_id": "r-1",
        "agent": "worker",
        "mode": "once",
        "status": "too_large",
        "exit_code": 3,
        "intent": "policy",
        "error": "1.2 MiB",
        "usage": {"input_tokens": 10, "output_tokens": 20, "steps": 3, "tool_calls": 4},
        "duration_ms": 90_000,
        "started_at": "2026-01-31T11:58:30Z",
        "ended_at": "2026-01-31T12:00:00Z",
        "has_result": True,
    }


def test_only_of_a_run_that_has_ended():
    with pytest.raises(ValueError, match="has not ended"):
        Report.of(Run("r", Trigger.ONCE), agent="", mode="once", ended_at=NOON)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_makes_a_report_that_is_read_back(status):
    run = replace(RUN, status=status, state=state_of(status))
    report = Report.of(run, agent="a", mode="once", ended_at=NOON)
    assert parse(report.encoded()) == report


@given(st.text() | st.text('\x00\\"é\ud800', min_size=1), st.integers(1, 4000))
def test_it_keeps_to_its_bound_and_cuts_the_error_only(words, times):
    error = words * times
    report = replace(REPORT, error=error)
    data = report.encoded()
    assert len(data) <= MAX_BYTES
    found = parse(data)
    assert found is not None
    assert replace(found, error="") == replace(report, error="")
    assert error.encode("utf-8", "replace").decode().startswith(found.error)


def test_what_cannot_fit_is_refused():
    with pytest.raises(ValueError, match="at most 4096"):
        replace(REPORT, run_id="x" * 5000).encoded()


# --- Where it is written ---


def test_it_replaces_what_was_there_and_leaves_nothing_beside_it(tmp_path):
    file = tmp_path / "report.json"
    file.write_text("older and much longer" * 1000)
    REPORT.write(file)
    assert parse(file.read_bytes()) == REPORT
    assert list(tmp_path.iterdir()) == [file]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_reader_that_has_the_old_file_open_sees_no_half_of_the_new(tmp_path):
    file = tmp_path / "report.json"
    file.write_text("older")
    with file.open() as held:
        REPORT.write(file)
        assert held.read() == "older"


def test_a_link_is_followed_and_stays_one(tmp_path):
    file, link = tmp_path / "target", tmp_path / "link"
    file.write_text("older and much longer" * 1000)
    link.symlink_to(file)
    REPORT.write(link)
    assert link.is_symlink()
    assert parse(file.read_bytes()) == REPORT


def test_a_pipe_gets_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        REPORT.write(pipe)
        assert parse(os.read(reader, MAX_BYTES)) == REPORT
    finally:
        os.close(reader)


def test_it_is_written_in_place_where_nothing_can_be_moved_over_it(tmp_path, monkeypatch):
    """As with /dev/termination-log, which is a mount: EBUSY."""
    file = tmp_path / "report.json"
    file.write_text("older and much longer" * 1000)
    held = file.stat().st_ino

    def busy(*names):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    REPORT.write(file)
    assert parse(file.read_bytes()) == REPORT
    assert file.stat().st_ino == held
    assert list(tmp_path.iterdir()) == [file]


def test_where_it_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        REPORT.write(tmp_path / "missing" / "report.json")


# --- What is read ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "panic: something",
        "[]",
        "{}",
        b"\xff\xfe",
        "[" * 4000,
        '{"run_id": "r", "status": "completed", "contract_version": "1.0"}',
        '{"run_id": "r", "status": "completed", "exit_code": 0}',
        '{"run_id": "r", "status": "completed", "exit_code": "0", "contract_version": "1.0"}',
        '{"run_id": "r", "status": "completed", "exit_code": 0, "contract_version": "2.0"}',
        REPORT.encoded()[:-10],
    ],
)
def test_what_is_no_report_of_ours_is_none(text):
    assert parse(text) is None


def test_a_newer_minor_is_understood():
    fields = {"run_id": "r", "status": "bored", "exit_code": 42, "contract_version": "1.7", "mood": "low"}
    report = parse(json.dumps(fields))
    assert report is not None
    assert (report.run_id, report.status, report.exit_code) == ("r", "bored", 42)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    parse(text)
