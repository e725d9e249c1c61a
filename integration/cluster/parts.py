"""The node's processes: one pid file and one log each below the run folder."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .place import Place


class PartError(Exception):
    """A part of the node did not come up; the message has the end of its log."""


class Parts:
    """Starts what does not run, knows what runs, ends it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._logs = place.run / "log"

    def start(self, name: str, *command: str | Path, inside: bool = True) -> None:
        """In the network namespace and in the background, unless it runs already."""
        if self.pid(name) is not None:
            return
        # Not `ip netns exec`: that mounts a /sys of its own, and the kubelet would not see its cgroups.
        enter: Sequence[str] = ("nsenter", f"--net=/run/netns/{self._place.netns}") if inside else ()
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*enter, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PATH": f"{self._place.programs}:{os.environ['PATH']}"},
            )
        self._file(name).write_text(str(child.pid))
        child.returncode = 0  # it stays when we go: nothing here waits for it

    def pid(self, name: str) -> int | None:
        """None unless it runs; a zombie does not."""
        with suppress(OSError, ValueError):
            pid = int(self._file(name).read_text())
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return pid
        return None

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._place.run.glob("*.pid"))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, number)

    def await_(self, name: str, what: str, condition: Callable[[], bool], seconds: float = 90) -> None:
        """Until the condition holds. Raises PartError when the part ends before, or time is up."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.pid(name) is None or time.monotonic() > deadline:
                said = (self._logs / f"{name}.log").read_text(errors="replace")[-2000:]
                raise PartError(f"{name}: {what} did not come in {seconds:.0f} s\n{said}")
            time.sleep(0.2)

    def _file(self, name: str) -> Path:
        return self._place.run / f"{name}.pid"
