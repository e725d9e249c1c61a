"""The figures for people: a table that fills while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .bars import Judgement, judge
from .control import Host, SyncRate
from .row import Row
from .tally import Mode

_QUIET = 0.15  # cores; the live table and the operating system take some
_VERBS = ("check", "submit", "claim", "ack")
_CAPTION = (
    "latencies: p50/p90/p99 in ms, of an RPC (library: of a call) · CPU in µs · closed loops count from the\n"
    "sending, and ask no faster than they are answered (coordinated omission) · open loops count from when\n"
    "a call should have begun, and in the second line from its sending"
)


@dataclass
class Report:
    """A sweep as far as it is."""

    host: Host
    sync: SyncRate
    front: str
    settings: dict[str, Any] = field(default_factory=dict)
    """What the sweep was told."""
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
        parts: list[RenderableType] = [*map(Text, self.facts()), self._table()]
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

    def facts(self) -> list[str]:
        """The machine, what runs on it, and how fast its disk is."""
        host = self.host
        load = " ".join(f"{value:.2f}" for value in host.load_average)
        return [
            f"{host.cpu}, {host.cores} cores, {host.memory_mib / 1024:.0f} GiB, Linux {host.kernel}, "
            f"Python {host.python}, load {load}, front {self.front}",
            " ".join(f"{name} {version}" for name, version in host.packages.items()),
            f"fdatasync: {self.sync.per_second:,.0f}/s, p50 {self.sync.p50_ms:.2f} ms",
        ]

    def _table(self) -> Table:
        table = Table(caption=_CAPTION)
        for heading in ("store", "load"):
            table.add_column(heading, no_wrap=True)
        for heading in ("cycles/s", "RPC/s", "submit", "claim", "ack", "errors"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in (
            "server\n/RPC",
            "server\n/cycle",
            "postgres\n/cycle",
            "generator\n/RPC",
            "generator\n/cycle",
            "others\ncores",
            "MiB",
        ):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("bars, notes", no_wrap=True)
        for row in self.rows:
            table.add_row(*self._cells(row))
        return table

    def _cells(self, row: Row) -> list[RenderableType]:
        check = row.step.mode is Mode.CHECK
        latencies = [_latencies(row, verb) for verb in _VERBS]
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
            _number(row.generator_us_per_cycle, 1) if not check else "",
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
        for note in _notes(row):
            text.append("\n" if text else "")
            text.append(note, style="bold yellow" if row.kept_up is False else "")
        return text


def line_of(row: Row) -> str:
    """A row in one line, for logs."""
    verdict = "verified" if row.verified else "NOT VERIFIED: " + "; ".join(row.violations)
    rate = row.rpcs_per_second if row.step.mode is Mode.CHECK else row.cycles_per_second
    return f"{_name(row)}: {'; '.join([f'{rate or 0:,.0f}/s', *_notes(row), verdict])}"


def _notes(row: Row) -> Iterator[str]:
    """Figures that only some modes have."""
    latencies = row.latencies_ms
    if row.offered_per_second is not None:
        kept = "kept up with" if row.kept_up else "DID NOT KEEP UP with"
        yield f"{kept} {row.offered_per_second:,.0f}/s"
        if row.shed_per_second:
            yield f"{row.shed_per_second:,.0f}/s NEVER BEGUN: backlog full"
        yield f"cycle {_latency(latencies.get('cycle'))} ms"
        yield f"begun {_latency(latencies.get('start'))} ms late"
        yield f"{row.most_waiting:,} waiting at most"
    if row.claims_per_grant is not None:
        yield f"{row.claims_per_grant:,.1f} claims a grant, {row.empty_per_second:,.0f}/s empty"
    if "wake" in latencies:
        yield f"woken {_latency(latencies['wake'])} ms from sending"
        yield f"and {_latency(latencies['wake_answered'])} ms from answer"


def _name(row: Row) -> str:
    return f"{row.store} {_load(row)}"


def _load(row: Row) -> str:
    step = row.step
    batch = f" x {step.batch}" if step.mode is Mode.BATCH else ""
    following = " +next" if step.claim_next else ""
    through = "" if step.mode is Mode.LIBRARY else f" / {step.connections} conn"
    who = f"{step.clients}{batch}"
    if step.rate:
        who = f"open {step.rate:,.0f}/s{batch}"
    elif step.mode is Mode.CONTENTION:
        who = f"{step.clients} for {step.ready}"
    elif step.mode is Mode.WAKE:
        who = f"{step.clients} parked, {step.pace:g}/s"
    return f"{step.mode}{following} {who}{through} / {step.processes} proc"


def _latencies(row: Row, verb: str) -> str:
    lines = [_latency(values[verb]) for values in (row.latencies_ms, row.service_ms) if verb in values]
    return "\n".join(lines)


def _latency(values: tuple[float, ...] | None) -> str:
    shown = values[:3] if values else ()
    return "/".join(f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in shown)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
