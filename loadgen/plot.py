"""Pictures of a sweep. matplotlib comes with `agentctl[load]` and is imported only here, when asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .report import Report
from .row import Row
from .tally import Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
_INCHES = (12.0, 4.2)  # a row of two panels
_MARKERS = {"memory": "o", "postgres": "s"}
_P50, _P99 = 0, 2  # of row.PERCENTS
_Figure = Callable[[Row], float | None]


class PlotError(Exception):
    """No picture can be drawn; the message says what to do."""


def check(path: Path) -> None:
    """PlotError if a picture cannot be drawn there: better before a sweep than after it."""
    if path.suffix not in SUFFIXES:
        raise PlotError(f"{path}: a picture is a {' or '.join(SUFFIXES)} file")
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("matplotlib is missing: pip install 'agentctl[load]'")


def draw(report: Report, path: Path) -> None:
    """A row of panels each for closed loops, open loops and wakes, as far as there are any."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row.step.mode is not Mode.CHECK]
    parts: list[tuple[Callable[[Axes, Axes, Sequence[Row]], None], list[Row]]] = [
        (_closed, [row for row in rows if not row.step.rate and row.step.mode is not Mode.WAKE]),
        (_open, [row for row in rows if row.step.rate]),
        (_wake, [row for row in rows if row.step.mode is Mode.WAKE]),
    ]
    parts = [(part, of) for part, of in parts if of]
    if not parts:
        raise PlotError("nothing was measured")
    figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(parts) + 0.7), layout="constrained")
    grid = figure.subplots(len(parts), 2, squeeze=False)
    for (left, right), (part, of) in zip(grid, parts, strict=True):
        part(left, right, of)
        for axes in (left, right):
            axes.grid(which="major", alpha=0.3)
        right.legend(
            loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False, handlelength=3.5
        )
    figure.suptitle("agentctl-loadgen sweep" + ("" if report.verified else ": NOT VERIFIED"))
    figure.supxlabel(_footer(report), x=0.01, ha="left", fontsize=7, family="monospace")
    with rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure.savefig(path, dpi=150)


def _closed(left: Axes, right: Axes, rows: Sequence[Row]) -> None:
    for axes, title in (
        (left, "Closed loop: throughput"),
        (right, "Closed loop: latency of the slowest verb"),
    ):
        _prepare(axes, title, "logical clients", _clients(rows))
    left.set_ylabel("verified cycles/s")
    right.set_ylabel("ms, from the sending")
    _lines(left, rows, _clients_of, {"": ("-", lambda row: row.cycles_per_second)})
    _lines(right, rows, _clients_of, {"p99": ("-", _slowest(_P99)), "p50": ("--", _slowest(_P50))})


def _open(left: Axes, right: Axes, rows: Sequence[Row]) -> None:
    rates = sorted({row.step.rate for row in rows})
    for axes, title in (
        (left, "Open loop: offered (dotted) and done"),
        (right, "Open loop: latency of a cycle"),
    ):
        _prepare(axes, title, "offered cycles/s", rates)
    left.set_ylabel("verified cycles/s")
    left.plot(rates, rates, color="grey", linewidth=0.8, linestyle=":")
    right.set_ylabel("ms; corrected: from when it was due")
    _lines(left, rows, _rate_of, {"": ("-", lambda row: row.cycles_per_second)})
    _lines(
        right,
        rows,
        _rate_of,
        {
            "p99 corrected": ("-", _of("cycle", _P99)),
            "p50 corrected": ("--", _of("cycle", _P50)),
            "p99 as sent": (":", lambda row: row.service_ms.get("cycle", (None,) * 3)[_P99]),
        },
    )


def _wake(left: Axes, right: Axes, rows: Sequence[Row]) -> None:
    for axes, after, verb in ((left, "sent", "wake"), (right, "answered", "wake_answered")):
        _prepare(axes, f"Wake: claim answered, after submit was {after}", "parked claims", _clients(rows))
        axes.set_ylabel("ms")
        _lines(axes, rows, _clients_of, {"p99": ("-", _of(verb, _P99)), "p50": ("--", _of(verb, _P50))})


def _prepare(axes: Axes, title: str, label: str, ticks: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_title(title, fontsize=10)
    axes.set_xlabel(label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()


def _lines(
    axes: Axes, rows: Sequence[Row], at: Callable[[Row], float], kinds: dict[str, tuple[str, _Figure]]
) -> None:
    """A line for each store, mode and kind. A colour is a store and a mode, a stroke is a kind."""
    series = list(dict.fromkeys((row.store, row.step.mode) for row in rows))
    for index, (store, mode) in enumerate(series):
        mine = [row for row in rows if (row.store, row.step.mode) == (store, mode)]
        for kind, (stroke, figure) in kinds.items():
            points = [(at(row), value) for row in mine if (value := figure(row))]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                stroke,
                color=f"C{index}",
                marker=_MARKERS.get(store, "^"),
                markersize=4,
                label=f"{store} {mode} {kind}".strip(),
            )


def _clients(rows: Sequence[Row]) -> list[int]:
    return sorted({row.step.clients for row in rows})


def _clients_of(row: Row) -> float:
    return row.step.clients


def _rate_of(row: Row) -> float:
    return row.step.rate


def _slowest(percentile: int) -> _Figure:
    return lambda row: max((values[percentile] for values in row.latencies_ms.values()), default=None)


def _of(verb: str, percentile: int) -> _Figure:
    return lambda row: row.latencies_ms[verb][percentile] if verb in row.latencies_ms else None


def _footer(report: Report) -> str:
    controls = [
        f"{row.store} {row.rpcs_per_second or 0:,.0f} health checks/s"
        for row in report.rows
        if row.step.mode is Mode.CHECK
    ]
    told = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    return "\n".join([*report.facts(), f"control: {'; '.join(controls)}", told])
