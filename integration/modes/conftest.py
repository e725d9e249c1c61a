"""One plane for all modes: their agents share nothing but it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..machine import Machine
from ..scripted import Say, Script, scripted
from ..toolserver import ToolServer, toolserver
from .home import Home, manifests

CLOSED = "http://127.0.0.1:1/v1"
"""Where nobody listens."""


@pytest.fixture(scope="package")
def home() -> Iterator[Home]:
    """The plane, in memory."""
    with tempfile.TemporaryDirectory(prefix="agentctl-modes-", ignore_cleanup_errors=True) as folder:
        machine = Machine(Path(folder))
        try:
            with scripted() as model:
                machine.ready(machine.up("--store", "memory"))
                yield Home(machine, model)
        finally:
            machine.close()


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    """A tool server of the test's own."""
    with toolserver() as server:
        yield server


@pytest.fixture(scope="package", autouse=True)
def scheduled(home: Home) -> Script:
    """An agent of every minute, from the beginning on: its test need not wait the whole of it."""
    return home.start(
        "scheduled",
        Say("A minute."),
        mode="schedule",
        schedule={"cron": "* * * * *"},
        instruction="Write.",
    )


@pytest.fixture(scope="package", autouse=True)
def forsaken(home: Home) -> None:
    """An agent whose model is nowhere, from the beginning on: it looks for it for half a minute."""
    home.apply(*manifests("forsaken", CLOSED, spec={"mode": "once", "instruction": "Write."}))
