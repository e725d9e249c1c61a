"""REACT: a resource that changes begins a run that is told what it is now."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentctl.agent.v1 import agent_service_pb2 as pb

from ..case import Group, becomes, demand, never
from ..model import Say, Talk
from ..subject import Subject
from ..tools import Tools
from ..world import World


@asynccontextmanager
async def _only_launched(world: World) -> AsyncIterator[World]:
    await world.with_tools()
    yield world


GROUP = Group("reactive", _only_launched)


@asynccontextmanager
async def _reacting(world: World, talk: Talk) -> AsyncIterator[tuple[Subject, Tools, str]]:
    """An agent that watches a resource, and has come to rest: what it makes of the start is behind it."""
    tools = await world.with_tools()
    uri = f"conformance://changes/{uuid.uuid4().hex[:8]}"
    tools.contents[uri] = "as it was at the start"
    environment = world.settings(
        "reactive",
        AGENT_SUBSCRIBE=json.dumps([uri]),
        AGENT_INSTRUCTION=f"Do as the script says. {talk.word}",
        **world.tool_setting(tools.endpoint),
    )
    async with world.agent(environment) as agent:
        try:
            await becomes(lambda: tools.listeners[uri] > 0, f"nobody subscribes to {uri}", seconds=15)
            yield agent, tools, uri
        finally:
            talk.release()


async def _rests(agent: Subject) -> None:
    async def resting() -> bool:
        status = await agent.status()
        return status.ready and not status.runs and not status.pending_events

    await becomes(resting, "it does not come to rest", seconds=15)


def _was_told(talk: Talk, content: str) -> bool:
    return any(content in json.dumps(request) for request in talk.requests)


@GROUP.case("REACT-01", "a change begins a run, and the run is told the new content", seconds=50)
async def _reacts(world: World) -> None:
    talk = world.model.script(Say())
    async with _reacting(world, talk) as (agent, tools, uri):
        demand(uri in agent.manifest.surfaces.subscriptions, "its manifest does not name the subscription")
        await _rests(agent)
        await tools.change(uri, "changed-to-the-first")
        await becomes(
            lambda: _was_told(talk, "changed-to-the-first"), "no run is told the new content", seconds=10
        )


@GROUP.case("REACT-02", "changes during a run become one run after it, with the last content", seconds=50)
async def _coalesces(world: World) -> None:
    talk = world.model.script(Say(), hold=(1, 2))
    async with _reacting(world, talk) as (agent, tools, uri):
        await tools.change(uri, "changed-before")
        await becomes(lambda: talk.requests, "no run begins", seconds=10)
        for n in range(5):
            await tools.change(uri, f"changed-during-{n}")

        async def waits() -> bool:
            return (await agent.status()).pending_events > 0

        await becomes(waits, "changes during a run are not told as pending_events", seconds=5)
        before = len(talk.requests)
        talk.release()
        await becomes(
            lambda: _was_told(talk, "changed-during-4"), "no run is told the last content", seconds=10
        )
        await _rests(agent)
        runs = len(talk.requests) - before
        demand(runs <= 2, f"5 changes during a run became {runs} runs")


@GROUP.case("REACT-03", "after the server was away it subscribes again, and misses no change", seconds=90)
async def _reconnects(world: World) -> None:
    talk = world.model.script(Say())
    async with _reacting(world, talk) as (agent, tools, uri):
        await _rests(agent)
        await tools.stop()
        tools.contents[uri] = "changed-while-away"
        await tools.start()
        await becomes(lambda: tools.listeners[uri] > 0, "it does not subscribe again", seconds=40)
        await becomes(
            lambda: _was_told(talk, "changed-while-away"), "what changed meanwhile is not told", seconds=15
        )
        await tools.change(uri, "changed-afterwards")
        await becomes(
            lambda: _was_told(talk, "changed-afterwards"), "a later change begins no run", seconds=15
        )


@GROUP.case("REACT-04", "no run begins while the agent is paused; the change is not lost", seconds=50)
async def _is_paused(world: World) -> None:
    talk = world.model.script(Say())
    async with _reacting(world, talk) as (agent, tools, uri):
        agent.needs("Pause")
        await _rests(agent)
        stub = await agent.steer()
        await stub.Pause(pb.PauseRequest())
        await tools.change(uri, "changed-in-the-pause")
        await never(lambda: _was_told(talk, "changed-in-the-pause"), "a run begins while paused", seconds=1.0)
        await stub.Resume(pb.ResumeRequest())
        await becomes(
            lambda: _was_told(talk, "changed-in-the-pause"), "after Resume no run begins", seconds=10
        )
