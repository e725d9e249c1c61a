"""Runs that a message begins, held open by the scripted model for as long as a case needs them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2

from .case import becomes
from .model import Reply, Say, Talk
from .subject import Subject

_UNDER_WAY = (run_pb2.RUN_STATE_WORKING, run_pb2.RUN_STATE_PAUSED)


@dataclass(frozen=True, slots=True)
class Held:
    """A run that waits for the model, and what it says to it."""

    run_id: str
    talk: Talk


def has_ended(run: run_pb2.Run) -> bool:
    """Whether it will not change any more."""
    return run.state not in _UNDER_WAY


def name_of(state: run_pb2.RunState.ValueType) -> str:
    """WORKING, PAUSED, …"""
    return run_pb2.RunState.Name(state).removeprefix("RUN_STATE_")


def request(talk: Talk, *, wait: float = 0.0, **fields: object) -> pb.SendMessageRequest:
    """A message that the script knows."""
    text = f"Do as the script says. {talk.word}"
    made = pb.SendMessageRequest(text=text, **fields)  # type: ignore[arg-type]
    if wait:
        made.wait.FromTimedelta(timedelta(seconds=wait))
    return made


async def send(agent: Subject, talk: Talk, *, wait: float = 8.0) -> run_pb2.Run:
    """The run that the message begins, at its end if that comes in time. SkippedError."""
    agent.needs_messages()
    return (await (await agent.steer()).SendMessage(request(talk, wait=wait))).run


@asynccontextmanager
async def holding(agent: Subject, *replies: Reply) -> AsyncIterator[Held]:
    """A run whose first call of the model is held; it is answered when the block ends at the latest, and the
    run is waited for. SkippedError."""
    talk = agent.needs_model().script(*(replies or (Say(),)), hold=(1,))
    run = await send(agent, talk, wait=0)
    try:
        await becomes(lambda: talk.requests, "the message did not reach the model")
        yield Held(run.id, talk)
    finally:
        talk.release()
    await ended(agent, run.id)


async def ended(agent: Subject, run_id: str, *, seconds: float = 8.0) -> run_pb2.Run:
    """The run once it has ended. BrokenError."""

    async def look() -> run_pb2.Run | None:
        run = await agent.run(run_id)
        return run if has_ended(run) else None

    found: run_pb2.Run = await becomes(look, f"run {run_id} does not end", seconds=seconds)
    return found
