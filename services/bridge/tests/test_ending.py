"""The report on a run of mode once: what its calls of the model show, and nothing that they do not."""

from __future__ import annotations

import asyncio
import json

import pytest

from libs.contract.run import Usage
from libs.contract.statuses import Status
from libs.exits import Exit
from services.bridge.ending import ending
from services.bridge.replies import Said, unanswered
from services.bridge.turns import Gate

from .lab import kill, lab

ASKS = Said(Usage(9, 3, 1, 1))
SAYS = Said(Usage(9, 3, 1), Status.COMPLETED, "an answer")
REFUSES = Said(Usage(9, 3, 1), Status.REFUSED, "no", "the model refused: no")
AWAY = unanswered("5xx", "HTTP 500: no")


def came_to(last, usage=None, *, max_steps=0, max_tokens=0, was_drained=False, **fields):
    gate = Gate(last=last, usage=usage or Usage(9, 3, 1), **fields)
    how = ending(gate, max_steps=max_steps, max_tokens=max_tokens, was_drained=was_drained)
    return how and (how[0], how[3])


@pytest.mark.parametrize(
    ("last", "options", "wanted"),
    [
        (SAYS, {}, (Status.COMPLETED, Exit.OK)),
        (SAYS, {"max_steps": 1, "was_drained": True}, (Status.COMPLETED, Exit.OK)),
        (REFUSES, {}, (Status.REFUSED, Exit.OK)),
        (AWAY, {}, (Status.MODEL, Exit.INTELLIGENCE)),
        (AWAY, {"waited_out": True}, (Status.FAILED, Exit.INTELLIGENCE)),
        (ASKS, {"was_drained": True}, (Status.DRAINED, Exit.OK)),
        (ASKS, {"max_steps": 1}, (Status.EXHAUSTED_STEPS, Exit.BUDGET)),
        (ASKS, {"max_tokens": 12}, (Status.EXHAUSTED_TOKENS, Exit.BUDGET)),
        (ASKS, {"max_steps": 2, "max_tokens": 13}, None),
        (ASKS, {}, None),
        (None, {}, None),
    ],
)
def test_how_a_run_ended_is_known_by_its_last_call_and_its_limits(last, options, wanted):
    assert came_to(last, **options) == wanted


async def reported(folder, model):
    """The report on a run of an agent that has ended by itself, and its exit code."""
    async with lab(folder, mode="once", run_id="job-1") as it:
        for name, value in model.items():
            setattr(it.model, name, value)
        assert it.bridge.report() is None
        async with it.agentd("--mode", "once", wait=False) as agentd, asyncio.timeout(20):
            code = await agentd.wait()
        return it.bridge.report(), code


async def test_a_run_that_is_done_is_reported_with_what_it_used(tmp_path):
    report, code = await reported(tmp_path, {"calls_tool_first": True})
    assert (report.run_id, report.agent, report.mode) == ("job-1", "worker", "once")
    assert (report.status, report.exit_code, report.intent, report.has_result) == (
        "completed",
        code,
        "complete",
        True,
    )
    assert report.usage == Usage(18, 6, 2, 1)
    assert 0 < report.duration_ms < 20_000
    assert "an answer" not in json.dumps(report.encoded().decode())


async def test_why_a_run_failed_is_reported_beside_the_agents_own_code(tmp_path):
    report, code = await reported(tmp_path, {"status": 500})
    assert (report.status, report.exit_code, report.intent) == ("model", code, "retriable")
    assert report.error == "HTTP 500: no"


async def test_a_run_that_is_killed_leaves_no_report(tmp_path):
    async with lab(tmp_path, mode="once", run_id="job-1") as it:
        it.model.may_answer.clear()
        async with it.agentd("--mode", "once") as agentd:
            await it.asked()
            kill(agentd)
            await agentd.wait()
            assert it.bridge.report() is None


async def test_a_run_that_was_drained_is_reported_as_that_though_its_code_is_0(tmp_path):
    async with lab(tmp_path, mode="once", run_id="job-1") as it:
        it.model.may_answer.clear()
        async with it.agentd("--mode", "once", "--drain-timeout", "1s") as agentd:
            await it.asked()
            agentd.terminate()
            async with asyncio.timeout(20):
                assert await agentd.wait() == 0
        report = it.bridge.report()
        assert report
        assert (report.status, report.exit_code) == ("drained", 0)
        assert report.error
