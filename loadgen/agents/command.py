"""`agentctl-loadgen agents`: what agents with nothing to do take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .. import processes
from ..states.footprint import Memory, memory
from .crew import Mode, crew

_SETTLE_SECONDS = 5.0
_WIDE = 120  # what is not a terminal has no width of its own


@dataclass(frozen=True)
class Found:
    """What one agent of a crew took in the window, on average."""

    mode: Mode
    count: int
    millicores: float
    wakeups: float
    """A second: how often it gave the processor back of its own accord."""
    calls: float
    """A minute, of coordination, the tool server and the model."""
    memory: Memory
    """Of all together."""


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the command."""

    @app.command()
    def agents(
        modes: Annotated[
            str, typer.Option(help="What they wait for, comma separated.")
        ] = "claim,reactive,loop",
        counts: Annotated[str, typer.Option(help="How many, comma separated.")] = "1,20",
        seconds: Annotated[float, typer.Option(min=1, help="How long they are watched.")] = 60,
        folder: Annotated[Path | None, typer.Option(help="For what they write.")] = None,
    ) -> None:
        """Start agents that have nothing to do, and say what they take all the same.

        CPU in thousandths of a core, wake-ups a second and calls a minute are of one agent, on average; an
        agent that claims is called for by a long poll of 20 s. PSS counts what agents share once.
        """
        found = [
            measure(Mode(mode), int(count), seconds, folder, environment)
            for mode in modes.split(",")
            for count in counts.split(",")
        ]
        _print(found)


def measure(
    mode: Mode, count: int, seconds: float, folder: Path | None, environment: Mapping[str, str]
) -> Found:
    """So many idle agents of a mode, watched for so long."""
    with crew(mode, count, folder, environment) as running:
        time.sleep(_SETTLE_SECONDS)
        pids = [agent.pid for agent in running.agents]
        calls = running.calls()  # outside of the rest, since an agent is asked for some of them
        began, before = time.monotonic(), processes.activity(pids)
        time.sleep(seconds)
        elapsed, after = time.monotonic() - began, processes.activity(pids)
        calls = running.calls() - calls
        taken = memory([each for pid in pids for each in processes.tree(pid)])
    share = 1 / count / elapsed
    return Found(
        mode,
        count,
        millicores=(after.milliseconds - before.milliseconds) * share,
        wakeups=(after.wakeups - before.wakeups) * share,
        calls=calls * share * 60,
        memory=taken,
    )


def _print(found: list[Found]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="agents with nothing to do; of one agent", box=None, header_style="bold")
    table.add_column("mode")
    for column in ("agents", "millicores", "wake-ups/s", "calls/min", "RSS MiB", "PSS MiB", "USS MiB"):
        table.add_column(column, justify="right")
    for each in found:
        shares = (each.memory.resident, each.memory.proportional, each.memory.unique)
        memory = ["" if share is None else f"{share / each.count:.1f}" for share in shares]
        rates = [f"{each.millicores:.2f}", f"{each.wakeups:.1f}", f"{each.calls:.1f}"]
        table.add_row(each.mode, str(each.count), *rates, *memory)
    out = Console()
    (out if out.is_terminal else Console(width=_WIDE)).print(table)
