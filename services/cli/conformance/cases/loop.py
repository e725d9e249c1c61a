"""LOOP: a run, a rest, and again; what becomes of one run does not end the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentctl.agent.v1 import agent_service_pb2 as pb

from ..case import Group, becomes, demand, never
from ..model import Fail, Say, Talk
from ..subject import Subject
from ..world import World

_INTERVAL = 0.2


@asynccontextmanager
async def _only_launched(world: World) -> AsyncIterator[World]:
    world.needs_launch()
    yield world


GROUP = Group("loop", _only_launched)


@asynccontextmanager
async def _looping(world: World, talk: Talk) -> AsyncIterator[Subject]:
    environment = world.settings(
        "loop",
        AGENT_LOOP_INTERVAL=f"{int(_INTERVAL * 1000)}ms",
        AGENT_INSTRUCTION=f"Do as the script says. {talk.word}",
    )
    async with world.agent(environment) as agent:
        try:
            yield agent
        finally:
            talk.release()


@GROUP.case("LOOP-01", "it runs again and again, each time with the instruction", seconds=40)
async def _goes_on(world: World) -> None:
    talk = world.model.script(Say())
    async with _looping(world, talk) as agent:
        demand(agent.manifest.mode == "loop", f"its manifest says mode {agent.manifest.mode!r}")
        await becomes(lambda: len(talk.answered) >= 3, "the model is not asked 3 times", seconds=5)


@GROUP.case("LOOP-02", "a run that fails is not the end of the loop", seconds=40)
async def _survives_failure(world: World) -> None:
    talk = world.model.script(Fail(400, "refused by the script"), Say(refusal="no"), Say())
    async with _looping(world, talk):
        await becomes(lambda: len(talk.answered) >= 4, "after a failed run no other comes", seconds=5)


@GROUP.case("LOOP-03", "a cancelled run is not the end of the loop", seconds=40)
async def _survives_cancel(world: World) -> None:
    talk = world.model.script(Say(), hold=(1,))
    async with _looping(world, talk) as agent:
        agent.needs("Cancel")
        await becomes(lambda: talk.requests, "the model is not asked", seconds=10)
        await (await agent.steer()).Cancel(pb.CancelRequest(reason="enough"))
        await becomes(lambda: len(talk.answered) >= 2, "after a cancelled run no other comes", seconds=5)


@GROUP.case("LOOP-04", "no run begins while the agent is paused, and they go on after", seconds=40)
async def _is_paused(world: World) -> None:
    talk = world.model.script(Say())
    async with _looping(world, talk) as agent:
        agent.needs("Pause")
        stub = await agent.steer()
        await becomes(lambda: talk.answered, "the model is not asked", seconds=10)
        request = pb.PauseRequest()
        request.wait.FromSeconds(5)
        await stub.Pause(request)
        before = len(talk.requests)
        await never(
            lambda: len(talk.requests) > before,
            "a run begins while the agent is paused",
            seconds=5 * _INTERVAL,
        )
        await stub.Resume(pb.ResumeRequest())
        await becomes(lambda: len(talk.requests) > before, "after Resume no run begins", seconds=10)
