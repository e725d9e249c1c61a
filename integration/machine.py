"""`agentctl` as a person has it on a machine of his: commands, real processes, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
FLEET = EXAMPLES / "summarize.yaml"
NAMESPACE, QUEUE = "demo", "demo/summarize"
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
    except (FileNotFoundError, ProcessLookupError):
        return False


def running_in(folder: Path, part: str = "") -> Sequence[int]:
    """The processes whose command line or environment names the folder, and whose command line the part."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes()
            said = words + (process / "environ").read_bytes()
            if str(folder).encode() in said and part.encode() in words and is_running(int(process.name)):
                found.append(int(process.name))
    return found


class Machine:
    """A machine with a state folder, on which `agentctl` commands run."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        foreign = ("OPENAI_", "AGENT", "PLANE_", "COORDINATION_", "OPERATOR_", "PROVIDER_", "KUBECONFIG")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "AGENTCTL_STATE_DIR": str(self.state),
            "HOME": str(folder),  # where no kubeconfig is
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.planes: list[subprocess.Popen[str]] = []

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
                return said
        pytest.fail(f"up ended with {plane.wait()}:\n{said}")

    def refused(self, *options: str, **environment: str) -> tuple[int, str]:
        """The exit code and the error of an `up` that cannot be. It leaves nothing, and no traceback."""
        plane = self.up(*options, **environment)
        said, _ = plane.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in said
        assert running_in(self.state) == []
        return plane.returncode, said.splitlines()[-1]

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

    def done(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints that succeeds."""
        found = self.run(*arguments, stdin=stdin)
        assert found.returncode == 0, found.stderr
        return found.stdout

    def json(self, *arguments: str, stdin: str = "") -> Any:
        """What a command that succeeds prints as JSON."""
        return json.loads(self.done(*arguments, "-o", "json", stdin=stdin))

    def fleet(self) -> None:
        """Two agents are there and ready."""
        self.done("apply", "-f", str(FLEET))
        self.done("wait", "fleet/summarize", "-n", NAMESPACE)

    def pods(self) -> dict[str, int]:
        """The process of each pod that runs, by its name."""
        found = {}
        for pod in self.json("get", "pods", "-n", NAMESPACE)["items"]:
            for status in pod.get("status", {}).get("containerStatuses", ()):
                if "running" in status["state"]:
                    found[pod["metadata"]["name"]] = int(status["containerID"].removeprefix("process://"))
        return found

    def agents(self) -> Sequence[int]:
        """The processes of agents, as the machine knows them."""
        return running_in(self.state, "services.agent")

    def holders(self) -> set[str]:
        """The pods that hold work."""
        items = self.json("work", "list", QUEUE, "--state", "leased")["items"]
        return {item["holder"].split("/")[-2] for item in items}

    def stopped(
        self, plane: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM
    ) -> tuple[int, str]:
        """Stops a plane; its exit code and what it said."""
        plane.send_signal(number)
        said, _ = plane.communicate(timeout=PATIENCE_SECONDS)
        return plane.returncode, said

    def close(self) -> None:
        """Ends what a failed test has left."""
        for plane in self.planes:
            if plane.poll() is None:
                plane.terminate()
            plane.communicate(timeout=PATIENCE_SECONDS)
        for pid in running_in(self.state):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
