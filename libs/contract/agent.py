"""The promises of an agent, whoever wrote it. `servicer` serves them; `agentctl conformance` tries them."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from .events import Ring
from .manifest import Manifest
from .run import Run, Usage


@dataclass(frozen=True, slots=True)
class Condition:
    """What an agent is doing at one moment."""

    ready: bool
    not_ready_reason: str = ""
    paused: bool = False
    lame_duck: bool = False
    draining: bool = False
    uptime: timedelta = timedelta(0)
    runs: Sequence[Run] = ()
    """Under way, oldest first."""
    free_slots: int = 0
    ended_runs: Mapping[str, int] = field(default_factory=dict)
    """By status."""
    usage: Usage = field(default_factory=Usage)
    pending_events: int = 0


@dataclass(frozen=True, slots=True)
class Draining:
    """What a drain begins with."""

    run_count: int
    remaining: timedelta


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody asks. `run_id` and `context_id` may be empty: then the agent makes them."""

    text: str
    run_id: str = ""
    context_id: str = ""
    depth: int = 0


class Agent(abc.ABC):
    """An agent as the plane steers it. The servicer bounds requests; what is here is meaning.

    A run's id that is not known is NotFoundError. Whoever waits here may be cancelled: what it asked for
    stands.
    """

    events: Ring

    @abc.abstractmethod
    def manifest(self) -> Manifest:
        """What it is. The same while the process lives."""

    @abc.abstractmethod
    async def condition(self) -> Condition:
        """What it is doing now. Raises nothing: an agent that cannot tell is not ready, and says why."""

    @abc.abstractmethod
    async def drain(self, deadline: timedelta | None) -> Draining:
        """Begin nothing new, finish within the deadline (at most its own), give the rest back, exit 0. One
        way; the second time says how it stands, and may only shorten it."""

    @abc.abstractmethod
    async def lame_duck(self, enabled: bool) -> Condition:
        """Not ready and nothing new, or ready again. PreconditionError during a drain."""

    @abc.abstractmethod
    async def cancel(self, run_id: str, reason: str) -> Sequence[Run]:
        """End the run, or all for "", at once; returns when they have ended."""

    @abc.abstractmethod
    async def pause(self, run_id: str, wait: timedelta) -> Sequence[Run]:
        """Hold the run, or for "" the whole agent, at its next step; returns when the runs hold or have
        ended, or when `wait` is over. PreconditionError during a drain."""

    @abc.abstractmethod
    async def resume(self, run_id: str) -> Sequence[Run]:
        """Let the run, or for "" everything, go on."""

    @abc.abstractmethod
    async def send(self, message: Message) -> Run:
        """Begin a run for a message. The same message under the same id is the same run.
        UnimplementedError if it takes none, ExistsError for another message with a known id,
        ExhaustedError if all slots are taken or the depth is too great, UnavailableError while nothing
        new is begun."""

    @abc.abstractmethod
    def run(self, run_id: str) -> Run:
        """A run under way, or one of the last that ended."""

    @abc.abstractmethod
    def runs(self) -> Sequence[Run]:
        """Those that `run` knows, newest first."""

    @abc.abstractmethod
    def watch(self, run_id: str) -> AsyncIterator[Run]:
        """The run now and after each change, up to its last state. A slow reader sees fewer."""
