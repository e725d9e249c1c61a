"""What idle agents take, of real ones; that the looks at them see what they are to see."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from loadgen.agents.command import measure
from loadgen.agents.crew import Mode, crew
from loadgen.processes import activity

pytestmark = pytest.mark.processes


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="agentctl-agents-") as path:
        yield Path(path)


@pytest.mark.parametrize("mode", Mode)
def test_an_idle_agent_is_watched_and_does_next_to_nothing(mode, folder):
    found = measure(mode, 1, 5.0, folder, os.environ)
    assert found.memory.resident > 10
    assert 0 < found.millicores < 200
    assert found.wakeups > 0
    # A parked claim is one call in 20 seconds; whoever asked each second would make 60 in a minute.
    assert found.calls <= 24


def test_a_call_of_the_model_is_a_call(folder):
    with crew(Mode.LOOP, 1, folder, os.environ) as running:
        deadline = time.monotonic() + 30
        while running.calls() == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert running.calls() == 1, "the first run of a loop asks the model once"


def test_a_request_of_a_tool_server_is_a_call(folder):
    with crew(Mode.REACTIVE, 2, folder, os.environ) as running:
        assert running.calls() >= 4, "each of both connects and subscribes"


def test_what_threads_do_is_seen():
    before = activity([os.getpid()])
    sum(number * number for number in range(2_000_000))
    time.sleep(0.001)
    after = activity([os.getpid()])
    assert after.milliseconds > before.milliseconds
    assert after.wakeups > before.wakeups
