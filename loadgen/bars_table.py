"""The table of bars for people (on a terminal, in Markdown) and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table
from rich.text import Text

from .bars import Judgement
from .control import Host, SyncRate
from .states.line import Line

_BEGIN = "<!-- agentctl-loadgen bars: begin -->"
_END = "<!-- agentctl-loadgen bars: end -->"
_HEADINGS = ("store", "what", "figure", "bar", "goal", "server CPU", "control")
_KEY = (
    "p50 and p99 are of the slowest verb. Server CPU is coordination's; what stands after a plus is "
    "PostgreSQL's. The control is what the machine could do at that moment: health checks a second through "
    "the same generator and front, or the same work without what is tested."
)


@dataclass
class Bars:
    """What was measured, as far as it is."""

    host: Host
    sync: SyncRate
    quick: bool = False
    """Measured for too short a time to be quoted."""
    lines: list[Line] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
    seconds: float = 0.0

    @property
    def verified(self) -> bool:
        """Whether something was measured, and all that was is right."""
        return bool(self.lines) and not self.failures and all(line.verified for line in self.lines)

    @property
    def summary(self) -> str:
        judged = [line for line in self.lines if line.met is not None]
        met = sum(bool(line.met) for line in judged)
        indicative = "; short runs, so indicative only" if self.quick else ""
        return f"{met} of {len(judged)} bars met, in {self.seconds / 60:.1f} minutes{indicative}"

    @property
    def facts(self) -> list[str]:
        """The machine and what runs on it, a line each."""
        host = self.host
        load = " ".join(f"{value:.2f}" for value in host.load_average)
        return [
            f"{host.cpu}, {host.cores} cores, {host.memory_mib / 1024:.0f} GiB, Linux {host.kernel}, "
            f"Python {host.python}, load {load} before",
            ", ".join(f"{name} {version}" for name, version in host.packages.items()),
            f"fdatasync of a page: {self.sync.per_second:,.0f}/s, "
            f"p50 {self.sync.p50_ms:.2f} ms, p99 {self.sync.p99_ms:.2f} ms",
        ]

    def table(self) -> Table:
        """For a terminal."""
        table = Table(caption=_KEY, show_lines=True)
        for heading in _HEADINGS:
            table.add_column(heading, overflow="fold")
        for line in self.lines:
            bar = _verdicts(line.limits) if line.verified else Text("NOT VERIFIED", style="bold red")
            goal = _verdicts((line.goal,) if line.goal else ())
            figure = "\n".join((line.figure, *line.notes))
            table.add_row(line.store, line.name, figure, bar, goal, line.cost, line.control)
        return table

    def markdown(self) -> str:
        """For a page."""
        rows = [
            _row(*_HEADINGS),
            _row(*("---",) * len(_HEADINGS)),
            *(
                _row(
                    line.store,
                    line.name,
                    "<br>".join((f"**{line.figure}**", *line.notes)),
                    "<br>".join(map(_said, line.limits)) if line.verified else "**not verified**",
                    _said(line.goal) if line.goal else "",
                    line.cost,
                    line.control,
                )
                for line in self.lines
            ),
        ]
        wrong = [f"* not verified: {line.name}: {each}" for line in self.lines for each in line.violations]
        missing = [f"* not measured: {failure}" for failure in self.failures]
        parts = (
            [*(f"* {fact}" for fact in self.facts), f"* {self.summary}", *wrong, *missing],
            rows,
            [_KEY],
        )
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def write_markdown(self, path: Path) -> None:
        """Into the page, between its two marks; where there are none, as the page."""
        page = path.read_text() if path.exists() else ""
        before, begin, rest = page.partition(_BEGIN)
        _, end, after = rest.partition(_END)
        text = self.markdown()
        if begin and end:
            text = f"{before}{begin}\n{text}{end}{after}"
        path.write_text(text)

    def write_json(self, path: Path) -> None:
        """Everything."""
        lines = [
            {**asdict(line), "verified": line.verified, "met": line.met, "values": dict(line.values)}
            for line in self.lines
        ]
        summary = {
            "verified": self.verified,
            "quick": self.quick,
            "seconds": self.seconds,
            "host": asdict(self.host),
            "fdatasync": asdict(self.sync),
            "failures": self.failures,
            "lines": lines,
        }
        path.write_text(json.dumps(summary, indent=1) + "\n")


def _verdicts(judgements: tuple[Judgement, ...]) -> Text:
    text = Text()
    for judgement in judgements:
        text.append("\n" if text else "")
        text.append(f"{judgement.text} ")
        text.append(_word(judgement), style="green" if judgement.met else "red")
    return text


def _said(judgement: Judgement) -> str:
    return f"{judgement.text} {_word(judgement)}" if judgement.met else f"{judgement.text} **missed**"


def _word(judgement: Judgement) -> str:
    return "met" if judgement.met else "missed"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
