"""The ladder: every store, mode and number of clients in turn, each step measured and audited."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from libs.identity import Identity
from libs.pki import Authority

from .audit import audit
from .channel import Target, reach
from .generator import Generators
from .ledger import new_tag
from .row import Row, row_of
from .server import Cost, Engine, Server, replicas, running
from .tally import Mode, Step, Violations

_DOMAIN = "load.agentctl"
_CONTROL_CLIENTS = 16
OPEN = (Mode.SINGLE, Mode.BATCH, Mode.LIBRARY)
"""The modes of which there are open loops."""


@dataclass(frozen=True)
class Ladder:
    """Which steps. `connections` None: one per client. `processes` None: what is best for the mode.
    `template` has what all steps share.
    """

    modes: Sequence[Mode]
    clients: Sequence[int]
    connections: int | None
    processes: int | None
    batch: int
    template: Step
    namespace: str = "load"
    rates: Sequence[float] = ()
    """Cycles a second: open loops of these instead of closed ones, in the modes that have cycles."""
    under_way: int = 256
    """The most cycles of an open loop that are under way at once."""

    def steps(self) -> Iterator[Step]:
        """The control step first, then by mode, then by number of clients or by rate."""
        for mode in (Mode.CHECK, *self.modes):
            for clients, rate in self._rungs(mode):
                processes = min(self._processes(mode), clients)
                connections = max(min(self.connections or clients, clients), processes)
                yield replace(
                    self.template,
                    mode=mode,
                    clients=clients,
                    processes=processes,
                    connections=0 if mode is Mode.LIBRARY else connections,  # it has its own
                    batch=self.batch if mode is Mode.BATCH else 1,
                    claim_next=self.template.claim_next and not rate and mode in (Mode.SINGLE, Mode.BATCH),
                    rate=rate,
                    queue=f"{self.namespace}/{mode}-{clients}-{secrets.token_hex(4)}",
                    tag=new_tag(),
                )

    def _rungs(self, mode: Mode) -> list[tuple[int, float]]:
        if mode is Mode.CHECK:
            return [(_CONTROL_CLIENTS, 0.0)]
        if self.rates and mode in OPEN:
            return [(self.under_way, rate) for rate in self.rates]
        return [(clients, 0.0) for clients in self.clients]

    def settings(self) -> dict[str, Any]:
        """What all steps share, to be written down beside the figures."""
        names = ("warmup", "duration", "payload", "lease", "request_ids", "client", "arrivals", "seed")
        return {name: getattr(self.template, name) for name in names}

    @property
    def most_processes(self) -> int:
        """Of any step."""
        return max(map(self._processes, (Mode.CHECK, *self.modes)))

    def _processes(self, mode: Mode) -> int:
        return self.processes or (4 if mode is Mode.LIBRARY else 2)


Progress = Callable[[Step, int, int, float], None]
"""`progress(step, cycles, errors, share of the time)`."""


@contextmanager
def own_server(
    engine: Engine, folder: Path | None, environment: Mapping[str, str], *, second: bool = False
) -> Iterator[tuple[Target, Server]]:
    """A server with a certificate authority and an empty store of its own, below `folder`; both go.
    With a `second` replica if the store can have one: claims are parked there.
    """
    with tempfile.TemporaryDirectory(prefix="agentctl-load-", dir=folder) as scratch:
        root = Path(scratch)
        root.chmod(0o711)  # a PostgreSQL that root starts runs as another user, who has to get in
        authority = Authority.create(root / "pki", _DOMAIN)
        server_identity = authority.issue(f"spiffe://{_DOMAIN}/cp/coordination", root / "server")
        client_identity = authority.issue(f"spiffe://{_DOMAIN}/user/load", root / "client")
        if second and engine is Engine.POSTGRES:
            started = replicas(server_identity, root, environment)
        else:
            started = running(engine, server_identity, root, environment)
        with started as server:
            parked_at = server.beside.address if server.beside else ""
            yield Target(server.address, client_identity, parked_at), server


def climb(
    ladder: Ladder, store: str, target: Target, server: Server | None, progress: Progress
) -> Iterator[Row]:
    """Runs the steps one after the other. `server` says what they cost, where it is ours.
    UnavailableError if it cannot be reached.
    """
    asyncio.run(reach(target))
    with Generators(target, ladder.most_processes) as generators:
        for step in ladder.steps():
            costs: list[Cost] = []

            def mark(costs: list[Cost] = costs) -> None:
                if server:
                    costs.append(server.cost())

            def show(cycles: int, errors: int, share: float, step: Step = step) -> None:
                progress(step, cycles, errors, share)

            tallies = generators.run(step, mark=mark, progress=show)
            found = Violations()
            if step.mode is not Mode.CHECK:
                found = asyncio.run(audit(target, step, tallies))
            else:
                for tally in tallies:
                    found.merge(tally.violations)
            for line in server.complaints() if server and found.counts else ():
                found.note("the server's log", line)
            yield row_of(store, step, tallies, costs, found)


def remote(address: str, tls_dir: Path) -> Target:
    """A server that somebody else runs."""
    return Target(address, Identity(tls_dir))
