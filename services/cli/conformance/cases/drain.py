"""DRAIN: by SIGTERM or by the verb, it finishes what it can in time, gives the rest back, and ends.

An agent that stays ends with 0; a process that lives for one run with the code of what became of it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from agentctl.agent.v1 import agent_service_pb2 as pb
from libs.contract.statuses import Status, exit_code
from libs.errors import MeshError, PreconditionError, UnavailableError
from libs.exits import Exit

from ..case import Group, becomes, demand
from ..launching import Process
from ..model import Say, Talk, Use
from ..sending import send
from ..subject import Subject, is_refused, refusal
from ..world import DRAIN_SECONDS, World
from .exits import launching

GROUP = Group("drain", launching)

_UNFINISHED = exit_code(Status.DRAINED)
_SLACK = 5.0  # to stop servers and a process


@asynccontextmanager
async def _busy(world: World, *, hold: int = 1) -> AsyncIterator[tuple[Subject, Process, Talk]]:
    """An agent in mode once whose call of the model of this number is held."""
    talk = world.model.script(Use(), Say("finished"), hold=(hold,))
    environment = world.settings("once", AGENT_INSTRUCTION=f"Do as the script says. {talk.word}")
    async with world.agent(environment) as agent:
        assert agent.process is not None
        await becomes(lambda: len(talk.requests) >= hold, "the model is not asked", seconds=10)
        try:
            yield agent, agent.process, talk
        finally:
            talk.release()


async def _drains(agent: Subject) -> bool:
    return (await agent.status()).draining


async def _ends(process: Process, *, within: float, code: int = Exit.OK) -> None:
    began = time.monotonic()
    found = await process.ended(within)
    took = time.monotonic() - began
    demand(found == code, f"exit code {found} after {took:.1f}s, it has to be {code}{process.last_words()}")


@GROUP.case("DRAIN-01", "SIGTERM lets a run that ends in time end, and the process ends with 0", seconds=40)
async def _term_finishes(world: World) -> None:
    async with _busy(world) as (agent, process, talk):
        process.terminate()
        await becomes(partial(_drains, agent), "after SIGTERM its status does not say that it drains")
        talk.release()
        await _ends(process, within=DRAIN_SECONDS + _SLACK)
        demand(
            "finished" in process.stdout,
            f"the run did not come to its end: stdout has {process.stdout[:200]!r}",
        )


@GROUP.case(
    "DRAIN-02",
    "a run that takes longer than AGENT_DRAIN_TIMEOUT after SIGTERM is ended then, as drained: 1",
    seconds=40,
)
async def _term_interrupts(world: World) -> None:
    async with _busy(world) as (_, process, talk):
        began = time.monotonic()
        process.terminate()
        await _ends(process, within=DRAIN_SECONDS + _SLACK, code=_UNFINISHED)
        took = time.monotonic() - began
        demand(
            took >= DRAIN_SECONDS - 1,
            f"it ended after {took:.1f}s, though the run had {DRAIN_SECONDS:g}s to finish",
        )
        demand(len(talk.answered) == 0, "the model had answered; the case says nothing")


@GROUP.case("DRAIN-03", "Drain does as SIGTERM, within its own deadline, and tells what goes on", seconds=40)
async def _verb_drains(world: World) -> None:
    async with _busy(world) as (agent, process, _):
        agent.needs("Drain")
        said = await (await agent.steer()).Drain(_drain(1.0))
        demand(said.run_count == 1, f"run_count is {said.run_count} beside one run")
        left = said.remaining.ToTimedelta().total_seconds()
        demand(0 < left <= 1.0, f"remaining is {left:g}s, asked for was 1s")
        await _ends(process, within=1.0 + _SLACK, code=_UNFINISHED)


@GROUP.case(
    "DRAIN-04",
    "Drain is at most AGENT_DRAIN_TIMEOUT; asked again it is the same drain, perhaps a shorter one",
    seconds=40,
)
async def _is_bounded(world: World) -> None:
    async with _busy(world) as (agent, process, talk):
        agent.needs("Drain")
        stub = await agent.steer()
        first = (await stub.Drain(_drain(600.0))).remaining.ToTimedelta()
        demand(
            first.total_seconds() <= DRAIN_SECONDS,
            f"remaining is {first}, AGENT_DRAIN_TIMEOUT is {DRAIN_SECONDS:g}s",
        )
        second = (await stub.Drain(_drain(600.0))).remaining.ToTimedelta()
        demand(second <= first, f"asked again, remaining grew from {first} to {second}")
        third = (await stub.Drain(_drain(0.8))).remaining.ToTimedelta()
        demand(third.total_seconds() <= 0.8, f"asked to be done in 0.8s, remaining is {third}")
        talk.release()
        await _ends(process, within=DRAIN_SECONDS + _SLACK)


@GROUP.case(
    "DRAIN-05",
    "during a drain it is not ready, takes nothing, and LameDuck(false) is FAILED_PRECONDITION",
    seconds=40,
)
async def _is_one_way(world: World) -> None:
    async with _busy(world) as (agent, process, talk):
        agent.needs("Drain")
        stub = await agent.steer()
        await stub.Drain(pb.DrainRequest())
        status = await agent.status()
        demand(status.draining, "its status says that it does not drain")
        demand(not status.ready, "it drains, and its status says that it is ready")
        if agent.manifest.surfaces.messages:
            message = pb.SendMessageRequest(text="conformance")
            await is_refused(stub.SendMessage(message), UnavailableError, what="SendMessage during a drain")
        if "LameDuck" in agent.manifest.surfaces.verbs:
            back = stub.LameDuck(pb.LameDuckRequest(enabled=False))
            await is_refused(back, PreconditionError, what="LameDuck(false) during a drain")
        talk.release()
        await _ends(process, within=DRAIN_SECONDS + _SLACK)


@GROUP.case("DRAIN-06", "an idle agent that stays drains at once", seconds=60)
async def _idle_drains(world: World) -> None:
    async with world.standing() as agent:
        agent.needs("Drain")
        assert agent.process is not None
        error: MeshError | None = await refusal((await agent.steer()).Drain(pb.DrainRequest()))
        demand(error is None, f"Drain ends with {error}")
        await _ends(agent.process, within=_SLACK)


@GROUP.case(
    "DRAIN-07",
    "an agent that stays ends a run that takes longer than the deadline, and ends with 0",
    seconds=60,
)
async def _interrupts(world: World) -> None:
    async with world.standing() as agent:
        agent.needs("Drain")
        assert agent.process is not None
        talk = world.model.script(Say(), hold=(1,))
        try:
            await send(agent, talk, wait=0)
            await becomes(lambda: talk.requests, "the message does not reach the model")
            await (await agent.steer()).Drain(_drain(0.5))
            await _ends(agent.process, within=0.5 + _SLACK)
        finally:
            talk.release()


def _drain(seconds: float) -> pb.DrainRequest:
    made = pb.DrainRequest()
    made.deadline.FromTimedelta(timedelta(seconds=seconds))
    return made
