"""The report on the one run of a process of mode once. agentd's own has another schema and no usage, so what
the run came to is read from its calls of the model."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from libs.contract.run import Run, Trigger, state_of
from libs.contract.statuses import Status
from libs.exits import Exit, intent

from .runs import HELD_TOO_LONG
from .settings import Settings
from .turns import Gate

if TYPE_CHECKING:
    from libs.contract.report import Report

Ending = tuple[Status, str, str, Exit]
"""Status, error, result, and the code that agentd ends with then."""


def ending(own: Gate, *, max_steps: int, max_tokens: int, was_drained: bool) -> Ending | None:
    """What it came to, now that its process has ended; None if that cannot be known. Limits of 0 are not
    known."""
    used = own.usage
    if own.waited_out:
        return Status.FAILED, HELD_TOO_LONG, "", Exit.INTELLIGENCE
    if (final := own.final) and final.status:
        # agentd takes whatever answer there is for completed.
        return final.status, final.error, final.text, Exit.INTELLIGENCE if final.failure else Exit.OK
    if was_drained:
        return Status.DRAINED, "the agent drained", "", Exit.OK
    if 0 < max_steps <= used.steps:
        return Status.EXHAUSTED_STEPS, f"{used.steps} turns of {max_steps}", "", Exit.BUDGET
    if 0 < max_tokens <= used.tokens:
        return Status.EXHAUSTED_TOKENS, f"{used.tokens} tokens of {max_tokens}", "", Exit.BUDGET
    return None


def report_on(own: Gate, settings: Settings, agent: str, *, was_drained: bool) -> Report | None:
    """On the run of this agent; None if there was none, or if nobody can tell what it came to."""
    from libs.contract.report import Report  # costly

    if settings.mode != Trigger.ONCE or own.began is None:
        return None
    how = ending(own, max_steps=settings.max_steps, max_tokens=settings.max_tokens, was_drained=was_drained)
    if how is None:
        return None
    (status, error, result, code), now = how, datetime.now(UTC)
    run = Run(
        settings.run_id,
        Trigger.ONCE,
        state_of(status),
        status,
        error,
        result,
        usage=own.usage,
        took=now - own.began,
    )
    report = Report.of(run, agent=agent, mode=settings.mode, ended_at=now)
    return replace(report, exit_code=code, intent=intent(code))
