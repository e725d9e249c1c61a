"""More and more items that are ready: what a claim takes must not depend on how many there are."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

import uvloop

from ..channel import Target
from ..server import Engine, Server
from .crew import Crew, crew
from .database import administrator, item_bytes
from .footprint import memory, own
from .line import Line, at_most
from .place import Place

_BATCH = 100
_TURNS = 24
_SECONDS = 600.0
_FILLERS = 4
_WARM_CALLS = 10
_FLAT = 1.2


@dataclass(frozen=True)
class Sizes:
    """Ready items, ascending, and how many calls are timed at each depth."""

    depths: tuple[int, ...]
    calls: int


FULL = Sizes(depths=(10_000, 100_000, 1_000_000, 3_000_000), calls=240)
QUICK = Sizes(depths=(1000, 5000, 20_000), calls=48)


@dataclass
class _Times:
    claim: list[float] = field(default_factory=list)
    ack: list[float] = field(default_factory=list)

    @property
    def claim_ms(self) -> float:
        return 1000 * statistics.median(self.claim)

    @property
    def ack_ms(self) -> float:
        return 1000 * statistics.median(self.ack)

    def __str__(self) -> str:
        return f"claim {self.claim_ms:.2f} ms, ack {self.ack_ms:.2f} ms"


@dataclass(frozen=True)
class _Depth:
    items: int
    deep: _Times
    shallow: _Times
    cost_us: tuple[float, float]  # of an item claimed, acked and submitted anew: server, PostgreSQL
    filled_per_second: float
    bytes_per_item: float  # of those added last: resident (memory), on disk (postgres)

    @property
    def ratio(self) -> float:
        """Of the time that a claim and an ack take, to the time they took beside it at the least depth."""
        return (self.deep.claim_ms + self.deep.ack_ms) / (self.shallow.claim_ms + self.shallow.ack_ms)


def measure(place: Place, engine: Engine, sizes: Sizes) -> Iterator[Line]:
    """One client claims and acks 100 at a time, in turn at a server whose backlog grows and at a twin that
    keeps the first depth; what was taken is replaced. The first depth against its twin shows the noise.
    """
    with ExitStack() as stack:
        deep = stack.enter_context(place.server(engine))
        shallow = stack.enter_context(place.server(engine))
        depths: list[_Depth] = []
        wrong = uvloop.run(_climb(place, engine, sizes, deep, shallow, depths))
    for depth in depths:
        unit = "on disk" if engine is Engine.POSTGRES else "resident"
        yield Line(
            name=f"backlog of {depth.items:,} ready items, Claim(100) + Ack",
            store=engine.value,
            figure=f"x{depth.ratio:.2f}: {depth.deep}",
            limits=(at_most(f"x{_FLAT:g}", depth.ratio, _FLAT),),
            cost=" + ".join(f"{cost:.0f}" for cost in depth.cost_us if cost) + " µs/item",
            control=f"{depth.shallow} at {sizes.depths[0]:,}",
            notes=(f"filled at {depth.filled_per_second:,.0f}/s; {depth.bytes_per_item:,.0f} B/item {unit}",),
            violations=tuple(wrong) if depth is depths[-1] else (),
            values={
                "items": depth.items,
                "ratio": depth.ratio,
                "claim_ms": depth.deep.claim_ms,
                "ack_ms": depth.deep.ack_ms,
                "shallow_claim_ms": depth.shallow.claim_ms,
                "shallow_ack_ms": depth.shallow.ack_ms,
                "filled_per_second": depth.filled_per_second,
                "bytes_per_item": depth.bytes_per_item,
            },
        )


async def _climb(
    place: Place,
    engine: Engine,
    sizes: Sizes,
    deep: tuple[Target, Server],
    shallow: tuple[Target, Server],
    depths: list[_Depth],
) -> list[str]:
    async with AsyncExitStack() as stack:
        growing = await stack.enter_async_context(crew(deep[0], _FILLERS, _SECONDS))
        twin = await stack.enter_async_context(crew(shallow[0], _FILLERS, _SECONDS))
        await twin.fill(sizes.depths[0])
        taken = _taken(engine, deep[1])
        filled = 0
        for items in sizes.depths:
            seconds = await growing.fill(items - filled)
            rate = (items - filled) / seconds
            per_item = (_taken(engine, deep[1]) - taken) / (items - filled)
            filled, taken = items, _taken(engine, deep[1])
            for each in (growing, twin):
                await _calls(each, _Times(), _WARM_CALLS)
            times, theirs = _Times(), _Times()
            server = database = 0.0
            for _ in range(_TURNS):
                before = deep[1].cost()
                await _calls(growing, times, sizes.calls // _TURNS)
                after = deep[1].cost()
                server += after.server.cpu_seconds - before.server.cpu_seconds
                database += after.database.cpu_seconds - before.database.cpu_seconds
                await _calls(twin, theirs, sizes.calls // _TURNS)
            moved = sizes.calls // _TURNS * _TURNS * _BATCH / 1e6
            depth = _Depth(items, times, theirs, (server / moved, database / moved), rate, per_item)
            depths.append(depth)
            place.say(f"  {items:,} ready: x{depth.ratio:.2f}, {times}; filled at {rate:,.0f}/s")
        return [*await growing.wrong_with_backlog(), *await twin.wrong_with_backlog()]


async def _calls(work: Crew, times: _Times, count: int) -> None:
    verbs = work.verbs[0]
    for _ in range(count):
        began = time.perf_counter()
        held = await verbs.claim(_BATCH)
        claimed = time.perf_counter()
        await verbs.ack(held, 0)
        times.ack.append(time.perf_counter() - claimed)
        times.claim.append(claimed - began)
        await work.fill(len(held), _BATCH)


def _taken(engine: Engine, server: Server) -> float:
    if engine is Engine.MEMORY:
        return memory(own(server)).resident * (1 << 20)
    with administrator(server) as database:
        return item_bytes(database)
