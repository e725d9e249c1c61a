"""agentd's words for how a run ended, and what they are as an exit code and as a state of an A2A task."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
PARTIAL: Final = 3
INTELLIGENCE: Final = 4
SEMANTIC: Final = 5
MCP: Final = 6
BUDGET: Final = 7
TIMEOUT: Final = 124

EXIT_OF_STATUS: Final = {
    "completed": OK,
    "refused": SEMANTIC,
    "exhausted_steps": BUDGET,
    "exhausted_tokens": BUDGET,
    "deadline": BUDGET,
    "stalled": PARTIAL,
    "loop_detected": PARTIAL,
    "cancelled": FAILURE,
    "crashed": FAILURE,
}

TASK_STATE_OF_STATUS: Final = {
    "running": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "refused": "TASK_STATE_REJECTED",
    "cancelled": "TASK_STATE_CANCELED",
    "exhausted_steps": "TASK_STATE_FAILED",
    "exhausted_tokens": "TASK_STATE_FAILED",
    "deadline": "TASK_STATE_FAILED",
    "stalled": "TASK_STATE_FAILED",
    "loop_detected": "TASK_STATE_FAILED",
    "crashed": "TASK_STATE_FAILED",
}

LIMIT_OF_STATUS: Final = {"exhausted_steps": "steps", "exhausted_tokens": "tokens", "deadline": "deadline"}
