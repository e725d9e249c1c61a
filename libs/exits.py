"""What an exit code of an agent says, and what its owner should do about it. Frozen: contract 1.0."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Intent(StrEnum):
    """What the owner of an ended agent should do."""

    COMPLETE = "complete"
    RETRIABLE = "retriable"
    TERMINAL = "terminal"
    POLICY = "policy"
    INFRA = "infra"


INTENTS = {
    Intent.COMPLETE: "nothing: it did what it was for",
    Intent.RETRIABLE: "start it again, with backoff",
    Intent.TERMINAL: "do not: the next start would end the same way",
    Intent.POLICY: "as the owner's policy says",
    Intent.INFRA: "start it again: the kernel or the node ended it, not the agent",
}
"""The same in words."""


class Exit(IntEnum):
    """The codes. 137 and 143 are set by the kernel only; a clean drain is OK."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    PARTIAL = 3
    INTELLIGENCE = 4
    SEMANTIC = 5
    SERVER = 6
    BUDGET = 7
    TIMEOUT = 124
    KILLED = 137
    TERMINATED = 143


MEANINGS = {
    Exit.OK: "done, or drained",
    Exit.FAILURE: "unspecified",
    Exit.USAGE: "bad configuration, found before any side effect",
    Exit.PARTIAL: "ended early with something usable",
    Exit.INTELLIGENCE: "the model is unreachable, or refuses us",
    Exit.SEMANTIC: "concluded that it cannot or should not be done, or its owner cancelled it",
    Exit.SERVER: "a server that it needs could not be reached",
    Exit.BUDGET: "steps, tokens or time ran out",
    Exit.TIMEOUT: "stopped by its supervisor",
    Exit.KILLED: "SIGKILL: out of memory, or out of patience",
    Exit.TERMINATED: "SIGTERM before it could be handled",
}
"""What each code says of the process."""

_INTENTS = {
    Exit.OK: Intent.COMPLETE,
    Exit.FAILURE: Intent.RETRIABLE,
    Exit.USAGE: Intent.TERMINAL,
    Exit.PARTIAL: Intent.POLICY,
    Exit.INTELLIGENCE: Intent.RETRIABLE,
    Exit.SEMANTIC: Intent.TERMINAL,
    Exit.SERVER: Intent.RETRIABLE,
    Exit.BUDGET: Intent.POLICY,
    Exit.TIMEOUT: Intent.POLICY,
    Exit.KILLED: Intent.INFRA,
    Exit.TERMINATED: Intent.INFRA,
}


def intent(code: int) -> Intent:
    """What a code asks of the owner; one that is not in the table is retriable."""
    try:
        return _INTENTS[Exit(code)]
    except ValueError:
        return Intent.RETRIABLE


def is_retried(asked: Intent) -> bool:
    """Whether the plane starts a run again that ended so, while it has retries left. Of what is up to its
    owner, ours is the policy that only the retriable is retried. What the kernel or the node ended uses up a
    retry too, since an agent that outgrows its memory would be started for ever."""
    return asked in (Intent.RETRIABLE, Intent.INFRA)
