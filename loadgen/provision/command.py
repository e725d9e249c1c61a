"""`agentctl-loadgen provision`: from a manifest to agents that are ready."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from .timeline import MOMENTS, Object, Timeline

_WIDE = 120  # what is not a terminal has no width of its own


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the command."""

    @app.command()
    def provision(
        manifest: Annotated[
            Path, typer.Option("-f", "--filename", exists=True, help="An AgentFleet, and what it needs.")
        ] = Path("examples/summarize.yaml"),
        agents: Annotated[str, typer.Option(help="Fleet sizes, comma separated.")] = "1,5",
        rounds: Annotated[int, typer.Option(min=1, help="How often each.")] = 5,
        kubeconfig: Annotated[Path | None, typer.Option(exists=True, help="Measure this Kubernetes.")] = None,
        state_dir: Annotated[
            Path | None, typer.Option(help="Measure the local plane that runs on this folder.")
        ] = None,
        patience: Annotated[float, typer.Option(min=1, help="Seconds until a round has failed.")] = 120,
    ) -> None:
        """Apply a fleet, watch until its agents are ready, delete it; again and again.

        Each moment is milliseconds since the apply was sent, when a watch told of it: applied, the operator's
        workload, all pods there, scheduled, running, ready, and the fleet's condition saying so. The first
        round of each size is warm-up and not counted, unless it is the only one.
        """
        if (kubeconfig is None) == (state_dir is None):
            state = environment.get("AGENTCTL_STATE_DIR")
            if kubeconfig or not state:
                raise typer.BadParameter("name one of --kubeconfig and --state-dir")
            state_dir = Path(state)
        import yaml

        sizes = [int(each) for each in agents.split(",")]
        manifests = [each for each in yaml.safe_load_all(manifest.read_text()) if each]
        asyncio.run(_run(manifests, sizes, rounds, kubeconfig, state_dir, patience))


async def _run(
    manifests: Sequence[Object],
    sizes: Sequence[int],
    rounds: int,
    kubeconfig: Path | None,
    state_dir: Path | None,
    patience: float,
) -> None:
    from rich.console import Console

    from .measure import measure, prepare
    from .world import open_world

    found: dict[int, list[Timeline]] = {}
    async with open_world(kubeconfig, state_dir) as world:
        fleet = await prepare(world, manifests)
        for size in sizes:
            for round_ in range(rounds + (rounds > 1)):
                timeline = await measure(world, fleet, size, round_, patience)
                typer.echo(
                    f"{size} agents, round {round_}: ready after {timeline.at['ready']:.3f} s", err=True
                )
                if round_ or rounds == 1:
                    found.setdefault(size, []).append(timeline)
        out = Console()
        (out if out.is_terminal else Console(width=_WIDE)).print(_table(world.name, found))


def _table(where: str, found: Mapping[int, Sequence[Timeline]]) -> object:
    from rich.table import Table

    title = f"apply → ready on {where}: ms since the apply was sent, median (worst)"
    table = Table(title=title, box=None, header_style="bold")
    for column in ("agents", "rounds", *MOMENTS):
        table.add_column(column, justify="right")
    for size, timelines in found.items():
        cells = []
        for moment in MOMENTS:
            times = [each.at[moment] * 1000 for each in timelines]
            cells.append(f"{statistics.median(times):.0f} ({max(times):.0f})")
        table.add_row(str(size), str(len(timelines)), *cells)
    return table
