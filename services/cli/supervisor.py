"""Child processes: started, awaited until ready, restarted, stopped. It knows nothing of what they are."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .durations import span
from .output import FailedError
from .processes import Record

_PROBE_SECONDS = 0.1
_READY_TIMEOUT = 90.0  # the first start of an embedded database takes several seconds
_STEADY_SECONDS = 30.0  # a child that ran this long starts again with the shortest wait
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_PORT_TRIES = 3
_TAIL_LINES = 5
_HOPELESS = (2, 5)  # exit codes after which no restart can help: bad configuration, or cannot be done

Say = Callable[[str, str], None]
"""`say(name, event)`: a line for the person in front of the terminal."""


@dataclass(frozen=True)
class Launch:
    """One start of a child: its command, its whole environment, and the loopback ports it listens on."""

    command: Sequence[str]
    environment: Mapping[str, str]
    ports: Sequence[int]
    probe: str  # http://127.0.0.1:PORT/PATH; any answer below 400 means ready
    uid: str = ""


class DiedError(FailedError):
    """A child ended that should not have; the message has the last lines of its log."""


class Child:
    """A child process and its log. `launch` is asked anew before every start."""

    def __init__(self, name: str, launch: Callable[[], Launch], *, log: Path, grace: float) -> None:
        self.name = name
        self.launched: Launch | None = None
        self._launch = launch
        self._log = log
        self._grace = grace
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode if self._process else None

    async def start(self, record: Record) -> float:
        """Starts it; returns the seconds it took to become ready. DiedError if it ended before. Ports that
        somebody else took meanwhile are chosen anew."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        for tries in range(1, _PORT_TRIES + 1):
            await self._spawn(record)
            try:
                await self._ready()
            except DiedError:
                taken = self.launched is not None and not all(map(is_free, self.launched.ports))
                if not taken or tries == _PORT_TRIES:
                    raise
            else:
                break
        return clock() - begin

    async def wait(self) -> int:
        """Its exit code, once it has ended; negative: the signal that ended it."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return await self._process.wait()

    async def guard(self, record: Record) -> None:
        """Raises DiedError when it ends."""
        code = await self.wait()
        record.remove(self.name)
        raise self._died(code)

    async def keep(self, record: Record, say: Say, gone: Callable[[Launch], None]) -> None:
        """Starts it again whenever it ends, ever later if it does not stay; tells `gone` of each end.
        DiedError if its configuration is at fault."""
        clock = asyncio.get_running_loop().time
        wait, begin = _FIRST_WAIT, clock()
        while True:
            code = await self.wait()
            record.remove(self.name)
            if code in _HOPELESS:
                raise self._died(code)
            if self.launched:
                gone(self.launched)
            wait = _FIRST_WAIT if clock() - begin > _STEADY_SECONDS else wait
            say(self.name, f"{ending(code)}; starts again in {span(wait)}")
            await asyncio.sleep(wait)
            wait, begin = min(wait * 2, _LONGEST_WAIT), clock()
            try:
                took = await self.start(record)
            except DiedError:
                continue
            say(self.name, f"ready again after {span(took)}, pid {self.pid}")

    async def stop(self, record: Record, say: Say, hurry: asyncio.Event) -> None:
        """SIGTERM, then SIGKILL after the grace period, or at once in a hurry. Returns when it is gone."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        ended, hurried = asyncio.ensure_future(process.wait()), asyncio.ensure_future(hurry.wait())
        await asyncio.wait((ended, hurried), timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if ended.done():
            say(
                self.name,
                "stopped" if process.returncode == 0 else f"stopped: {ending(process.returncode or 0)}",
            )
        else:
            say(self.name, "did not stop in time and was killed")
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await ended
        record.remove(self.name)

    async def _spawn(self, record: Record) -> None:
        launch = self.launched = self._launch()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *launch.command,
                env=dict(launch.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us, who stop children in order
            )
        record.add(self.name, self._process.pid, launch.uid)

    async def _ready(self) -> None:
        if self._process is None or self.launched is None:
            raise RuntimeError(f"{self.name} was not started")
        try:
            async with asyncio.timeout(_READY_TIMEOUT):
                while True:
                    is_ready = await answers(self.launched.probe)
                    if self._process.returncode is not None:  # then somebody else has answered
                        raise self._died(self._process.returncode)
                    if is_ready:
                        return
                    await asyncio.sleep(_PROBE_SECONDS)
        except TimeoutError as error:
            raise DiedError(
                f"{self.name} is not ready after {span(_READY_TIMEOUT)}; {self._last_words()}"
            ) from error

    def _died(self, code: int) -> DiedError:
        return DiedError(f"{self.name} {ending(code)}; {self._last_words()}")

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        except FileNotFoundError:
            lines = []
        said = "\n".join(f"  {line[:400]}" for line in lines) or "  (nothing)"
        return f"the last of {self._log}:\n{said}"


def ending(code: int) -> str:
    """How a process ended, in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether somebody could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def answers(url: str) -> bool:
    """Whether a plain HTTP GET of this loopback URL is answered with a status below 400."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(name, int(port))
            try:
                writer.write(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
    words = status.split()
    return len(words) > 1 and words[1].isdigit() and int(words[1]) < 400
