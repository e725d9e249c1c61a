"""docs/contract.md: page.md beside this file, with the tables in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from google.protobuf.json_format import MessageToDict

from libs.exits import INTENTS, MEANINGS, Exit, Intent, intent, is_retried

from . import VERSION, environment, events, methods, metrics, report
from .manifest import MODES, Limits, Manifest, Placement, Surfaces, ToolServer
from .run import Run, Trigger, Usage, state_of
from .statuses import Status, exit_code, meaning
from .wire import manifest_to_pb

_SLOT = re.compile(r"%([a-z_]+)%")


def page() -> str:
    """The page, as docs/contract.md has to be."""
    template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    return _SLOT.sub(lambda slot: _SLOTS[slot[1]], template)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _code(word: object) -> str:
    return f"`{word}`" if word != "" else ""


def _methods() -> str:
    people = {"user": "its namespace's users", "administrator": "administrators"}

    def who(method: str) -> str:
        roles = methods.callers(method)
        components = sorted(role for role in roles if role not in people)
        return ", ".join([*map(_code, components), *(word for role, word in people.items() if role in roles)])

    return _table(
        ["method", "for", "may be called by"],
        [[_code(name), purpose, who(name)] for name, purpose in methods.PURPOSES.items()],
    )


def _statuses() -> str:
    return _table(
        ["status", "ended", "state", "exit code", "intent"],
        [
            [
                _code(each),
                meaning(each),
                state_of(each).name,
                str(int(exit_code(each))),
                intent(exit_code(each)),
            ]
            for each in Status
        ],
    )


def _exits() -> str:
    def told(asked: Intent) -> str:
        return "complete" if asked is Intent.COMPLETE else "counted" if is_retried(asked) else "final"

    return _table(
        ["code", "means", "intent", "in a Job"],
        [[str(int(code)), MEANINGS[code], intent(code), told(intent(code))] for code in Exit],
    )


def _environment() -> str:
    def modes(variable: environment.Variable) -> str:
        return "all" if variable.modes == MODES else ", ".join(variable.modes)

    def setter(variable: environment.Variable) -> str:
        if variable.setter is environment.Setter.OWNER:
            return "you"
        return _code(variable.source) if variable.source.startswith("spec.") else variable.source

    return "\n\n".join(
        f"### {title}\n\n"
        + _table(
            ["variable", "says", "default", "set by", "modes"],
            [
                [_code(each.name), each.meaning, each.default or "none", setter(each), modes(each)]
                for each in group
            ],
        )
        for title, group in environment.GROUPS.items()
    )


def _manifest() -> str:
    example = Manifest(
        "agentctl-agent",
        "0.1.0",
        "claim",
        Placement("demo", "summariser", "summariser-7c9f-x2x7p", "3f0c…", "node-1"),
        model="small-1",
        tool_servers=(ToolServer("search", ("untrusted_input",)),),
        limits=Limits(max_steps=50, deadline=timedelta(minutes=10), max_depth=4, slots=4),
        surfaces=Surfaces(messages=True, queue="demo/summaries"),
    )
    return json.dumps(MessageToDict(manifest_to_pb(example)), indent=2, ensure_ascii=False)


def _metrics() -> str:
    def label(name: str, domain: Sequence[str]) -> str:
        return f"`{name}`: " + (", ".join(domain) or "names of the manifest")

    return _table(
        ["metric", "type", "says", "labels"],
        [
            [_code(row.name), row.type, row.help, "; ".join(label(*each) for each in row.labels)]
            for row in metrics.REGISTRY.values()
        ],
    )


def _report() -> str:
    run = Run(
        "0198c0de-0000-7000-8000-000000000001",
        Trigger.ONCE,
        state=state_of(Status.EXHAUSTED_STEPS),
        status=Status.EXHAUSTED_STEPS,
        error="50 turns and no answer",
        usage=Usage(input_tokens=41210, output_tokens=3077, steps=50, tool_calls=49),
        took=timedelta(seconds=93.5),
    )
    ended_at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    example = report.Report.of(run, agent="summariser", mode="once", ended_at=ended_at)
    return msgspec.json.format(example.encoded(), indent=2).decode()


_SLOTS = {
    "version": VERSION,
    "methods": _methods(),
    "statuses": _statuses(),
    "exits": _exits(),
    "intents": _table(["intent", "what the owner should do"], INTENTS.items()),
    "semantic": str(int(Exit.SEMANTIC)),
    "report": _report(),
    "report_bytes": str(report.MAX_BYTES),
    "prefixes": ", ".join(map(_code, environment.PREFIXES)),
    "environment": _environment(),
    "manifest": _manifest(),
    "events": _table(["event", "says"], [[_code(name), says] for name, says in events.MEANINGS.items()]),
    "ring": str(events.RING_SIZE),
    "field": str(events.MAX_FIELD),
    "metrics": _metrics(),
    "other": _code(metrics.OTHER),
    "names": str(metrics.MAX_NAMES),
}
