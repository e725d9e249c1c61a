"""`agentctl-loadgen bars`: everything that coordination is held to, measured, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .server import Engine
from .tally import Client


class Part(StrEnum):
    """What can be measured by itself."""

    LOAD = "load"
    FRONTS = "fronts"
    SNAPSHOT = "snapshot"
    FRESH = "fresh"
    BACKLOG = "backlog"
    PARKED = "parked"
    FAULTS = "faults"
    IDLE = "idle"
    IMPORTS = "imports"


def register(app: typer.Typer, environment: Mapping[str, str]) -> None:
    """Adds the command; what it starts gets this environment."""

    @app.command()
    def bars(
        only: Annotated[
            list[Part] | None, typer.Option(help="Measure this part. Repeatable; default: all.")
        ] = None,
        store: Annotated[
            list[Engine] | None, typer.Option(help="With this store. Repeatable; default: both.")
        ] = None,
        client: Annotated[
            Client, typer.Option(help="What carries the calls of load and fronts; see sweep.")
        ] = Client.LEAN,
        quick: Annotated[
            bool, typer.Option("--quick", help="Small and short: shows that it works, says little.")
        ] = False,
        data_dir: Annotated[
            Path | None, typer.Option(exists=True, file_okay=False, help="Where to put the servers' data.")
        ] = None,
        json: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything here.")] = None,
        markdown: Annotated[
            Path | None,
            typer.Option(dir_okay=False, help="Write the table here; into a page, between its marks."),
        ] = None,
    ) -> None:
        """All that coordination is held to, each figure beside its bar; about 12 minutes.

        \b
        load      steps of the ladder: alone, 256 clients, claim_next, the library, batches
        fronts    what an RPC costs the server behind h2corn and behind grpcio
        snapshot  a transaction held open while 180,000 items pass; against none
        fresh     300,000 items in tables that were never analysed; against analysed ones
        backlog   Claim(100) and Ack with 10 thousand to 3 million ready items
        parked    2,000 claims that wait, and then get their items
        faults    `verify --faults`, short: its own command does a million items
        idle      a service and an agent with nothing to do
        imports   what each program imports, and how long that takes

        Nothing else should run. A missed bar is said, and is no error; work that was lost or done twice,
        or a part that could not be measured, is: the exit code is 1.
        """
        from .bars_run import run  # with PostgreSQL's driver and all states

        verified = run(
            list(only or Part), list(store or Engine), environment, client, quick, data_dir, json, markdown
        )
        raise typer.Exit(0 if verified else 1)
