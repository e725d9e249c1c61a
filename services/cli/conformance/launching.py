"""The agent's program as a real process: a command of this machine, or an image through docker or podman."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio

from .case import BrokenError

_TAIL = 400


class Launcher(Protocol):
    """How the program is started, and killed."""

    def words(self, name: str, environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
        """The command that runs it in the foreground."""

    def killing(self, name: str) -> list[str]:
        """The command that kills it at once; empty: a signal to what `words` started does."""


@dataclass(frozen=True)
class Command:
    """A program of this machine."""

    program: Sequence[str]

    def words(self, name: str, environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
        return [*self.program, *arguments]

    def killing(self, name: str) -> list[str]:
        return []


@dataclass(frozen=True)
class Image:
    """A container on the host's network. It sees the one folder that everything is in, and what we say."""

    image: str
    folder: Path
    runtime: str

    @classmethod
    def find(cls, image: str, folder: Path, path: str | None = None) -> Image:
        """By docker, or else podman. LookupError if there is neither on the PATH."""
        for name in ("docker", "podman"):
            if found := shutil.which(name, path=path):
                return cls(image, folder, found)
        raise LookupError("neither docker nor podman is on the PATH")

    def words(self, name: str, environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
        # values by our own environment, so that none shows in the list of processes
        given = [word for variable in sorted(environment) for word in ("--env", variable)]
        return [
            self.runtime, "run", "--rm", "--name", name, "--network", "host",
            "--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{self.folder}:{self.folder}",
            *given, self.image, *arguments,
        ]  # fmt: skip

    def killing(self, name: str) -> list[str]:
        return [self.runtime, "kill", name]


@dataclass(eq=False)
class Process:
    """The program while it runs, and what it has printed."""

    child: asyncio.subprocess.Process
    launcher: Launcher
    name: str
    out: Path
    err: Path
    environment: Mapping[str, str] = field(repr=False)

    @property
    def has_ended(self) -> bool:
        return self.child.returncode is not None

    async def ended(self, seconds: float) -> int:
        """Its exit code, once it has ended. BrokenError if it has not in time."""
        with anyio.move_on_after(seconds):
            return await self.child.wait()
        raise BrokenError(f"the process had not ended after {seconds:g}s{self.last_words()}")

    def terminate(self) -> None:
        """As Kubernetes does."""
        self.child.send_signal(signal.SIGTERM)

    async def kill(self) -> None:
        """As the kernel does; returns when it is gone."""
        if self.has_ended:
            return
        if words := self.launcher.killing(self.name):
            quiet = asyncio.subprocess.DEVNULL
            killer = await asyncio.create_subprocess_exec(*words, stdout=quiet, stderr=quiet)
            await killer.wait()
        if not self.has_ended:
            self.child.kill()
        await self.child.wait()

    @property
    def stdout(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    def last_words(self) -> str:
        """The end of what it said on stderr, for a message."""
        said = " ".join(self.stderr.split())
        return f"; it said: …{said[-_TAIL:]}" if said else ""


@asynccontextmanager
async def launched(
    launcher: Launcher,
    folder: Path,
    environment: Mapping[str, str],
    arguments: Sequence[str] = (),
    *,
    inherited: Mapping[str, str],
) -> AsyncIterator[Process]:
    """The program, with this environment over what is inherited; killed when the block ends."""
    name = f"conformance-{uuid.uuid4().hex[:12]}"
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    words = launcher.words(name, environment, arguments)
    with out.open("wb") as stdout, err.open("wb") as stderr:
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**inherited, **environment},
        )
    process = Process(child, launcher, name, out, err, environment)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await process.kill()
