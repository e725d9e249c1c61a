"""The figures of a sweep for programs (JSON) and spreadsheets (CSV); docs/loadgen.md says what they mean."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .report import Report
from .row import PERCENTS, VERBS, Row
from .tally import Mode

_SCHEMA = 1
_SENT = ("submit", "claim", "ack", "cycle")  # what an open loop has service times of


def write_json(report: Report, path: Path) -> None:
    """Everything, in one object."""
    summary = {
        "schema": _SCHEMA,
        "verified": report.verified,
        "failure": report.failure,
        "host": asdict(report.host),
        "fdatasync": asdict(report.sync),
        "front": report.front,
        "settings": report.settings,
        "control": {row.store: _control(row) for row in report.rows if row.step.mode is Mode.CHECK},
        "rows": [_row(report, row) for row in report.rows],
    }
    path.write_text(json.dumps(summary, indent=1) + "\n")


def write_csv(report: Report, path: Path) -> None:
    """One line a row."""
    lines = [_flat(report, row) for row in report.rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]) if lines else [])
        writer.writeheader()
        writer.writerows(lines)


def _control(row: Row) -> dict[str, Any]:
    return {
        "rpcs_per_second": row.rpcs_per_second,
        "server_us_per_rpc": row.server_us_per_rpc,
        "generator_us_per_rpc": row.generator_us_per_rpc,
        "latency_ms": _named(row.latencies_ms.get("check", ())),
    }


def _row(report: Report, row: Row) -> dict[str, Any]:
    return {
        **asdict(row),
        "latencies_ms": {verb: _named(values) for verb, values in row.latencies_ms.items()},
        "service_ms": {verb: _named(values) for verb, values in row.service_ms.items()},
        "verified": row.verified,
        "kept_up": row.kept_up,
        "bars": [asdict(judgement) for judgement in report.judged(row)],
    }


def _named(values: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(map(_name, PERCENTS), values, strict=False))  # nothing where nothing was measured


def _name(percent: float) -> str:
    return "max" if percent == 100 else f"p{percent:g}"


def _flat(report: Report, row: Row) -> dict[str, Any]:
    values = asdict(row)
    step, errors, violations = values.pop("step"), values.pop("errors"), values.pop("violations")
    del values["latencies_ms"], values["service_ms"], values["calls"]
    judgements = report.judged(row)
    return {
        "store": values.pop("store"),
        **step,
        **values,
        **{f"{verb}_calls": row.calls.get(verb) for verb in VERBS},
        **_columns(VERBS, "", row.latencies_ms),
        **_columns(_SENT, "_service", row.service_ms),
        "errors": sum(errors.values()),
        "kept_up": row.kept_up,
        "verified": row.verified,
        "bars": "; ".join(judgement.text for judgement in judgements),
        "bars_met": all(judgement.met for judgement in judgements) if judgements else None,
        "violations": "; ".join(violations),
    }


def _columns(
    verbs: tuple[str, ...], kind: str, latencies: Mapping[str, tuple[float, ...]]
) -> dict[str, float | None]:
    return {
        f"{verb}{kind}_{_name(percent)}_ms": latencies[verb][index] if verb in latencies else None
        for verb in verbs
        for index, percent in enumerate(PERCENTS)
    }
