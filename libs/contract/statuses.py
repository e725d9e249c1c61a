"""Why a run ended: the words, what they mean, and their exit codes. Frozen: contract 1.0."""

from __future__ import annotations

from enum import StrEnum

from libs.exits import Exit


class Status(StrEnum):
    """Of a run that ended, or of the process that it was everything to."""

    COMPLETED = "completed"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    DRAINED = "drained"
    FAILED = "failed"
    EXHAUSTED_STEPS = "exhausted_steps"
    EXHAUSTED_TOKENS = "exhausted_tokens"
    DEADLINE = "deadline"
    DEPTH = "depth"
    TOO_LARGE = "too_large"
    LOOP_DETECTED = "loop_detected"
    MODEL = "model"
    SERVER = "server"
    LOST = "lost"
    CRASHED = "crashed"


_TABLE = {
    Status.COMPLETED: (Exit.OK, "with its answer"),
    Status.DRAINED: (
        Exit.FAILURE,
        "stopped unfinished by a drain, and given back; only a process that lives for one run ends with it",
    ),
    Status.REFUSED: (Exit.SEMANTIC, "the model would not, or said that it cannot be done"),
    Status.CANCELLED: (Exit.SEMANTIC, "by Cancel"),
    Status.EXHAUSTED_STEPS: (Exit.BUDGET, "the turns with the model that it may take"),
    Status.EXHAUSTED_TOKENS: (Exit.BUDGET, "the run's own tokens, or a budget at the model's gateway"),
    Status.DEADLINE: (Exit.BUDGET, "the run's own"),
    Status.DEPTH: (Exit.BUDGET, "it came through too many agents"),
    Status.TOO_LARGE: (
        Exit.PARTIAL,
        "the answer is over 1 MiB, or the provider cut it off; what there is of it is usable",
    ),
    Status.LOOP_DETECTED: (
        Exit.PARTIAL,
        "the same tool was called with the same arguments five times in a row",
    ),
    Status.MODEL: (Exit.INTELLIGENCE, "unreachable, refusing us, or talking nonsense, after every retry"),
    Status.SERVER: (Exit.SERVER, "a tool server that is needed is away"),
    Status.FAILED: (Exit.FAILURE, "for a reason that has no word here"),
    Status.LOST: (Exit.FAILURE, "the item's lease ended before the run did; it is somebody else's now"),
    Status.CRASHED: (Exit.FAILURE, "a fault of the agent's own"),
}


def exit_code(status: Status) -> Exit:
    """What a process returns whose only run ended so."""
    return _TABLE[status][0]


def meaning(status: Status) -> str:
    """Why a run ended that ended so."""
    return _TABLE[status][1]
