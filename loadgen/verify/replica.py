"""The servers of a run: coordination processes on fixed ports that can be killed, and their PostgreSQL."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from libs.identity import Identity
from libs.postgres import embedded

from .. import processes
from ..child import ServerError, free_port
from .proxy import Dial, Proxy

_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_POLL = 0.05


@dataclass
class Replica:
    """A coordination process, and the proxy that its clients come through."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    plain_port: int
    front: Proxy
    database: Proxy | None
    process: asyncio.subprocess.Process | None = None
    up: bool = False

    async def start(self) -> None:
        """Returns when it is ready, at once if it is. One that ends, since its database is not there yet, is
        started again, as any supervisor would; ServerError when it has not become ready in a minute.
        """
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not self.up:
                    if self._ended:
                        await self._launch()
                    if await asyncio.to_thread(self._is_ready):
                        self.up = True
                    else:
                        await asyncio.sleep(_POLL)
        except TimeoutError:
            raise ServerError(f"{self.name} is not ready; {self.last_words()}") from None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and not self._ended:
            self.process.send_signal(number)

    async def kill(self) -> None:
        """As kill -9 does."""
        self.up = False
        self.signal(signal.SIGKILL)
        if self.process is not None:
            await self.process.wait()

    async def stop(self) -> None:
        """In order; what does not stop is killed."""
        self.up = False
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                if self.process is not None:
                    await self.process.wait()
        except TimeoutError:
            await self.kill()

    @property
    def crashed(self) -> bool:
        """Whether it ended, and nobody had asked it to."""
        return self.up and self._ended

    def last_words(self) -> str:
        return f"the end of its log:\n{self.log.read_text(errors='replace')[-2000:]}"

    @property
    def _ended(self) -> bool:
        return self.process is None or self.process.returncode is not None

    async def _launch(self) -> None:
        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env=dict(self.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us; we stop it
            )

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.plain_port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True)
class Database:
    """An embedded PostgreSQL of ours, and how to reach it."""

    data: Path
    socket: str

    def proxy(self) -> Proxy:
        """One more way to it, over TCP, that can be harmed."""
        return Proxy(_unix(self.socket))

    def postmaster(self) -> int | None:
        """Its pid; None while there is none."""
        found = processes.postgres_under(self.data)
        pids = {process.pid for process in found}
        return next((process.pid for process in found if process.parent not in pids), None)

    def backends(self) -> list[int]:
        """The pids of its children."""
        top = self.postmaster()
        return [each.pid for each in processes.postgres_under(self.data) if each.parent == top]


@asynccontextmanager
async def database(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Database]:
    """PostgreSQL below `folder`; started again when it is killed, stopped at the end."""
    async with embedded(folder / "data", environment) as conninfo:
        said = conninfo_to_dict(conninfo)
        yield Database(folder / "data", f"{said['host']}/.s.PGSQL.{said['port']}")


@asynccontextmanager
async def replicas(
    count: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    identity: Identity,
    folder: Path,
    base: Database | None,
) -> AsyncIterator[list[Replica]]:
    """So many servers, each with proxies of its own before and behind it; all gone at the end. Without a
    database: the one server of a memory store.
    """
    made = []
    for n in range(count):
        behind = None if base is None else base.proxy()
        made.append(await _replica(f"coordination-{n}", command, environment, identity, folder, behind))
    try:
        for replica in made:
            await replica.start()
        yield made
    finally:
        for replica in made:
            await replica.stop()
            await replica.front.close()
            if replica.database is not None:
                await replica.database.close()


async def _replica(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    identity: Identity,
    folder: Path,
    behind: Proxy | None,
) -> Replica:
    port, plain_port = free_port(), free_port()
    settings = {
        "COORDINATION_STORE": "memory",
        "COORDINATION_PORT": str(port),
        "COORDINATION_METRICS_PORT": str(plain_port),
        "AGENTCTL_TLS_DIR": str(identity.folder),
        "AGENTCTL_LOG_LEVEL": "WARNING",
    }
    if behind is not None:
        await behind.open()
        file = folder / f"{name}.dsn"
        file.write_text(
            f"host=127.0.0.1 port={behind.port} user=postgres dbname=postgres sslmode=disable"
            " gssencmode=disable"
        )
        settings |= {"COORDINATION_STORE": "postgres", "COORDINATION_DATABASE_FILE": str(file)}
    front = Proxy(_tcp(port))
    await front.open()
    log = folder / f"{name}.log"
    return Replica(name, command, {**environment, **settings}, log, plain_port, front, behind)


def _tcp(port: int) -> Dial:
    return lambda protocol: asyncio.get_running_loop().create_connection(protocol, "127.0.0.1", port)


def _unix(path: str) -> Dial:
    return lambda protocol: asyncio.get_running_loop().create_unix_connection(protocol, path)
