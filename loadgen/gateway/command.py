"""`agentctl-loadgen gateway`: what a model gateway adds to a call."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..child import ServerError

if TYPE_CHECKING:
    from .measure import Plan, Row


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the command."""

    @app.command()
    def gateway(
        concurrency: Annotated[str, typer.Option(help="Connections, comma separated.")] = "1,16,64",
        seconds: Annotated[float, typer.Option(min=0.5, help="Of a step.")] = 3,
        rounds: Annotated[int, typer.Option(min=1, help="How often each step.")] = 3,
        litellm: Annotated[
            Path | None,
            typer.Option(exists=True, dir_okay=False, help="The program `litellm`, to be measured beside."),
        ] = None,
        folder: Annotated[Path | None, typer.Option(help="For what the servers write.")] = None,
        csv: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the rows here.")] = None,
    ) -> None:
        """A stub of a provider asked directly, through our model gateway, and through LiteLLM's proxy.

        The stub answers at once and is no model. Ours has mutual TLS at its edge, and no budgets, two on the
        memory store, or two on a PostgreSQL; it asks the stub over plain loopback, as all others do. The
        client, the stub and what is measured share the cores.
        """
        from .measure import Plan

        plan = Plan([int(each) for each in concurrency.split(",")], seconds, rounds)
        try:
            is_right = _run(plan, litellm, folder, csv, environment)
        except (ServerError, OSError) as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error
        if not is_right:
            raise typer.Exit(1)


def _run(
    plan: Plan, litellm: Path | None, folder: Path | None, csv: Path | None, environment: Mapping[str, str]
) -> bool:
    """Whether all answers were right."""
    import uvloop

    from ..scaling.output import write_csv
    from .measure import measure
    from .sides import sides

    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="agentctl-gateway-", dir=folder) as name:
        root = Path(name)
        root.chmod(0o711)  # a PostgreSQL that root starts runs as another user, who has to get in
        with sides(litellm, root, environment) as found:
            rows = uvloop.run(measure(plan, found, lambda line: typer.echo(line, err=True)))
    _print(rows, load)
    write_csv(rows, csv)
    for row in rows:
        if row.wrong:
            typer.echo(f"{row.side}: {row.wrong} wrong answers, such as {row.sample}", err=True)
    return not any(row.wrong for row in rows)


def _print(rows: Sequence[Row], load: tuple[float, float, float]) -> None:
    from ..scaling.output import print_table
    from .measure import bars

    columns = (
        "",
        "p50",
        "p99",
        "added p50",
        "added p99",
        "req/s",
        "per core",
        "µs",
        "db µs",
        "client µs",
        "MiB",
    )
    for streams in (False, True):
        for connections in dict.fromkeys(row.concurrency for row in rows):
            chosen = [row for row in rows if (row.streams, row.concurrency) == (streams, connections)]
            what = "until a stream's first byte" if streams else "whole answers"
            print_table(f"{what}, {connections} connections; ms", columns, [_cells(row) for row in chosen])
    typer.echo(
        f"\nload average before: {' '.join(f'{each:.1f}' for each in load)}; client and stub share the cores"
    )
    for text, is_met in bars(rows):
        typer.echo(f"{'ok  ' if is_met else 'MISS'} {text}")


def _cells(row: Row) -> list[str]:
    if row.streams:
        times = (row.first_p50_ms, row.first_p99_ms, row.added_first_p50_ms, row.added_first_p99_ms)
    else:
        times = (row.p50_ms, row.p99_ms, row.added_p50_ms, row.added_p99_ms)
    return [
        row.side,
        *(f"{each:.2f}" for each in times),
        f"{row.per_second:.0f}",
        "" if row.per_core is None else f"{row.per_core:.0f}",
        f"{row.gateway_us:.0f}",
        f"{row.database_us:.0f}",
        f"{row.client_us:.0f}",
        f"{row.resident_mib:.0f}",
    ]
