"""EVENT: what happens is told in order, numbered, in the contract's words, without content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from libs.contract.events import NAMES
from libs.errors import InvalidError, PreconditionError

from ..case import BrokenError, Group, SkippedError, demand
from ..model import Say, Use
from ..sending import send
from ..subject import Subject, is_refused
from ..world import World

_SECONDS = 6.0


@asynccontextmanager
async def _start(world: World) -> AsyncIterator[Subject]:
    async with world.standing() as agent:
        if not agent.manifest.surfaces.events:
            raise SkippedError("not offered: its manifest says that it tells no events")
        yield agent


GROUP = Group("events", _start)


async def _read(
    agent: Subject, count: int, *, after: int = 0, prefixes: tuple[str, ...] = (), until: str = ""
) -> list[pb.WatchEventsResponse]:
    """So many, or those up to and with the one of that name."""
    stub = await agent.look()
    asked = pb.WatchEventsRequest(after_sequence=after, name_prefixes=prefixes)
    found: list[pb.WatchEventsResponse] = []
    with anyio.move_on_after(_SECONDS):
        async for message in stub.WatchEvents(asked):
            found.append(message)
            if len(found) == count or message.event.name == until:
                return found
    told = ", ".join(each.event.name for each in found)
    raise BrokenError(
        f"{f'{until} is' if until else f'{count} events are'} not told within {_SECONDS:g}s; told: {told}"
    )


async def _of_run(agent: Subject) -> tuple[run_pb2.Run, list[pb.WatchEventsResponse]]:
    talk = agent.needs_model().script(Use(), Say("content of the answer"))
    before = (await _read(agent, 1))[0].event.sequence
    run = await send(agent, talk)
    found: list[pb.WatchEventsResponse] = []
    while True:
        part = await _read(agent, 256, after=found[-1].event.sequence if found else before, until="run.ended")
        found += part
        if part[-1].event.run_id == run.id:
            return run, found


@GROUP.case("EVENT-01", "sequence numbers grow by one from 1, and time does not go back")
async def _are_numbered(agent: Subject) -> None:
    first = (await _read(agent, 1))[0]
    demand(
        first.event.sequence == 1 + first.dropped_count,
        f"the first has sequence {first.event.sequence}, with {first.dropped_count} dropped before it",
    )
    last = (await _of_run(agent))[1][-1].event.sequence if agent.model else first.event.sequence
    events = [each.event for each in await _read(agent, last - first.dropped_count)]
    numbers = [each.sequence for each in events]
    demand(numbers == list(range(1 + first.dropped_count, last + 1)), f"the sequence is {numbers}")
    times = [each.at.ToTimedelta() for each in events]
    demand(times == sorted(times), "`at` goes back")


@GROUP.case("EVENT-02", "a run tells run.started, model.called and run.ended, in this order, with its id")
async def _are_in_order(agent: Subject) -> None:
    run, found = await _of_run(agent)
    names = [each.event.name for each in found if each.event.run_id == run.id]
    for name in ("run.started", "model.called", "run.ended"):
        demand(name in names, f"{name} is not told of the run; told: {', '.join(names)}")
    order = [names.index("run.started"), names.index("model.called"), names.index("run.ended")]
    demand(order == sorted(order), f"they are told in the order {', '.join(names)}")
    demand(
        names.count("model.called") == 2, f"the model was called 2 times, told: {names.count('model.called')}"
    )


@GROUP.case("EVENT-03", "names are the contract's, and no event holds prompts or answers")
async def _hold_no_content(agent: Subject) -> None:
    _, found = await _of_run(agent)
    unknown = {each.event.name for each in found} - set(NAMES)
    newer = agent.is_newer(agent.manifest.contract_version)
    demand(newer or not unknown, f"names that there are not: {', '.join(sorted(unknown))}")
    for each in found:
        said = str(each.event)
        demand("content of the answer" not in said and "conformance-" not in said,
               f"{each.event.name} holds content: {dict(each.event.fields)}")  # fmt: skip


@GROUP.case(
    "EVENT-04", "after_sequence and name_prefixes choose, and nothing counts as dropped that is there"
)
async def _are_chosen(agent: Subject) -> None:
    _, found = await _of_run(agent)
    last = found[-1].event.sequence
    after = found[0].event.sequence - 1
    chosen = await _read(agent, 256, after=after, prefixes=("run.",), until="run.ended")
    sequences = [each.event.sequence for each in chosen]
    demand(min(sequences) > after, f"after {after} it tells {min(sequences)}")
    demand(all(each.event.name.startswith("run.") for each in chosen), "it tells others than those asked for")
    demand(sequences[-1] <= last, f"it tells {sequences[-1]} of {last}")
    everything = await _read(agent, last)
    demand(
        not any(each.dropped_count for each in everything), "it counts events as dropped that are still there"
    )


@GROUP.case(
    "EVENT-05",
    "bad fields are INVALID_ARGUMENT by name, and a number that is yet to come FAILED_PRECONDITION",
)
async def _are_bounded(agent: Subject) -> None:
    for field, asked in {
        "name_prefixes": pb.WatchEventsRequest(name_prefixes=["run."] * 17),
        "after_sequence": pb.WatchEventsRequest(after_sequence=-1),
    }.items():
        await is_refused(
            _first(agent, asked), InvalidError, saying=field, what=f"WatchEvents with a bad {field}"
        )
    ahead = pb.WatchEventsRequest(after_sequence=2**40)
    await is_refused(_first(agent, ahead), PreconditionError, what="WatchEvents after an event to come")


async def _first(agent: Subject, asked: pb.WatchEventsRequest) -> object:
    async for message in (await agent.look()).WatchEvents(asked, timeout=5):
        return message
    return None
