"""The report file of once, loop and schedule. agentd tells no usage in it: every number is zero."""

from __future__ import annotations

from pathlib import Path

from .exits import Json
from .options import Options
from .turns import Outcome

SCHEMA = "1.0"


def report(options: Options, outcome: Outcome, *, begun: str, ended: str, duration_ms: int) -> Json:
    """The body of the file."""
    body: Json = {
        "report_schema": SCHEMA,
        "run_id": options.run_id,
        "mode": options.mode,
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "has_usable_partial": outcome.status != "completed" and bool(outcome.text),
        "usage": {"tokens_in": 0, "tokens_out": 0, "steps": 0, "subagents": 0},
        "duration_ms": duration_ms,
        "started_at": begun,
        "ended_at": ended,
        "distillate_ref": "agent://subagent/0/result",
        "refusals": dict.fromkeys(("trifecta", "rate", "budget", "depth", "mcp"), 0),
    }
    if options.instance:
        body["instance"] = options.instance
    if options.traceparent:
        body["trace_id"] = options.traceparent.split("-")[1]
    return body


def write(path: Path, text: str) -> None:
    """Atomically where the folder lets us; a file that cannot be written never changes the exit code."""
    whole = path.with_name(f".{path.name}.tmp")
    try:
        whole.write_text(text)
        whole.replace(path)
    except OSError:
        return
