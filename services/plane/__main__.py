"""agentctl-plane: reads the environment and runs the home that it names until SIGTERM."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

import uvloop

from libs import telemetry
from libs.enrol import RefusedError
from libs.errors import MeshError
from libs.settings import SettingsError, describe, load
from libs.state import State, StateError

from .apart import BrokenError, line_of
from .settings import Settings
from .terminal import Terminal


def main() -> None:
    """The command."""
    if sys.argv[1:]:
        sys.stderr.write(f"plane: configured by the environment only\n\n{describe(Settings, 'PLANE_')}\n")
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    terminal = os.fdopen(os.dup(2), "w")
    try:
        settings = load(Settings, "PLANE_")
        if settings.home == "pod":
            from . import pod

            uvloop.run(pod.run(settings, os.environ))
        else:
            _at_home(settings)
    except SettingsError as error:
        _end(terminal, error, 2)
    except (StateError, MeshError, RefusedError, OSError) as error:
        _end(terminal, line_of(error), 1)
    except BrokenError as error:
        log = settings.state_dir and State(settings.state_dir).log
        _end(terminal, f"{error} (its log: {log})", 1)


def _at_home(settings: Settings) -> None:
    from . import home

    assert settings.state_dir is not None  # Settings has checked
    state = State(settings.state_dir)
    state.prepare()
    log = os.open(state.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)  # the terminal is for people
    telemetry.start("plane", settings.log_level)
    lines = Terminal(1)
    try:
        uvloop.run(home.run(settings, os.environ, lines.say))
    finally:
        lines.close()


def _end(terminal: TextIO, error: object, code: int) -> None:
    with suppress(OSError):  # it may be closed
        terminal.write(f"error: {error}\n")
        terminal.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
