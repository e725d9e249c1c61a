"""`agentctl-loadgen verify` from outside: it believes the real service, and no broken one."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

_PLANTED = "-m services.coordination.tests.planted"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def verify(tmp_path: Path, *options: str, bug: str = "") -> tuple[int | None, str, Any]:
    """Exit code, output and summary of a small run with leases that run out."""
    command = ("--server-command", f"{shlex.quote(sys.executable)} {_PLANTED} {bug}") if bug else ()
    # Not under pytest's folder: nobody but its owner enters that, and root's PostgreSQL is somebody else.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen", "verify", *options, *command, "--data-dir", tempfile.gettempdir()),
        *("--batch", "20", "--lease", "1", "--workers", "3", "--json", tmp_path / "out.json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert (tmp_path / "out.json").exists(), text
    return process.returncode, text, json.loads((tmp_path / "out.json").read_text())


CALM = ("--items", "6000", "--calm", "600")
# Expiry is judged strictly only while others ack: this many are still at it when leases run out.
BUSY = ("--items", "60000", "--calm", "600")
# What a run arranges in the end needs no crowd before.
FEW = ("--items", "60", "--calm", "600")
AMOUNTS = {"uncounted": BUSY, "token-restart": FEW, "ack-any-token": FEW}

MEMORY = {
    "lost": "lost",
    "mixed-results": "another result than the one acked",
    "told-twice": "told twice by WatchResults",
    "double-grant": "two live owners",
    "token-reuse": "two grants with one token",
    "token-restart": "restart: a token did not grow",
    "ack-any-token": "a lost lease was honoured by ACK",
    "uncounted": "attempts: one that ran out was not counted",
}


@pytest.mark.parametrize(("bug", "kind"), MEMORY.items(), ids=MEMORY)
async def test_a_bug_of_the_memory_store_is_found(tmp_path: Path, bug: str, kind: str) -> None:
    amount = AMOUNTS.get(bug, CALM)
    code, output, (run,) = await verify(tmp_path, "--store", "memory", *amount, "--seed", "3", bug=bug)
    assert code == 1, output
    assert kind in run["violations"]
    assert kind in output


@pytest.mark.parametrize(
    ("bug", "kind"),
    {
        "lost": "lost",
        "double-grant": "two live owners",
        "ack-any-token": "a lost lease was honoured by ACK",
    }.items(),
)
async def test_a_bug_of_the_postgres_store_is_found(tmp_path: Path, bug: str, kind: str) -> None:
    amount = AMOUNTS.get(bug, CALM)
    code, output, (run,) = await verify(tmp_path, "--store", "postgres", *amount, "--seed", "3", bug=bug)
    assert code == 1, output
    assert kind in run["violations"]


async def test_both_stores_are_believed_under_faults(tmp_path: Path) -> None:
    code, output, runs = await verify(
        tmp_path, "--items", "200000", "--duration", "25", "--calm", "1", "--seed", "5"
    )
    assert code == 0, output
    memory, postgres = runs
    for run in runs:
        assert run["clean"]
        assert run["accepted"] == run["counts"]["settled"] + run["counts"]["dead"]
        assert run["counts"]["regrants"]
        assert run["counts"]["expired"]
    assert set(memory["faults"]) <= {"worker-kill", "worker-freeze", "cut", "freeze", "server-freeze"}
    assert sum(postgres["faults"].values()) > 3
