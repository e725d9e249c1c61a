"""What an exit code of an agent says, and what its owner should do about it. Frozen: contract 1.0."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Intent(StrEnum):
    """What the owner of an ended agent should do."""

    COMPLETE = "complete"  # nothing: it did what it was for
    RETRIABLE = "retriable"  # start it again, with backoff
    TERMINAL = "terminal"  # do not: the next start would end the same way
    POLICY = "policy"  # as the owner's policy says
    INFRA = "infra"  # the kernel or the node ended it: not the agent's doing


class Exit(IntEnum):
    """The codes. 137 and 143 are set by the kernel only; a clean drain is OK."""

    OK = 0  # done, or drained
    FAILURE = 1  # unspecified, or cancelled by force
    USAGE = 2  # bad configuration, found before any side effect
    PARTIAL = 3  # ended early with something usable
    INTELLIGENCE = 4  # the model is unreachable, or refuses us
    SEMANTIC = 5  # concluded that it cannot or should not be done
    SERVER = 6  # a server that it needs could not be reached
    BUDGET = 7  # steps, tokens or time ran out
    TIMEOUT = 124  # stopped by its supervisor
    KILLED = 137  # SIGKILL
    TERMINATED = 143  # SIGTERM before it could be handled


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
