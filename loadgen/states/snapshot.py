"""A transaction that somebody forgot: while its snapshot is held, no dead row version can be removed."""

from __future__ import annotations

import asyncio
import secrets
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ..audit import audit
from ..channel import Target, reach
from ..child import ServerError
from ..generator import Generators
from ..ledger import new_tag
from ..row import Row, row_of
from ..server import Cost, Engine, Server
from ..tally import Mode, Step
from .database import administrator, dead_rows, holds_snapshot
from .line import Line, loss_limit, loss_text
from .place import Place

_PROCESSES = 2


@dataclass(frozen=True)
class Sizes:
    """Items that pass while the snapshot is held, in windows of so many seconds, and the most of these."""

    items: int
    seconds: float
    windows: int


FULL = Sizes(items=180_000, seconds=2.0, windows=20)
QUICK = Sizes(items=10_000, seconds=1.0, windows=4)


@dataclass(frozen=True)
class _Bench:
    """A server and what drives it."""

    target: Target
    server: Server
    generators: Generators

    def run(self, seconds: float) -> tuple[Row, int]:
        """One window; its figures, and how many items went through in all."""
        step = _step(seconds)
        costs: list[Cost] = []
        tallies = self.generators.run(
            step, mark=lambda: costs.append(self.server.cost()), progress=lambda *_: None
        )
        found = asyncio.run(audit(self.target, step, tallies))
        passed = sum(sum(tally.ledger.accepted) for tally in tallies)
        return row_of("postgres", step, tallies, costs, found), passed


def measure(place: Place, sizes: Sizes) -> Iterator[Line]:
    """Batches of 100 by 16 clients, in turn at a server where a snapshot is held that is older than all of
    them, and at a twin where none is.
    """
    held: list[Row] = []
    without: list[Row] = []
    passed = 0
    with ExitStack() as stack:
        bench, twin = (_open(stack, place) for _ in range(2))
        for each in (bench, twin):
            each.run(sizes.seconds)
        dead = stack.enter_context(_snapshot(bench.server))
        while passed < sizes.items and len(held) < sizes.windows:
            for each in (bench, twin) if len(held) % 2 else (twin, bench):
                row, count = each.run(sizes.seconds)
                (held if each is bench else without).append(row)
                passed += count if each is bench else 0
            place.say(
                f"  {passed:,} items: {held[-1].cycles_per_second:,.0f}/s with, "
                f"{without[-1].cycles_per_second:,.0f}/s without"
            )
        note = f"{passed:,} items in {len(held)} windows while it was held; {dead():,} dead rows at the end"
    if passed < sizes.items:
        note += f" (fewer than {sizes.items:,} items: this machine was too slow)"
    yield _line(held, without, note)


def _open(stack: ExitStack, place: Place) -> _Bench:
    target, server = stack.enter_context(place.server(Engine.POSTGRES))
    asyncio.run(reach(target))
    return _Bench(target, server, stack.enter_context(Generators(target, _PROCESSES)))


@contextmanager
def _snapshot(server: Server) -> Iterator[Callable[[], int]]:
    """A transaction that sees the database as it is now, and does nothing. Asks, while it is held, how many
    dead rows there are: ServerError if it is not held any more.
    """
    with administrator(server) as holder, administrator(server) as watcher, holder.transaction():
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 1")  # takes it

        def dead() -> int:
            if not holds_snapshot(watcher, holder):
                raise ServerError("the snapshot was given up before the end")
            return dead_rows(watcher)

        yield dead


def _line(held: list[Row], without: list[Row], note: str) -> Line:
    rates = [[row.cycles_per_second for row in rows] for rows in (held, without)]
    having, lacking = map(statistics.fmean, rates)
    loss = 1 - having / lacking if lacking else 1.0
    last = 1 - rates[0][-1] / rates[1][-1] if rates[1][-1] else 1.0
    return Line(
        name="held snapshot, batch 100 x 16 clients",
        store="postgres",
        figure=f"{loss_text(loss)}: {having:,.0f}/s",
        limits=(loss_limit(loss),),
        cost=_cost(held),
        control=f"{lacking:,.0f}/s, {_cost(without)} without",
        notes=(f"{note}; last window: {loss_text(last)}",),
        violations=tuple(line for row in (*held, *without) for line in row.violations),
        values={"loss": loss, "with": rates[0], "without": rates[1]},
    )


def _cost(rows: list[Row]) -> str:
    """Of an item, at the server and at PostgreSQL."""
    server = statistics.fmean(row.server_us_per_cycle or 0 for row in rows)
    database = statistics.fmean(row.database_us_per_cycle or 0 for row in rows)
    return f"{server:.0f} + {database:.0f} µs/item"


def _step(seconds: float) -> Step:
    step = Step(
        Mode.BATCH, clients=16, connections=16, processes=_PROCESSES, batch=100, warmup=0.2, duration=seconds
    )
    return replace(step, queue=f"load/snapshot-{secrets.token_hex(4)}", tag=new_tag())
