"""The exit-code table as a Job's failure policy (batch/v1 podFailurePolicy)."""

from __future__ import annotations

from typing import Any

from libs.exits import Exit, Intent, intent

_ACTIONS = {
    Intent.TERMINAL: "FailJob",  # the next start would end the same way
    Intent.POLICY: "FailJob",  # ours: only the retriable is retried
    Intent.RETRIABLE: "Count",
    # Eviction and the like are told by the pod's condition; an agent that outgrows its memory each time is
    # killed too, and would run for ever if that used up no retry.
    Intent.INFRA: "Count",
}


def failure_policy(container: str) -> dict[str, Any]:
    """The rules for a container's exit codes. A code in no rule is counted, as `libs.exits` has it."""
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {"rules": [evicted, *(_rule(container, action) for action in ("FailJob", "Count"))]}


def _rule(container: str, action: str) -> dict[str, Any]:
    codes = sorted(int(code) for code in Exit if _ACTIONS.get(intent(code)) == action)
    return {
        "action": action,
        "onExitCodes": {"containerName": container, "operator": "In", "values": codes},
    }
