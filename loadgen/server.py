"""A coordination process of our own to measure, and what it costs."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from libs.identity import Identity
from libs.postgres.postmaster import Postmaster

from . import processes
from .child import ServerError, await_ready, child, end_of, free_port
from .processes import Usage

_COUNTER = "agentctl_rpc_server_duration_seconds_count{"
_COUNTED = "/agentctl.coordination."


class Engine(StrEnum):
    """The stores of coordination, as its users say them."""

    MEMORY = "memory"
    POSTGRES = "postgres"


@dataclass(frozen=True)
class Cost:
    """What a server used since it began, PostgreSQL apart, how many work RPCs it answered, and for how many
    CPU seconds the machine was busy, with this and all else.
    """

    server: Usage
    database: Usage
    rpcs: int
    machine: float


@dataclass(frozen=True)
class Server:
    """A running coordination process."""

    address: str
    plain_address: str
    pid: int
    data: Path
    log: Path
    beside: Server | None = None
    """A second replica on the same database; what it costs counts too."""

    def cost(self) -> Cost:
        """What it used and answered until now. ServerError if it is gone."""
        if self.beside:
            one, two = replace(self, beside=None).cost(), self.beside.cost()
            usages = (one.server, two.server)
            return Cost(Usage.sum(usages), one.database, one.rpcs + two.rpcs, two.machine)
        database = processes.postgres_under(self.data)
        theirs = {process.pid for process in database}
        own = [process for process in processes.tree(self.pid) if process.pid not in theirs]
        return Cost(
            processes.usage(own),
            processes.usage(database),
            self._answered(),
            processes.machine_seconds(),
        )

    def complaints(self) -> list[str]:
        """The last errors in its log, for people."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if '"level": "ERROR"' in line][-3:]

    def _answered(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{self.plain_address}/metrics", timeout=10) as answer:
                lines: list[str] = answer.read().decode().splitlines()
        except OSError as error:
            raise ServerError(f"coordination went away ({error}); {end_of(self.log)}") from error
        counters = [line for line in lines if line.startswith(_COUNTER) and _COUNTED in line]
        return sum(int(float(line.rpartition(" ")[2])) for line in counters)


@contextmanager
def running(
    engine: Engine, identity: Identity, folder: Path, environment: Mapping[str, str]
) -> Iterator[Server]:
    """Coordination on free loopback ports with its data in `folder`, stopped at the end."""
    store = "memory" if engine is Engine.MEMORY else "embedded"
    with _process({"COORDINATION_STORE": store}, identity, folder, environment) as server:
        yield server


@contextmanager
def replicas(identity: Identity, folder: Path, environment: Mapping[str, str]) -> Iterator[Server]:
    """Two on one PostgreSQL, which the first has with it; its `beside` is the second."""
    with running(Engine.POSTGRES, identity, folder, environment) as first:
        found = Postmaster.of(first.data.resolve())
        if found is None:
            raise ServerError(f"no PostgreSQL runs in {first.data}")
        own = folder / "second"
        own.mkdir()
        conninfo = own / "database"
        conninfo.write_text(f"host={found.sockets} port={found.port} user=postgres dbname=postgres")
        settings = {"COORDINATION_STORE": "postgres", "COORDINATION_DATABASE_FILE": str(conninfo)}
        with _process(settings, identity, own, environment) as second:
            yield replace(first, beside=second)


@contextmanager
def _process(
    store: Mapping[str, str], identity: Identity, folder: Path, environment: Mapping[str, str]
) -> Iterator[Server]:
    port, metrics_port = free_port(), free_port()
    settings = {
        **store,
        "COORDINATION_DATA_DIR": str(folder / "data"),
        "COORDINATION_PORT": str(port),
        "COORDINATION_METRICS_PORT": str(metrics_port),
        "AGENTCTL_TLS_DIR": str(identity.folder),
    }
    log = folder / "coordination.log"
    with child("services.coordination", (), {**environment, **settings}, log) as process:
        await_ready(process, metrics_port, log)
        yield Server(f"127.0.0.1:{port}", f"127.0.0.1:{metrics_port}", process.pid, folder / "data", log)
