from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ..output import FailedError
from ..processes import Record, Recorded, alone, end, left_over, started
from ..state import State


@pytest.fixture
def sleeper():
    """A child of ours that ignores SIGTERM."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    script = deaf + "print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_only_one_may_hold_the_folder(tmp_path):
    state = State(tmp_path)
    with alone(state), pytest.raises(FailedError, match=rf"pid {os.getpid()}.*--state-dir"), alone(state):
        pass
    with alone(state):
        assert state.lock.read_text() == f"{os.getpid()}\n"


def test_a_folder_that_is_open_to_others_is_refused(tmp_path):
    state = State(tmp_path / "state")
    state.prepare()
    assert state.folder.stat().st_mode & 0o777 == (0o700 if os.geteuid() else 0o711)
    state.logs.chmod(0o750)
    with pytest.raises(FailedError, match=rf"chmod 700 {state.logs}"):
        state.prepare()
    state.logs.chmod(0o700)
    state.folder.chmod(0o770)
    with pytest.raises(FailedError, match=rf"chmod 700 {state.folder}"):
        state.prepare()


async def test_what_was_recorded_and_still_runs_is_ended(tmp_path, sleeper):
    Record(tmp_path / "children.json").add("a", sleeper.pid, "uid")
    [found] = left_over(tmp_path / "children.json")
    assert found == Recorded("a", sleeper.pid, started(sleeper.pid) or "", "uid")
    await end(found, 0.2)
    assert sleeper.wait() == -signal.SIGKILL
    assert left_over(tmp_path / "children.json") == []


def test_a_later_process_with_the_pid_is_not_ours(tmp_path, sleeper):
    record = tmp_path / "children.json"
    Record(record).add("a", sleeper.pid, "")
    record.write_text(record.read_text().replace(started(sleeper.pid) or "", "another time"))
    assert left_over(record) == []
    assert sleeper.poll() is None


def test_a_record_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "children.json").write_text('["x"]')
    with pytest.raises(FailedError, match="remove it"):
        left_over(tmp_path / "children.json")
    assert left_over(tmp_path / "none.json") == []
