"""agentctl: the command line. Composes the commands and reads the environment; nothing else does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from libs.state import State

from . import (
    dead,
    describe,
    explain,
    login,
    logs,
    objects,
    output,
    pki,
    queues,
    scale,
    submit,
    tree,
    up,
    usage,
    validate,
    verbs,
    wait,
    watch,
    work,
    workers,
)
from .conformance import command as conformance
from .session import AddressOption, Settings, StateDirOption, TlsDirOption

_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, context_settings=_HELP)
up.register(app)
groups = {"work": work, "queues": queues, "dead": dead, "workers": workers, "pki": pki}
for name, group in groups.items():
    app.add_typer(group.app, name=name)
submit.register(work.app)
watch.register(work.app)
explain.register(app)
for part in (objects, describe, scale, wait, logs):
    part.register(app)
login.register(app)
tree.register(app)
usage.register(app)
validate.register(app)
verbs.register(app)
conformance.register(app)


@app.callback()
def root(
    ctx: typer.Context,
    address: AddressOption = None,
    tls_dir: TlsDirOption = None,
    state_dir: StateDirOption = None,
    _: Annotated[bool, typer.Option("--version", callback=output.version, is_eager=True)] = False,
) -> None:
    """Hand out work to fleets of AI agents; each item has exactly one owner.

    \b
    A whole plane on this machine, and first work for it:
      agentctl up                   (leave it running; in another terminal:)
      agentctl apply -f examples/summarize.yaml
      agentctl work submit demo/summarize examples/documents/*.txt --wait

    Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 denied, 5 unavailable.
    """
    folder = state_dir or os.environ.get("AGENTCTL_STATE_DIR") or _default_state_dir()
    address = address or os.environ.get("AGENTCTL_COORDINATION_ADDRESS")
    tls = tls_dir or os.environ.get("AGENTCTL_TLS_DIR")
    ctx.obj = Settings(State(Path(folder)), dict(os.environ), address, Path(tls) if tls else None)


def _default_state_dir() -> str:
    if os.geteuid() == 0:  # whose home is closed to others; its PostgreSQL runs as another user
        return "/var/lib/agentctl"
    import platformdirs  # only where nobody names the folder

    return platformdirs.user_state_dir("agentctl")


def main() -> None:
    """The command."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come as ours
    app(prog_name="agentctl")


if __name__ == "__main__":
    main()
