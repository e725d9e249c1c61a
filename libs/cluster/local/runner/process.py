"""One child process and what it starts: begun, awaited, stopped, known again after `kill -9` of its parent.

A child leads a session and a process group of its own, which end with it. Where the system can do that it is
killed at once when the thread that started it dies (Linux: PR_SET_PDEATHSIG, set by util-linux' `setpriv`,
because code between fork and exec is not safe beside other threads); hence children are to be started by the
main thread. A record on disk names it, so that the next start can end what is left all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import psutil  # type: ignore[import-untyped]

_DIE_WITH_US = ("--pdeathsig", "KILL", "--")
_GONE_SECONDS = 10.0
_POLL_SECONDS = 0.01
_PIECE = 65_536


@dataclass(frozen=True)
class Launch:
    """What to start: its words, its whole environment, where it runs, and where its log and record go."""

    words: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    record: Path


@dataclass(frozen=True)
class Record:
    """A child as the disk keeps it. `started` tells it from a later process with its pid, `host` (the value
    of HOSTNAME) tells what it has started from a later session with its number."""

    pid: int
    started: str
    host: str


class Child:
    """A process that was started."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process) -> None:
        self._launch = launch
        self._process = process
        self._over = False

    @classmethod
    async def start(cls, launch: Launch, prefix: Sequence[str] = ()) -> Child:
        """Starts it behind the words of `prefix`; the log of the child before becomes `….log.1`."""
        if launch.log.exists():
            launch.log.replace(_older(launch.log))
        log = os.open(launch.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *prefix,
                *launch.words,
                env=dict(launch.environment),
                cwd=launch.directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        child = cls(launch, process)
        record = Record(process.pid, _started(process.pid), launch.environment.get("HOSTNAME", ""))
        try:
            launch.record.write_text(json.dumps(asdict(record)))
        except OSError:  # one that nobody would find again
            child.kill()
            await child.wait()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit code, once it and its group are gone."""
        code = await self._process.wait()
        if not self._over:
            self._over = True
            self._end_group()
            self._launch.record.unlink(missing_ok=True)
        return code

    async def stop(self, grace: float) -> int:
        """SIGTERM, and SIGKILL to it and its group after `grace` seconds. Returns when it is gone."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            with anyio.move_on_after(grace):  # asyncio's, in a cancelled task, only works from 3.11.3 on
                await self._process.wait()
        self.kill()
        return await self.wait()

    def kill(self) -> None:
        """SIGKILL to it and its group."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def bound_log(self, size: int) -> None:
        """If the log is larger than `size`, its last bytes, so many, become `….log.1`: copied and cut, since
        the child keeps it open; what is written in that very moment may be lost. Of one that has ended they
        become the log. OSError."""
        log = self._launch.log
        with suppress(FileNotFoundError):  # somebody tidied up
            if log.stat().st_size > size:
                to = _older(log) if self.exit_code is None else log
                await anyio.to_thread.run_sync(_cut, log, size, to)

    def _end_group(self) -> None:
        # Its number is not another's: only a new process of this pid could have made such a group since.
        if not psutil.pid_exists(self.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


async def dying_with_us() -> tuple[str, ...]:
    """The words before a command that make it die with the thread that starts it; none if that cannot be."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    if setpriv is None:
        return ()
    words, quiet = (setpriv, *_DIE_WITH_US), asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*words, "true", stdout=quiet, stderr=quiet)
    return words if await process.wait() == 0 else ()  # other makers' setpriv may not know how


def end_left_over(path: Path, running: Sequence[psutil.Process]) -> int:
    """Ends what is left, among what runs, of the recorded child and of what it has started; returns how many
    processes that were. It blocks until they are gone; TimeoutError if they do not go."""
    try:
        record = Record(**json.loads(path.read_text()))
    except (ValueError, TypeError):  # cut short by the end of its writer, with which the child died
        path.unlink()
        return 0
    left = [process for process in running if _belongs(process, record)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + _GONE_SECONDS
    while any(_belongs(process, record) for process in left):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of {path} do not end")
        time.sleep(_POLL_SECONDS)
    path.unlink()
    return len(left)


def _belongs(process: psutil.Process, record: Record) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if process.pid == record.pid:
            return _started(process.pid) == record.started
        in_session = os.getsid(process.pid) == record.pid
        return in_session and process.environ().get("HOSTNAME") == record.host
    except (psutil.Error, ProcessLookupError, PermissionError):
        return False


def _started(pid: int) -> str:
    """When it started, as an opaque text; "" if it is gone."""
    try:
        if sys.platform != "linux":
            return str(psutil.Process(pid).create_time())
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{after_name[19]}"  # field 22 of proc(5): ticks since boot


def _cut(log: Path, size: int, to: Path) -> None:
    beside = log.with_name(log.name + ".new")
    with log.open("r+b") as file:
        try:
            left = min(size, file.seek(0, os.SEEK_END))
            file.seek(-left, os.SEEK_END)
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy:
                while left and (piece := file.read(min(left, _PIECE))):
                    left -= copy.write(piece)
            beside.replace(to)
        finally:
            file.truncate(0)  # above all when the disk is full


def _older(log: Path) -> Path:
    return log.with_name(log.name + ".1")
