"""A coordination process of our own, the real one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile

import pytest

from libs.testing import ca
from loadgen.child import ServerError
from loadgen.server import Engine, running

pytestmark = pytest.mark.processes


async def sweep(tmp_path, *options):
    """Exit code, output and summary of a short sweep."""
    # Not under pytest's folder: nobody but its owner enters that, and root's PostgreSQL is somebody else.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen", "sweep", *options),
        *("--warmup", "0.1", "--duration", "0.5", "--processes", "2", "--data-dir", tempfile.gettempdir()),
        *("--json", tmp_path / "out.json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode(), json.loads((tmp_path / "out.json").read_text())


@pytest.mark.parametrize("store", [Engine.MEMORY, pytest.param(Engine.POSTGRES, marks=pytest.mark.postgres)])
async def test_a_sweep_of_a_store_is_verified_and_knows_what_it_cost(tmp_path, store):
    modes = ("--mode", "single", "--mode", "batch", "--mode", "library")
    code, output, summary = await sweep(tmp_path, "--store", store, *modes, "--clients", "3")
    assert code == 0, output
    assert len(summary["rows"]) == 4
    for row in summary["rows"]:
        assert row["verified"]
        assert row["server_us_per_rpc"] > 0
        assert row["server_mib"] > 10
        assert (row["database_us_per_cycle"] is not None) == (store is Engine.POSTGRES)
    assert os.listdir(tmp_path) == ["out.json"]


async def test_claim_next_saves_an_rpc_in_three(tmp_path):
    code, output, summary = await sweep(
        tmp_path, "--store", "memory", "--mode", "single", "--claim-next", "--request-ids", "--clients", "4"
    )
    assert code == 0, output
    row = summary["rows"][1]
    assert row["rpcs_per_second"] == pytest.approx(2 * row["cycles_per_second"], rel=0.1)


@pytest.mark.parametrize(
    ("front", "kinds"), [("h2corn", ["single", "batch", "contention", "wake"]), ("grpcio", ["batch", "wake"])]
)
async def test_the_lean_client_is_served_by_both_fronts(tmp_path, front, kinds):
    options = (
        "--store",
        "memory",
        "--client",
        "lean",
        "--front",
        front,
        "--batch",
        "1000",
        "--payload",
        "2000",
    )
    modes = [option for kind in kinds for option in ("--mode", kind)]
    code, output, summary = await sweep(tmp_path, *options, *modes, "--clients", "4")
    assert code == 0, output
    assert [row["step"]["client"] for row in summary["rows"]] == ["lean"] * (1 + len(kinds))
    assert not any(row["errors"] for row in summary["rows"])


@pytest.mark.postgres
async def test_a_claim_parked_at_one_replica_is_woken_by_a_submit_at_the_other(tmp_path):
    options = ("--store", "postgres", "--mode", "wake", "--two-replicas", "--clients", "5", "--pace", "30")
    code, output, summary = await sweep(tmp_path, *options)
    assert code == 0, output
    row = summary["rows"][1]
    assert row["calls"]["wake"] > 0
    assert row["server_mib"] > 2 * 50  # both


def test_a_server_that_does_not_start_says_why(tmp_path):
    identity = ca.identity(ca.authority(), tmp_path, "/cp/coordination")
    with (
        pytest.raises(ServerError, match="COORDINATION_BOGUS"),
        running(Engine.MEMORY, identity, tmp_path, {**os.environ, "COORDINATION_BOGUS": "1"}),
    ):
        pass
