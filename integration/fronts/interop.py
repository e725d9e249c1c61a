"""Every client asks every front the same, and all should hear the same: the interop table."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from libs.mesh import COORDINATION
from libs.rpc.boundary import Limits
from libs.rpc.server import FrontName, Serving, serving
from libs.testing.mesh import Mesh

from ..fleet import free_port
from .cases import Case, Ends
from .clients import Answer, Client, Go, GrpcAio, Grpcio, Grpcurl, Raw, Where
from .probe import CALLERS, Probe

FRONTS: Sequence[FrontName] = ("h2corn", "grpcio")
_PATIENCE_SECONDS = 10.0

Row = dict[tuple[str, FrontName], str]
"""Client and front → what was heard; without those that are not able to ask."""


def clients(folder: Path) -> tuple[list[Client], str]:
    """The clients that are to be had here, and why grpc-go is not: it is built into this folder."""
    found: list[Client] = [Grpcio(), GrpcAio(), Grpcurl()]
    go = Go.build(folder)
    if isinstance(go, str):
        return [*found, Raw()], go
    return [*found, go, Raw()], ""


@dataclass(frozen=True)
class Bench:
    """A front that serves probes."""

    mesh: Mesh
    front: FrontName

    @asynccontextmanager
    async def serve(self, probe: Probe, port: int = 0) -> AsyncIterator[Serving]:
        """That probe on a port."""
        async with serving(
            COORDINATION,
            self.mesh.identity("cp/coordination"),
            probe.register,
            port=port,
            front=self.front,
            limits=Limits(drain_seconds=5.0),
            on_drain=[probe.released.set],
            callers=CALLERS,
        ) as served:
            yield served

    def where(self, port: int) -> Where:
        """For a user of the mesh."""
        return Where(port, self.mesh.identity("user"), f"coordination.cp.{self.mesh.authority.domain}")


async def observe(bench: Bench, served: Serving, probe: Probe, client: Client, case: Case) -> str:
    """What the client heard, and what became of the handler, as a cell of the table."""
    if case.before_the_server:
        return _cell(case, await _before_the_server(bench, client, case))
    if case.ends is Ends.DRAINED:
        return _cell(case, await _drained(bench, client, case))
    leave = asyncio.Event()
    asking = asyncio.create_task(client.ask(case, bench.where(served.port), leave))
    if case.ends is Ends.BY_ITSELF:
        return _cell(case, await asking)
    await _soon(probe.parked)
    if case.ends is Ends.CANCELLED:
        leave.set()
    answer = await asking
    await _soon(probe.cancelled)
    return f"{_cell(case, answer)}, handler cancelled"


async def _before_the_server(bench: Bench, client: Client, case: Case) -> Answer:
    port = free_port()
    asking = asyncio.create_task(client.ask(case, bench.where(port), asyncio.Event()))
    await asyncio.sleep(0.2)  # longer than a connection takes to be refused
    assert not asking.done(), await asking
    async with bench.serve(Probe(), port):
        return await asking


async def _drained(bench: Bench, client: Client, case: Case) -> Answer:
    probe = Probe()
    async with bench.serve(probe) as served:
        asking = asyncio.create_task(client.ask(case, bench.where(served.port), asyncio.Event()))
        await _soon(probe.parked)
    return await asking


async def _soon(semaphore: asyncio.Semaphore) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        await semaphore.acquire()


def _cell(case: Case, answer: Answer) -> str:
    if case.own_words:
        return answer.code
    said = hashlib.sha256(answer.message.encode())
    for message in answer.messages:
        said.update(len(message).to_bytes(8))
        said.update(message)
    details = f" + {hashlib.sha256(answer.details).hexdigest()[:6]}" if answer.details else ""
    return f"{answer.code} {said.hexdigest()[:6]}{details}"


async def row(mesh: Mesh, using: Sequence[Client], case: Case) -> Row:
    """What each of them heard from each front."""
    cells: Row = {}
    for front in FRONTS:
        bench, probe = Bench(mesh, front), Probe()
        async with bench.serve(probe) as served:
            able = [client for client in using if client.can(case)]
            for some in (
                [able] if case.keepalive else [[client] for client in able]
            ):  # all at once if it is long
                heard = await asyncio.gather(
                    *(observe(bench, served, probe, client, case) for client in some)
                )
                cells.update({(client.name, front): cell for client, cell in zip(some, heard, strict=True)})
    return cells


def answers(cells: Row, front: FrontName | None = None) -> set[str]:
    """The different answers in a row, or in that front's part of it."""
    return {cell for (_, by), cell in cells.items() if front in (None, by)}
