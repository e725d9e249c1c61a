"""`agentctl-loadgen`: the command line."""

from __future__ import annotations

import os
import signal
import sys

import typer

from . import bars_command, sweep_command
from .agents import command as agents_command
from .gateway import command as gateway_command
from .management import command as management_command
from .provision import command as provision_command
from .scaling import command as scaling_command
from .verify import command as verify_command

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
sweep_command.register(app, os.environ)
bars_command.register(app, os.environ)
verify_command.register(app, os.environ)
provision_command.register(app, os.environ)
agents_command.register(app, os.environ)
management_command.register(app, os.environ)
scaling_command.register(app, os.environ)
gateway_command.register(app, os.environ)


@app.callback()
def about() -> None:
    """Measures coordination, reviews and verbs, agents and how they come up; checks what it measures."""


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without stopping what was started
    app()


if __name__ == "__main__":
    main()
