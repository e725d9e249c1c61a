"""The manifests of examples/modes, as they are but for the namespace: their model is the stand-in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.testing.ports import free_port

from ..machine import EXAMPLES, until
from .home import NAMESPACE, Home


def text_of(mode: str) -> str:
    """The example of a mode, in our namespace."""
    text = (EXAMPLES / "modes" / f"{mode}.yaml").read_text()
    return text.replace(" demo\n", f" {NAMESPACE}\n")


@pytest.mark.parametrize(
    ("mode", "answer"), [("once", "lighthouse was built in 1857"), ("workflow", "lighthouse")]
)
def test_what_runs_once_is_completed(home: Home, mode: str, answer: str) -> None:
    home.machine.done("apply", "-f", "-", stdin=text_of(mode))
    last = home.ended(mode)
    assert (last["exitCode"], last["reason"], last["steps"]) == (0, "completed", 1 if mode == "once" else 3)
    [said] = [line for line in home.logs(mode).splitlines() if not line.startswith("{")]
    assert answer in said


def test_the_loop_runs_and_describe_tells_how_its_runs_end(home: Home) -> None:
    home.machine.done("apply", "-f", "-", stdin=text_of("loop"))
    home.wait("loop")
    until(lambda: home.told("loop").ended_runs["completed"] == 1, "it does not run")
    assert "1 completed" in home.machine.done("describe", "agent/loop", "-n", NAMESPACE)
    home.machine.done("delete", "agent/loop", "-n", NAMESPACE)


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """The file and the port of examples/modes/inbox.py, as a process."""
    file, port = tmp_path / "inbox", free_port()
    program = [sys.executable, str(EXAMPLES / "modes" / "inbox.py"), str(file), str(port)]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as process:
        try:
            yield file, port
        finally:
            process.kill()


def test_the_reactive_one_reacts_to_its_tool_server(home: Home, inbox: tuple[Path, int]) -> None:
    file, port = inbox
    text = text_of("reactive")
    assert ":8808/" in text
    home.machine.done("apply", "-f", "-", stdin=text.replace(":8808/", f":{port}/"))
    home.wait("reactive")
    until(lambda: home.told("reactive").ended_runs["completed"] == 1, "it does not react")
    file.write_text("A letter from the cape has come.\n")
    until(lambda: home.told("reactive").ended_runs["completed"] == 2, "it does not react to a change")
    home.machine.done("delete", "agent/reactive", "-n", NAMESPACE)
