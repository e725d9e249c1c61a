"""The exit-code table as a Job's failure policy (batch/v1 podFailurePolicy)."""

from __future__ import annotations

from typing import Any

from libs.exits import Exit, intent, is_retried


def failure_policy(container: str) -> dict[str, Any]:
    """The rules for a container's exit codes. A code in no rule is counted, as `libs.exits` has it; eviction
    and the like are told by the pod's condition."""
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {"rules": [evicted, *(_rule(container, *rule) for rule in (("FailJob", False), ("Count", True)))]}


def _rule(container: str, action: str, retried: bool) -> dict[str, Any]:
    codes = sorted(int(code) for code in Exit if code and is_retried(intent(code)) is retried)
    return {
        "action": action,
        "onExitCodes": {"containerName": container, "operator": "In", "values": codes},
    }
