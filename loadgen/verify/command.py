"""`agentctl-loadgen verify`: the command line."""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.live import Live
from rich.text import Text

from libs.errors import MeshError

from ..child import ServerError
from ..ledger import new_tag
from ..server import Engine
from .faults import Done
from .plan import MAX_ITEMS, MAX_WORKERS, MEMORY_KINDS, Kind, Plan
from .report import table_of, violations_of, write_json
from .run import Outcome, attack
from .workers import WorkerError

_SERVICE = ("-m", "services.coordination")
_FOREIGN = ("OTEL_", "AGENTCTL_TLS", "COORDINATION_")


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the command; the servers that it starts get this environment."""
    inherited = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}

    @app.command()
    def verify(
        store: Annotated[
            list[Engine] | None, typer.Option(help="A store to attack. Repeatable; default: both.")
        ] = None,
        items: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="Items of each store.")] = 500_000,
        workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS, help="Worker processes.")] = 4,
        replicas: Annotated[
            int, typer.Option(min=1, max=8, help="Servers on one PostgreSQL. A memory store has one.")
        ] = 2,
        faults: Annotated[bool, typer.Option(help="Inject faults, and hold leases beyond their end.")] = True,
        fault: Annotated[
            list[Kind] | None, typer.Option(help="Only this kind of fault. Repeatable; default: all.")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Of the faults and the workers. Default: any.")] = None,
        duration: Annotated[
            float, typer.Option(min=1, help="Seconds of each store after which nothing more is submitted.")
        ] = 300.0,
        calm: Annotated[
            float, typer.Option(min=0, help="Seconds before the first fault; only leases run out meanwhile.")
        ] = 5.0,
        batch: Annotated[int, typer.Option(min=1, max=1000, help="Items per RPC.")] = 100,
        lease: Annotated[float, typer.Option(min=0.5, help="Seconds.")] = 3.0,
        server_command: Annotated[
            str | None, typer.Option(help="Attack this instead of `python -m services.coordination`.")
        ] = None,
        data_dir: Annotated[
            Path | None, typer.Option(exists=True, file_okay=False, help="Where to put data and history.")
        ] = None,
        json: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything here.")] = None,
    ) -> None:
        """Attacks both stores under load and proves from the whole history that they kept their promises.

        Workers submit, claim, renew, ack, fail, release and dawdle, while servers, PostgreSQL and
        workers are killed or frozen, connections cut or frozen, the storage clock is set and syncs are
        slowed down. Then every accepted item must have settled once, every token been granted once, every
        attempt been counted. What is wrong is listed, and the exit code is 1.

        \b
        agentctl-loadgen verify                                        10^6 items, some minutes
        agentctl-loadgen verify --store postgres --replicas 3 --seed 7
        agentctl-loadgen verify --store memory --no-faults --items 20000
        """
        seed = random.randrange(1 << 31) if seed is None else seed
        command = shlex.split(server_command) if server_command else [sys.executable, *_SERVICE]
        plans = [
            Plan(
                store=engine,
                items=items,
                workers=workers,
                replicas=replicas if engine is Engine.POSTGRES else 1,
                kinds=_kinds(engine, faults, fault or []),
                stalls=faults,
                seed=seed,
                duration=duration,
                tag=new_tag(),
                batch=batch,
                lease=lease,
                calm=calm,
            )
            for engine in store or Engine
        ]
        raise typer.Exit(_run(plans, command, inherited, data_dir, json))


def _run(
    plans: Sequence[Plan],
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None,
    summary: Path | None,
) -> int:
    """One after the other; the exit code."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(f"seed {plans[0].seed}")
    outcomes: list[Outcome] = []
    for plan in plans:
        line = Text(f"{plan.store}: starting")

        def progress(
            accepted: int, seen: int, done: Sequence[Done], line: Text = line, plan: Plan = plan
        ) -> None:
            last = f", last {done[-1].kind}" if done else ""
            line.plain = f"{plan.store}: {accepted:,} accepted, {seen:,} settled, {len(done)} faults{last}"

        with Live(line, console=console, refresh_per_second=4, transient=True):
            try:
                outcomes.append(uvloop.run(attack(plan, command, environment, folder, progress)))
            except (ServerError, WorkerError, MeshError) as error:
                console.print(f"{plan.store}: {error}", style="red", markup=False)
                return 1
    console.print(table_of(outcomes))
    for outcome in outcomes:
        for violation in violations_of(outcome):
            console.print(violation, style="red", markup=False)
    if summary:
        write_json(summary, outcomes)
    return 0 if all(outcome.clean for outcome in outcomes) else 1


def _kinds(store: Engine, faults: bool, only: Sequence[Kind]) -> tuple[Kind, ...]:
    """What of all this the store can suffer."""
    able = Kind if store is Engine.POSTGRES else MEMORY_KINDS
    return tuple(kind for kind in able if faults and (not only or kind in only))
