"""What a mode asks of the engine, and what it gets: the border between when to run and how to run."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from libs.contract.run import MAX_RESULT_BYTES, Trigger, Usage
from libs.contract.statuses import Status
from libs.contract.text import head

MAX_ERROR_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Order:
    """One run to be done."""

    id: str
    """Told to tools, so that they can tell a repetition."""
    trigger: Trigger
    instruction: str
    """What to do: the system's message."""
    text: str = ""
    """What to do it with: the user's message. Empty: the instruction says all."""
    context_id: str = ""
    depth: int = 0
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. Without usage: the `Live` of the run has counted it. Models and tools write its texts,
    so they are cut to their bounds and made fit for the wire."""

    status: Status
    text: str = ""
    """The answer; with `too_large` the part of it that there is."""
    error: str = ""
    """Why there is none, for people; no content of prompts or answers."""
    kind: str = ""
    """Of a failure, a word of `libs.contract.metrics.MODEL_ERRORS`, or empty."""
    is_ours: bool = False
    """The fault is the agent's own (its key, its model's name): no other run would fare better."""
    passes: bool = False
    """Another try, later, may do better."""
    retry_after: timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", head(self.text, MAX_RESULT_BYTES))
        object.__setattr__(self, "error", head(self.error, MAX_ERROR_BYTES))


class Live(Protocol):
    """A run under way, as the engine sees it. Cancelling it cancels the task that the engine runs in."""

    async def step(self, activity: str) -> None:
        """Before each call of a model or tool, and each step of a workflow: holds while the run is paused."""

    def spend(self, usage: Usage) -> None:
        """Adds to what the run has used."""

    @property
    def usage(self) -> Usage:
        """What it has used."""

    def tell(self, name: str, **fields: object) -> None:
        """An event of this run (`libs.contract.events`)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of every run. None: no limit."""

    max_steps: int | None = 50
    max_tokens: int | None = None
    deadline: timedelta | None = None
    max_depth: int = 4
    tool_timeout: timedelta = timedelta(seconds=60)
    max_tool_bytes: int = 256 * 1024
    max_same_calls: int = 5
    tries: int = field(default=3)
    """Calls of the model for one turn, if it fails in a way that may pass; 1 where a queue retries."""
