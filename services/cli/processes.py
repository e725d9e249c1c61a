"""Which processes are ours: a lock for one `up` a folder, and a record that survives `kill -9`.

A recorded process is ours only while its pid still belongs to the process that started at that time.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .output import FailedError
from .state import State, write_json

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Recorded:
    """A child as the record keeps it. `started` tells it from a later process with its pid."""

    name: str
    pid: int
    started: str
    uid: str = ""


@contextmanager
def alone(state: State) -> Iterator[None]:
    """Holds the lock of the state folder; FailedError if another `up` does. It ends with the process."""
    with open(state.lock, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise FailedError(
                f"a plane runs here already (`agentctl up`, pid {file.read().strip() or 'unknown'}, state in "
                f"{state.folder}): use it, stop it with Ctrl-C, or name another folder by --state-dir"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


class Record:
    """The children that run now, in a file, in the order in which they were started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._children: dict[str, Recorded] = {}

    def add(self, name: str, pid: int, uid: str) -> None:
        """A child has started."""
        self._children[name] = Recorded(name, pid, started(pid) or "", uid)
        self._write()

    def remove(self, name: str) -> None:
        """A child has ended."""
        self._children.pop(name, None)
        self._write()

    def _write(self) -> None:
        write_json(self._path, {name: asdict(child) for name, child in self._children.items()})


def left_over(path: Path) -> list[Recorded]:
    """Children of an earlier `up` that still run, last started first."""
    try:
        recorded = [Recorded(**child) for child in json.loads(path.read_text()).values()]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, AttributeError) as error:
        raise FailedError(f"{path}: not what `agentctl up` writes ({error}); remove it") from error
    return [each for each in reversed(recorded) if _runs(each)]


async def end(process: Recorded, grace: float) -> None:
    """SIGTERM, and SIGKILL to its whole group if it is still there after `grace` seconds."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    deadline = asyncio.get_running_loop().time() + grace
    while _runs(process):
        if asyncio.get_running_loop().time() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.sleep(_POLL_SECONDS)


def started(pid: int) -> str | None:
    """When the process with this pid started, as an opaque text; None if there is none."""
    if not Path("/proc/self/stat").exists():
        ps = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return ps.stdout.strip() or None
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if after_name[0] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{after_name[19]}"  # field 22 of proc(5): ticks since boot


def _runs(process: Recorded) -> bool:
    return process.started != "" and started(process.pid) == process.started
