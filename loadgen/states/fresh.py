"""A table that was loaded a moment ago, of which PostgreSQL's planner knows nothing yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

import uvloop

from ..channel import Target
from ..server import Engine, Server
from .crew import crew
from .database import administrator, analysed_tables
from .line import Line, loss_limit, loss_text
from .place import Place


@dataclass(frozen=True)
class Sizes:
    """Items that are loaded and then worked off, in so many turns."""

    items: int
    turns: int


FULL = Sizes(items=300_000, turns=30)
QUICK = Sizes(items=6000, turns=3)
_CLIENTS = 16
_SECONDS = 240.0


@dataclass(frozen=True)
class _Found:
    loading: float  # seconds
    fresh: float  # seconds of work
    analysed: float
    wrong: tuple[str, ...]


def measure(place: Place, sizes: Sizes) -> Iterator[Line]:
    """Loads two empty databases with autovacuum off, analyses one of them, and then claims and acks
    everything in turn here and there, 100 an RPC.
    """
    with ExitStack() as stack:
        fresh, analysed = (stack.enter_context(place.server(Engine.POSTGRES)) for _ in range(2))
        found = uvloop.run(_run(place, fresh, analysed, sizes))
    loss = 1 - found.analysed / found.fresh
    yield Line(
        name=f"freshly loaded, never analysed table, {sizes.items:,} items",
        store="postgres",
        figure=f"{loss_text(loss)}: {sizes.items / found.fresh:,.0f}/s claimed and acked",
        limits=(loss_limit(loss),),
        control=f"{sizes.items / found.analysed:,.0f}/s analysed",
        notes=(f"loaded at {sizes.items / found.loading:,.0f}/s; no table was ever analysed: checked",),
        violations=found.wrong,
        values={
            "loss": loss,
            "analysed": sizes.items / found.analysed,
            "never_analysed": sizes.items / found.fresh,
        },
    )


async def _run(
    place: Place, fresh: tuple[Target, Server], analysed: tuple[Target, Server], sizes: Sizes
) -> _Found:
    async with AsyncExitStack() as stack:
        databases = [stack.enter_context(administrator(server)) for _, server in (fresh, analysed)]
        for database in databases:
            database.execute("alter system set autovacuum = off")
            database.execute("select pg_reload_conf()")
        crews = [
            await stack.enter_async_context(crew(target, _CLIENTS, _SECONDS))
            for target, _ in (fresh, analysed)
        ]
        loading = [await each.fill(sizes.items) for each in crews]
        databases[1].execute("analyze")
        place.say(f"  loaded {sizes.items:,} items in {loading[0]:.1f} s, and again in {loading[1]:.1f} s")
        working = [0.0, 0.0]
        for turn in range(sizes.turns):
            for side in (0, 1) if turn % 2 else (1, 0):
                working[side] += await crews[side].drain(sizes.items // sizes.turns)
        wrong = [line for each in crews for line in await each.wrong_when_empty()]
        known = [analysed_tables(database) for database in databases]
    if known[0]:
        wrong.append(f"{known[0]} tables were analysed or vacuumed")
    if not known[1]:
        wrong.append("the twin was not analysed")
    return _Found(loading[0], working[0], working[1], tuple(wrong))
