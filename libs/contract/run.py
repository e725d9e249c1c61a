"""A run: one piece of work of an agent, from what began it to what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from .statuses import Status

MAX_RESULT_BYTES = 1024 * 1024


class Trigger(StrEnum):
    """What began it."""

    ONCE = "once"
    LOOP = "loop"
    REACTION = "reaction"
    WORKFLOW = "workflow"
    ITEM = "item"
    MESSAGE = "message"


class State(StrEnum):
    """Where it is."""

    WORKING = "working"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELED = "canceled"

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self not in (State.WORKING, State.PAUSED)


_STATES = {
    Status.COMPLETED: State.COMPLETED,
    Status.REFUSED: State.REFUSED,
    Status.CANCELLED: State.CANCELED,
    Status.DRAINED: State.CANCELED,
    Status.LOST: State.CANCELED,
}


def state_of(status: Status) -> State:
    """The state of a run that ended so."""
    return _STATES.get(status, State.FAILED)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run has used. Tokens are as the provider counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    tool_calls: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.steps + other.steps,
            self.tool_calls + other.tool_calls,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it is at one moment."""

    id: str
    trigger: Trigger
    state: State = State.WORKING
    status: Status | None = None
    """Why it ended."""
    error: str = ""
    """The same for people; of a run that failed."""
    result: str = ""
    context_id: str = ""
    usage: Usage = field(default_factory=Usage)
    age: timedelta = timedelta(0)
    took: timedelta | None = None
    activity: str = ""
    subject: str = ""
