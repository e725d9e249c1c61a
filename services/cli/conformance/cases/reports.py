"""REPORT: the file that a run of mode once leaves for whoever owns the process."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from libs import contract
from libs.exits import Exit

from ..case import BrokenError, Group, demand
from ..model import Reply, Say, Use
from ..world import World
from .exits import launching

GROUP = Group("reports", launching)

_FIELDS = {
    "contract_version": str, "run_id": str, "agent": str, "mode": str, "status": str, "exit_code": int,
    "intent": str, "usage": dict, "duration_ms": int, "started_at": str, "ended_at": str, "has_result": bool,
}  # fmt: skip
_MOST_BYTES = 4096


async def _report(world: World, code: int, *replies: Reply, **more: str) -> dict[str, Any]:
    file = world.folder / f"report-{code}.json"
    file.unlink(missing_ok=True)
    await world.ends(code, *replies, AGENT_REPORT_FILE=str(file), extra=more)
    return _read(file)


def _read(file: Path) -> dict[str, Any]:
    demand(file.is_file(), "no report was left in AGENT_REPORT_FILE")
    data = file.read_bytes()
    demand(len(data) <= _MOST_BYTES, f"the report has {len(data)} bytes, at most {_MOST_BYTES}")
    try:
        report = json.loads(data)
    except ValueError as error:
        raise BrokenError(f"the report is not JSON: {error}") from error
    if not isinstance(report, dict):
        raise BrokenError("the report is no JSON object")
    for name, kind in _FIELDS.items():
        demand(
            isinstance(report.get(name), kind),
            f"{name} is {report.get(name)!r}, it has to be a {kind.__name__}",
        )
    return report


def _has(report: dict[str, Any], **wanted: object) -> None:
    for name, value in wanted.items():
        demand(report[name] == value, f"{name} is {report[name]!r}, it has to be {value!r}")


@GROUP.case(
    "REPORT-01", "of a run that is done: id, agent, mode, status, code, intent, use, times", seconds=30
)
async def _of_done(world: World) -> None:
    used = Use(input_tokens=61, output_tokens=9), Say("done", input_tokens=70, output_tokens=6)
    report = await _report(world, Exit.OK, *used, AGENT_RUN_ID="conformance-1")
    major = contract.VERSION.partition(".")[0]
    demand(
        report["contract_version"].partition(".")[0] == major,
        f"contract_version {report['contract_version']!r}",
    )
    _has(report, run_id="conformance-1", mode="once", status="completed", exit_code=0, intent="complete",
         has_result=True)  # fmt: skip
    usage = {name: report["usage"].get(name) for name in ("input_tokens", "output_tokens", "steps")}
    counted = {"input_tokens": 131, "output_tokens": 15, "steps": 2}
    demand(usage == counted, f"usage is {usage}, the model counted {counted}")
    try:
        began, ended = (datetime.fromisoformat(report[name]) for name in ("started_at", "ended_at"))
    except ValueError as error:
        raise BrokenError(f"started_at or ended_at is no time: {error}") from error
    off = abs((ended - began).total_seconds() * 1000 - report["duration_ms"])
    demand(
        off < 1000,
        f"duration_ms is {report['duration_ms']}, and from start to end it was {off:.0f} ms off that",
    )


@GROUP.case("REPORT-02", "of a run that a limit ended: status, code 7, intent policy, and why", seconds=30)
async def _of_limit(world: World) -> None:
    calls = [Use(arguments={"text": str(n)}) for n in range(4)]
    report = await _report(world, Exit.BUDGET, *calls, AGENT_MAX_STEPS="2")
    _has(report, status="exhausted_steps", exit_code=7, intent="policy", has_result=False)
    demand(report.get("error"), "it failed, and error says nothing")


@GROUP.case("REPORT-03", "of a refusal: status refused, code 5, intent terminal", seconds=30)
async def _of_refusal(world: World) -> None:
    report = await _report(world, Exit.SEMANTIC, Say(refusal="I will not do that"))
    _has(report, status="refused", exit_code=5, intent="terminal")
    demand(report.get("error"), "it failed, and error says nothing")


@GROUP.case("REPORT-04", "a long answer is not in the report, which keeps to 4096 bytes", seconds=30)
async def _is_bounded(world: World) -> None:
    report = await _report(world, Exit.OK, Say("long " * 20_000))
    _has(report, status="completed", has_result=True)
