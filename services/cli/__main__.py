"""agentctl: the command line. Composes the commands and reads the environment; nothing else does."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from . import dead, explain, pki, queues, up, watch, work, workers
from .session import AddressOption, Settings, StateDirOption, TlsDirOption
from .state import State

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
up.register(app)
app.add_typer(work.app, name="work")
app.add_typer(queues.app, name="queues")
app.add_typer(dead.app, name="dead")
app.add_typer(workers.app, name="workers")
app.add_typer(pki.app, name="pki")
explain.register(app)
watch.register(work.app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"agentctl {version('agentctl')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    address: AddressOption = None,
    tls_dir: TlsDirOption = None,
    state_dir: StateDirOption = None,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Hand out work to fleets of AI agents; each item has exactly one owner.

    \b
    A whole plane on this machine, and first work for it:
      agentctl up                                            (leave it running)
      agentctl work submit demo/summarize docs/*.txt --wait  (in another terminal)

    Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 denied, 5 unavailable.
    """
    environ = os.environ
    folder = state_dir or environ.get("AGENTCTL_STATE_DIR") or platformdirs.user_state_dir("agentctl")
    address = address or environ.get("AGENTCTL_COORDINATION_ADDRESS")
    tls = tls_dir or environ.get("AGENTCTL_TLS_DIR")
    ctx.obj = Settings(State(Path(folder)), dict(environ), address, Path(tls) if tls else None)


def main() -> None:
    """The command."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come as ours
    app(prog_name="agentctl")


if __name__ == "__main__":
    main()
