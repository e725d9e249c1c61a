"""The figures for people (a table that fills while it runs), for spreadsheets and for programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .bars import Judgement, judge
from .control import Host, SyncRate
from .row import PERCENTS, Row
from .tally import Mode

_QUIET = 0.15  # cores; the live table and the operating system take some
_VERBS = ("check", "submit", "claim", "ack")


@dataclass
class Report:
    """A sweep as far as it is."""

    host: Host
    sync: SyncRate
    front: str
    rows: list[Row] = field(default_factory=list)
    status: str = ""
    failure: str = ""
    """Why the sweep ended early."""

    @property
    def verified(self) -> bool:
        """Whether something was measured and everything that was is right."""
        return not self.failure and bool(self.rows) and all(row.verified for row in self.rows)

    def judged(self, row: Row) -> list[Judgement]:
        """What a row is held to, and whether it keeps it. The bars are for the default front."""
        return judge(row, self.rows) if self.front == "h2corn" else []

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [*self._heading(), self._table()]
        for row in self.rows:
            parts += [Text(f"✗ {_name(row)}: {line}", style="bold red") for line in row.violations]
        if any((row.others_cores or 0) > _QUIET for row in self.rows):
            parts.append(
                Text("! something else was running: these figures are a lower bound", style="yellow")
            )
        if self.failure:
            parts.append(Text(f"✗ {self.failure}", style="bold red"))
        if self.status:
            parts.append(Text(self.status))
        return Group(*parts)

    def _heading(self) -> list[Text]:
        host = self.host
        packages = " ".join(f"{name} {version}" for name, version in host.packages.items())
        load = " ".join(f"{value:.2f}" for value in host.load_average)
        return [
            Text(
                f"{host.cpu}, {host.cores} cores, {host.memory_mib / 1024:.0f} GiB, Linux {host.kernel}, "
                f"Python {host.python}, load {load}, front {self.front}"
            ),
            Text(packages, style="dim"),
            Text(f"fdatasync: {self.sync.per_second:,.0f}/s, p50 {self.sync.p50_ms:.2f} ms"),
        ]

    def _table(self) -> Table:
        table = Table(caption="latencies: p50/p90/p99 in ms, of an RPC (library: of a call) · CPU in µs")
        for heading in ("store", "load"):
            table.add_column(heading, no_wrap=True)
        for heading in ("cycles/s", "RPC/s", "submit", "claim", "ack", "errors"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in (
            "server\n/RPC",
            "server\n/cycle",
            "postgres\n/cycle",
            "generator\n/RPC",
            "others\ncores",
            "MiB",
        ):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("bar", no_wrap=True)
        for row in self.rows:
            table.add_row(*self._cells(row))
        return table

    def _cells(self, row: Row) -> list[RenderableType]:
        check = row.step.mode is Mode.CHECK
        latencies = [_latency(row.latencies_ms.get(verb)) for verb in _VERBS]
        return [
            row.store,
            _load(row),
            _number(row.cycles_per_second) if not check else "",
            _number(row.rpcs_per_second),
            *([latencies[0], "", ""] if check else latencies[1:]),
            str(sum(row.errors.values()) or ""),
            _number(row.server_us_per_rpc, 1),
            _number(row.server_us_per_cycle, 1) if not check else "",
            _number(row.database_us_per_cycle, 1) if not check else "",
            _number(row.generator_us_per_rpc, 1),
            _number(row.others_cores, 2),
            _number(row.server_mib),
            self._verdict(row),
        ]

    def _verdict(self, row: Row) -> Text:
        if not row.verified:
            return Text("NOT VERIFIED", style="bold red")
        text = Text()
        for judgement in self.judged(row):
            text.append("\n" if text else "")
            text.append("✓ " if judgement.met else "✗ ", style="green" if judgement.met else "red")
            text.append(judgement.text)
        return text

    def write_json(self, path: Path) -> None:
        """Everything."""
        rows = [
            {
                **asdict(row),
                "verified": row.verified,
                "bars": [asdict(judgement) for judgement in self.judged(row)],
            }
            for row in self.rows
        ]
        summary = {
            "verified": self.verified,
            "failure": self.failure,
            "host": asdict(self.host),
            "fdatasync": asdict(self.sync),
            "front": self.front,
            "percentiles": PERCENTS,
            "rows": rows,
        }
        path.write_text(json.dumps(summary, indent=1) + "\n")

    def write_csv(self, path: Path) -> None:
        """One line a row."""
        lines = [_flat(row, self.judged(row)) for row in self.rows]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]) if lines else [])
            writer.writeheader()
            writer.writerows(lines)


def line_of(row: Row) -> str:
    """A row in one line, for logs."""
    verdict = "verified" if row.verified else "NOT VERIFIED: " + "; ".join(row.violations)
    rate = row.rpcs_per_second if row.step.mode is Mode.CHECK else row.cycles_per_second
    return f"{_name(row)}: {rate or 0:,.0f}/s, {verdict}"


def _flat(row: Row, judgements: Sequence[Judgement]) -> dict[str, Any]:
    values = asdict(row)
    step = values.pop("step")
    latencies = values.pop("latencies_ms")
    errors = values.pop("errors")
    violations = values.pop("violations")
    flat: dict[str, Any] = {"store": values.pop("store"), **step, **values}
    for verb in _VERBS:
        for index, percent in enumerate(PERCENTS):
            flat[f"{verb}_p{percent}_ms"] = latencies[verb][index] if verb in latencies else None
    flat["errors"] = sum(errors.values())
    flat["verified"] = row.verified
    flat["bars"] = "; ".join(judgement.text for judgement in judgements)
    flat["bars_met"] = all(judgement.met for judgement in judgements) if judgements else None
    flat["violations"] = "; ".join(violations)
    return flat


def _name(row: Row) -> str:
    return f"{row.store} {_load(row)}"


def _load(row: Row) -> str:
    step = row.step
    through = "" if step.mode is Mode.LIBRARY else f" / {step.connections} conn"
    batch = f" x {step.batch}" if step.mode is Mode.BATCH else ""
    following = " +next" if step.claim_next else ""
    return f"{step.mode}{following} {step.clients}{batch}{through} / {step.processes} proc"


def _latency(values: tuple[float, ...] | None) -> str:
    return "/".join(f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in values) if values else ""


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
