"""Thousands of claims that wait for work: what they cost while there is none, and that each is answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import uvloop
from google.protobuf.duration_pb2 import Duration

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc

from ..channel import Target, connected
from ..loops import Held
from ..server import Engine, Server
from .crew import Crew, crew
from .footprint import Idle, database, memory, own, watch
from .line import Line, at_most
from .place import Place

_PER_CONNECTION = 200  # a front carries at most 256 calls of one
_WAIT = 60  # seconds; the longest there is
_LEAST_SECONDS = 10.0  # to be watched, for percents from ticks of 10 ms
_LIMIT = 150.0
_MOST_PERCENT = 1.0
_MOST_KIB = 30.0


@dataclass(frozen=True)
class Sizes:
    """How many claims, and for how long they are watched (with them parked, and without)."""

    claims: int
    seconds: float


FULL = Sizes(claims=2000, seconds=15.0)
QUICK = Sizes(claims=200, seconds=2.0)


@dataclass(frozen=True)
class _Found:
    before: list[Idle]  # server, PostgreSQL
    while_parked: list[Idle]
    kib_each: float
    drain_seconds: float
    wrong: tuple[str, ...]


def measure(place: Place, engine: Engine, sizes: Sizes) -> Iterator[Line]:
    """Parks claims of one holder, watches the server, and then submits as many items."""
    with place.server(engine) as (target, server):
        found = uvloop.run(_park(place, target, server, sizes))
    percent = found.while_parked[0].percent
    shown = f"{percent:.2f} % of a core, {found.kib_each:.1f} KiB each"
    limits = [at_most(f"{_MOST_KIB:g} KiB each", found.kib_each, _MOST_KIB)]
    if sizes.seconds >= _LEAST_SECONDS:
        limits.insert(0, at_most(f"{_MOST_PERCENT:g} % of a core", percent, _MOST_PERCENT))
    postgres = f", PostgreSQL {found.while_parked[1].percent:.2f} %" if engine is Engine.POSTGRES else ""
    yield Line(
        name=f"{sizes.claims:,} parked claims",
        store=engine.value,
        figure=f"{shown}{postgres}",
        limits=tuple(limits),
        control=f"{found.before[0].percent:.2f} % with none",
        notes=(
            f"{sizes.claims:,} items submitted: all answered within {found.drain_seconds:.2f} s; "
            f"server {found.while_parked[0].memory} while they were parked (their connections included)",
        ),
        violations=found.wrong,
        values={
            "percent": percent,
            "percent_before": found.before[0].percent,
            "database_percent": found.while_parked[1].percent,
            "database_percent_before": found.before[1].percent,
            "kib_each": found.kib_each,
            "drain_seconds": found.drain_seconds,
        },
    )


async def _park(place: Place, target: Target, server: Server, sizes: Sizes) -> _Found:
    groups = (partial(own, server), partial(database, server))
    async with AsyncExitStack() as stack:
        work = await stack.enter_async_context(crew(target, 2, _LIMIT))
        await work.fill(2000)  # so that nothing is done for the first time later on
        await work.drain(2000)
        before = await asyncio.to_thread(watch, groups, sizes.seconds)
        stubs = [
            pb_grpc.CoordinationServiceStub(await stack.enter_async_context(connected(target)))
            for _ in range(-(-sizes.claims // _PER_CONNECTION))
        ]
        resident = memory(own(server)).resident
        claims = [
            asyncio.create_task(_claim(stub, work))
            for stub in itertools.islice(itertools.cycle(stubs), sizes.claims)
        ]
        while (await work.queue()).parked_claims_count < sizes.claims:
            if early := [claim for claim in claims if claim.done()]:
                await early[0]
                work.tally.violations.note("a claim did not wait", count=len(early))
                break
            await asyncio.sleep(0.1)
        grown = memory(own(server)).resident - resident
        place.say(f"  {sizes.claims:,} parked, {1024 * grown / sizes.claims:.1f} KiB each")
        parked = await asyncio.to_thread(watch, groups, sizes.seconds)
        place.say(f"  {parked[0].percent:.2f} % of a core, {before[0].percent:.2f} % with none parked")
        began = time.monotonic()
        await work.fill(sizes.claims)
        answers = await asyncio.gather(*claims)
        drained = time.monotonic() - began
        for held in answers:
            if len(held) != 1:
                work.tally.violations.note("a parked claim was not answered with one item", str(len(held)))
            await work.verbs[0].ack(held, 0)
        wrong = await work.wrong_when_empty()
    return _Found(before, parked, 1024 * grown / sizes.claims, drained, tuple(wrong))


async def _claim(stub: pb_grpc.CoordinationServiceAsyncStub, work: Crew) -> list[Held]:
    """Waits for one item; those of ours that came."""
    request = pb.ClaimRequest(queues=[work.step.queue], max_items=1, wait=Duration(seconds=_WAIT))
    answer = await stub.Claim(request, timeout=_WAIT + 30)
    return [
        Held(grant.item_id, grant.token)
        for grant in answer.grants
        if grant.attempt == 1 and work.tally.ledger.is_ours(grant.item_id, grant.payload)
    ]
