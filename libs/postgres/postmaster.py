"""What a running server says of itself, and how to end it."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Postmaster:
    """The content of `postmaster.pid`, which stays when the server is killed."""

    process: psutil.Process | None  # None: gone
    port: str
    sockets: Path
    status: str

    @classmethod
    def of(cls, data: Path) -> Postmaster | None:
        """None if there is none, or if it was stopped in order."""
        try:
            lines = [line.strip() for line in (data / "postmaster.pid").read_text().splitlines()]
        except OSError:
            return None
        if len(lines) < 5:  # half-written
            return cls(None, "", data, "")
        return cls(_found(int(lines[0]), data), lines[3], Path(lines[4] or data), "".join(lines[7:8]))


def _found(pid: int, data: Path) -> psutil.Process | None:
    """The process, if it is the server of these data: pids are used again."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        command = process.cmdline()  # empty when only its exit code is left
        if str(data) in command and Path(command[0]).name == "postgres":
            return process
    return None


def goes_on(process: psutil.Process) -> bool:
    """Whether it is still that process, and more of it than its exit code."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def ends(process: psutil.Process, number: signal.Signals, within: float) -> bool:
    """Send that, and see whether the process ends in time."""
    deadline = time.monotonic() + within
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
    while goes_on(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
