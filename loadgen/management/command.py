"""`agentctl-loadgen management`: what reviews and verbs take."""

from __future__ import annotations

import asyncio
import csv as csv_
import json as json_
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceAsyncStub

    from .reviews import Webhook
    from .sample import Row

_WIDE = 120  # what is not a terminal has no width of its own


@dataclass(frozen=True)
class Plan:
    """What to measure; seconds are of one step."""

    namespace: str
    callers: Sequence[int]
    fleets: Sequence[int]
    review_seconds: float
    verb_seconds: float
    patience: float
    webhook: Webhook | None = None


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the command."""

    @app.command()
    def management(
        state_dir: Annotated[
            Path | None,
            typer.Option(
                exists=True, file_okay=False, help="Measure the plane that runs here, not one of our own."
            ),
        ] = None,
        callers: Annotated[str, typer.Option(help="Reviews at once, comma separated.")] = "1,16",
        fleets: Annotated[
            str, typer.Option(help="Agents of the fleet that verbs go to, comma separated; '': no verbs.")
        ] = "1,4,16",
        review_seconds: Annotated[float, typer.Option(min=0.1, help="For each number of callers.")] = 3,
        verb_seconds: Annotated[
            float, typer.Option(min=0.1, help="For each size of the fleet and each stage.")
        ] = 6,
        webhook: Annotated[
            str, typer.Option(metavar="HOST:PORT", help="An admission webhook, to be reviewed by too.")
        ] = "",
        ca: Annotated[
            Path | None, typer.Option(exists=True, dir_okay=False, help="Who signs its certificate (PEM).")
        ] = None,
        server_name: Annotated[str, typer.Option(help="For which name.")] = "admission.agentctl-system.svc",
        namespace: Annotated[str, typer.Option(help="Of the fleet, and of what is reviewed.")] = "demo",
        patience: Annotated[float, typer.Option(min=1, help="Seconds until agents have to be ready.")] = 60,
        csv: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a line a row here.")] = None,
        json: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the rows here.")] = None,
    ) -> None:
        """Reviews by gRPC and by a webhook, and verbs on fleets of idle agents by gRPC: how long each takes.

        Reviews are closed loops over a good fleet, a good agent, one that is denied and one with warnings.
        Verbs are called one after the other: pause, resume, lame-duck and its undo, each until all agents
        have accepted it and until it is in effect at all of them, and status in between. A call counts when
        its answer is what it has to be; any other ends the command with 1.

        A webhook needs a Kubernetes, in which the namespace has the pool of examples/summarize.yaml. Without
        --webhook it is left out.
        """
        if bool(webhook) != (ca is not None):
            raise typer.BadParameter("--webhook and --ca go together")
        from .home import plane
        from .reviews import Webhook

        plan = Plan(
            namespace,
            _numbers(callers),
            sorted(_numbers(fleets)),
            review_seconds,
            verb_seconds,
            patience,
            Webhook(webhook, ca, server_name) if ca else None,
        )
        load = os.getloadavg()[0]
        with plane(state_dir, environment) as endpoints:
            rows = asyncio.run(measure(plan, endpoints))
        _print(rows, f"{os.cpu_count()} cores for caller, plane and agents; load before: {load:.2f}")
        if plan.webhook is None:
            typer.echo("The webhook was not measured: it needs a Kubernetes (--webhook, --ca).")
        if json:
            json.write_text(json_.dumps([asdict(row) for row in rows], indent=2) + "\n")
        if csv:
            write_csv(rows, csv)
        wrong = [row for row in rows if row.wrong]
        for row in wrong:
            typer.echo(f"wrong: {row.call} by {row.by}: {row.wrong} times, first: {row.complaint}", err=True)
        if wrong:
            raise typer.Exit(1)


async def measure(plan: Plan, endpoints: Mapping[str, str]) -> list[Row]:
    """All rows of a plan."""
    from .home import reach
    from .verbs import STAGES
    from .verbs import measure as measure_verbs

    async with reach(endpoints, plan.namespace) as home:
        rows = await _reviews(plan, home.admission)
        async with home.fleet() as fleet:
            for agents in plan.fleets:
                await home.scale(agents, plan.patience)
                for until in STAGES:
                    _progress(f"verbs on a fleet of {agents}, until {until}")
                    rows += await measure_verbs(
                        home.management, plan.namespace, fleet, agents, until, plan.verb_seconds
                    )
    return rows


async def _reviews(plan: Plan, admission: AdmissionServiceAsyncStub) -> list[Row]:
    from .corpus import cases
    from .reviews import by_grpc, by_webhook
    from .sample import closed_loop

    corpus, rows = cases(plan.namespace), []
    for callers in plan.callers:
        _progress(f"reviews by gRPC, {callers} at once")
        sample = await closed_loop(callers, plan.review_seconds, by_grpc(admission, corpus))
        rows.append(sample.row("review", "gRPC", callers=callers))
    for callers in plan.callers if plan.webhook else ():
        assert plan.webhook
        _progress(f"reviews by the webhook, {callers} at once")
        async with by_webhook(plan.webhook, corpus, callers) as call:
            sample = await closed_loop(callers, plan.review_seconds, call)
        rows.append(sample.row("review", "webhook", callers=callers))
    return rows


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """One line a row."""
    from .sample import Row

    with path.open("w", newline="") as file:
        writer = csv_.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def _print(rows: Sequence[Row], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=None, header_style="bold")
    for column in ("call", "by", "until"):
        table.add_column(column)
    for column in ("callers", "pods", "calls", "wrong", "calls/s", "p50 ms", "p95 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="right")
    for row in rows:
        counts = [str(row.callers), "" if row.pods is None else str(row.pods), str(row.calls), str(row.wrong)]
        latencies = [
            "-" if each is None else f"{each:.1f}"
            for each in (row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms)
        ]
        table.add_row(row.call, row.by, row.until, *counts, f"{row.calls_per_second:.1f}", *latencies)
    out = Console()
    (out if out.is_terminal else Console(width=_WIDE)).print(table)


def _numbers(text: str) -> list[int]:
    try:
        found = [int(each) for each in text.split(",") if each]
    except ValueError as error:
        raise typer.BadParameter(f"{text}: numbers, comma separated") from error
    if any(each < 1 for each in found):
        raise typer.BadParameter(f"{text}: each at least 1")
    return found


def _progress(what: str) -> None:
    typer.echo(what, err=True)
