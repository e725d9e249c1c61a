"""`agentctl up` as a person has it: real processes, killed from outside, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

QUEUE = "demo/summarize"
PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to come true outside."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Machine:
    """A machine with a state folder, on which `agentctl` commands run."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")},
            "AGENTCTL_STATE_DIR": str(self.state),
            "AGENT_SLOTS": "2",
        }
        self.planes: list[subprocess.Popen[str]] = []
        self.pids: set[int] = set()

    def up(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a plane; returns at once."""
        plane = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "up", *options],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.planes.append(plane)
        return plane

    def ready(self, plane: subprocess.Popen[str]) -> str:
        """What `up` says until the plane is up."""
        assert plane.stdout is not None
        said = ""
        for line in plane.stdout:
            said += line
            if line.startswith("Ctrl-C stops it"):
                self.pids |= {child["pid"] for child in self.children().values()}
                return said
        pytest.fail(f"up ended with {plane.wait()}:\n{said}")

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def json(self, *arguments: str, stdin: str = "") -> Any:
        """What a command that succeeds prints as JSON."""
        found = self.run(*arguments, "-o", "json", stdin=stdin)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    def children(self) -> dict[str, Any]:
        """The children that `up` has recorded."""
        record = self.state / "children.json"
        found: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
        return found

    def stopped(
        self, plane: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM
    ) -> tuple[int, str]:
        """Stops a plane; its exit code and what it said."""
        plane.send_signal(number)
        said, _ = plane.communicate(timeout=PATIENCE_SECONDS)
        return plane.returncode, said

    def leftovers(self) -> Sequence[int]:
        """Those of our children that still run."""
        return [pid for pid in self.pids if is_running(pid)]

    def close(self) -> None:
        """Ends what a failed test has left."""
        self.pids |= {child["pid"] for child in self.children().values()}
        for plane in self.planes:
            if plane.poll() is None:
                plane.terminate()
            plane.communicate(timeout=PATIENCE_SECONDS)
        for pid in self.leftovers():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not tmp_path: root's PostgreSQL runs as another user, and pytest shuts its folders to others.
    with tempfile.TemporaryDirectory(prefix="agentctl-up-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        machine = Machine(Path(folder))
        yield machine
        machine.close()


def test_up_works_and_stops_in_order(machine: Machine) -> None:
    plane = machine.up("--store", "memory")
    machine.ready(plane)

    summary = machine.run(
        "work", "submit", QUEUE, "-", "--wait", "-o", "json", stdin="One. Two.\nThree. Four.\n"
    )
    assert summary.returncode == 0, summary.stderr
    results = [json.loads(line) for line in summary.stdout.splitlines()[1:]]
    assert [each["state"] for each in results] == ["WORK_STATE_SUCCEEDED"] * 2

    refused = machine.run("up")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"pid {plane.pid}" in refused.stderr

    code, said = machine.stopped(plane, signal.SIGINT)
    assert code == 0
    order = [line.split()[1] for line in said.splitlines() if line.endswith("  stopped")]
    assert (set(order[:2]), order[2:]) == ({"summarize-1", "summarize-2"}, ["coordination", "provider"])
    assert machine.leftovers() == []
    gone = machine.run("queues", "list")
    assert (gone.returncode, "agentctl up" in gone.stderr) == (5, True)
    assert {path.stat().st_mode & 0o77 for path in (machine.state / "pki", machine.state / "logs")} == {0}


def test_work_of_a_killed_agent_is_finished_by_another(machine: Machine) -> None:
    machine.ready(machine.up("--store", "memory", PROVIDER_LATENCY="1s", AGENT_LEASE="300s"))
    machine.json(
        "work", "submit", QUEUE, "-", "--group", "g", stdin="".join(f"Line {n}.\n" for n in range(8))
    )

    def held() -> list[str]:
        items = machine.json("work", "list", QUEUE, "--state", "leased")["items"]
        return [item["id"] for item in items if "/summarize-1/" in item["holder"]]

    until(lambda: bool(held()), "summarize-1 holds nothing")
    before = machine.children()["summarize-1"]
    os.kill(before["pid"], signal.SIGKILL)
    watched = machine.run("work", "watch", QUEUE, "--group", "g", "-o", "json")  # well before the leases end
    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout.splitlines()[-1])["settled"] == {"succeeded": 8}
    until(
        lambda: machine.children().get("summarize-1", before)["pid"] != before["pid"],
        "it is not started again",
    )
    assert machine.children()["summarize-1"]["uid"] != before["uid"]


@pytest.mark.postgres
def test_up_stops_everything_when_coordination_dies(machine: Machine) -> None:
    plane = machine.up("--store", "embedded")
    machine.ready(plane)
    machine.pids.add(int((machine.state / "data" / "postmaster.pid").read_text().split()[0]))
    os.kill(machine.children()["coordination"]["pid"], signal.SIGKILL)
    said, _ = plane.communicate(timeout=PATIENCE_SECONDS)
    assert plane.returncode == 1
    assert "error: coordination was ended by SIGKILL; the last of " in said
    assert "Traceback" not in said
    assert machine.leftovers() == []


def test_the_next_up_ends_what_a_killed_one_left(machine: Machine) -> None:
    first = machine.up("--store", "memory")
    machine.ready(first)
    left = {name: child["pid"] for name, child in machine.children().items()}
    first.kill()
    first.communicate()
    assert all(map(is_running, left.values()))
    second = machine.up("--store", "memory")
    said = machine.ready(second)
    assert all(f"left over from an `up` that was killed (pid {pid})" in said for pid in left.values())
    assert not any(map(is_running, left.values()))
    assert machine.stopped(second)[0] == 0


def test_a_stop_during_the_start_leaves_nothing(machine: Machine) -> None:
    plane = machine.up("--store", "memory", "--agents", "4")
    until(lambda: "coordination" in machine.children(), "coordination was not started")
    machine.pids |= {child["pid"] for child in machine.children().values()}
    code, said = machine.stopped(plane)
    assert code == 0, said
    assert machine.children() == {}
    assert machine.leftovers() == []


def test_a_wrong_setting_is_named_and_stops_the_start(machine: Machine) -> None:
    plane = machine.up("--store", "memory", AGENT_SLOTS="many")
    said, _ = plane.communicate(timeout=PATIENCE_SECONDS)
    assert plane.returncode == 1
    assert "AGENT_SLOTS" in said
    assert "Traceback" not in said


@pytest.mark.postgres
def test_work_outlives_the_plane_with_the_embedded_store(machine: Machine) -> None:
    first = machine.up("--agents", "0")
    machine.ready(first)
    machine.json("work", "submit", QUEUE, "-", stdin="Kept. Safe.\n")
    assert machine.stopped(first)[0] == 0
    machine.ready(machine.up("--agents", "1"))
    watched = machine.run("work", "watch", QUEUE)
    assert watched.returncode == 0, watched.stderr
    [item] = machine.json("work", "list", QUEUE, "--state", "succeeded")["items"]
    assert item["attempt"] == 1


def demo(folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Starts the demo; what it leaves is in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "integration.demo", *options],
        env=os.environ | environment | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def running_in(folder: Path) -> Sequence[str]:
    """The processes whose command line or environment names the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if str(folder).encode() in environment and is_running(int(process.name)):
                found.append(process.name)
    return found


def test_the_demo_asks_no_model_and_no_plane_but_its_own(tmp_path: Path) -> None:
    elsewhere = "127.0.0.1:1"
    process = demo(
        tmp_path,
        "--store",
        "memory",
        OPENAI_BASE_URL=f"http://{elsewhere}/v1",
        AGENT_MODEL="dear",
        AGENTCTL_COORDINATION_ADDRESS=elsewhere,
        COORDINATION_STORE="nonsense",
    )
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "400 documents, each finished exactly once" in said
    assert list(tmp_path.iterdir()) == []


def test_the_demo_stops_everything_on_ctrl_c(tmp_path: Path) -> None:
    process = demo(tmp_path, "--store", "memory")
    assert process.stdout is not None
    for line in process.stdout:
        if "Submitting" in line:
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, said
    assert "Interrupted" in said
    assert "Traceback" not in said
    assert (list(tmp_path.iterdir()), running_in(tmp_path)) == ([], [])


def test_a_demo_that_fails_says_where_its_logs_are(tmp_path: Path) -> None:
    process = demo(tmp_path, "--store", "postgres")
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "error: the plane did not start" in said
    [left] = tmp_path.iterdir()
    assert f"is in {left}\n" in said
