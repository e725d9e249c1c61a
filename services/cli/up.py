"""`agentctl up`: a whole plane on this machine, in the foreground. It becomes the plane's own process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import manifests
from .choices import Front, Store
from .output import Exit, FailedError, one_line_errors
from .session import Settings, StateDirOption


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("up")(up)


def up(
    ctx: typer.Context,
    state_dir: StateDirOption = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--filename", metavar="FILE", help="Manifests to apply at the start."),
    ] = None,
    store: Annotated[
        Store | None, typer.Option(help="Where work is kept. [default: embedded]", show_default=False)
    ] = None,
    dsn_file: Annotated[
        Path | None, typer.Option(help="With --store postgres: a file with its connection string.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            show_default=False,
            metavar="N",
            help="Port of coordination. [default: a free one, and the same again]",
        ),
    ] = None,
    gateways: Annotated[
        bool, typer.Option("--gateways", help="Agents reach models and tools through the gateways.")
    ] = False,
    front: Annotated[
        Front | None,
        typer.Option(help="HTTP/2 server of the components. [default: h2corn]", show_default=False),
    ] = None,
) -> None:
    """Start a plane here: operator, coordination, and a stand-in for a model. Runs until Ctrl-C.

    Everything listens on loopback only and speaks mTLS by a certificate authority of its own. Objects, keys,
    data and logs are in the state folder, from which the other commands know where to call. What you apply
    becomes agents: child processes with an identity, probes and restarts. Settings of the components are
    passed on (PROVIDER_LATENCY, AGENTCTL_LOG_LEVEL, ...).

    Ctrl-C stops agents first, then the components. After `kill -9` the next start ends what was left.

    \b
    Examples:
      agentctl up
      agentctl up -f examples/summarize.yaml
    """
    with one_line_errors():
        settings = Settings.of(ctx, state_dir)
        if (store is Store.POSTGRES) != (dsn_file is not None):
            raise FailedError("--store postgres and --dsn-file FILE go together", Exit.USAGE)
        if files:
            manifests.read(files)  # what is wrong with them is to be known now
        said = {  # what no option says, the environment may
            "AGENTCTL_FRONT": front,
            "PLANE_STORE": store,
            "PLANE_PORT": port,
            "PLANE_GATEWAYS": "true" if gateways else None,
            "PLANE_DATABASE_FILE": dsn_file and dsn_file.absolute(),
            "PLANE_MANIFESTS": ",".join(str(file.absolute()) for file in files or ()) or None,
        }
        ours = {name: str(value) for name, value in said.items() if value is not None}
        ours["AGENTCTL_STATE_DIR"] = str(settings.state.folder.absolute())
        # not a child: Ctrl-C, kill -9 and exit codes are the plane's own
        words = [sys.executable, "-P", "-m", "services.plane"]  # -P: the folder that we are in is anybody's
        os.execve(sys.executable, words, {**settings.environment, **ours})
