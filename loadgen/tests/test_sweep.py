"""The command, from outside, against the fake."""

from __future__ import annotations

import asyncio
import csv
import json
import sys

from .fake import fake_coordination


async def sweep(target, tmp_path, *options):
    """Exit code, output, and where the JSON is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen", "sweep"),
        *("--address", target.address, "--tls-dir", target.identity.folder),
        *("--warmup", "0.1", "--duration", "0.4", "--lease", "1", "--processes", "2"),
        *("--csv", tmp_path / "out.csv", "--json", tmp_path / "out.json"),
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_sweep_measures_every_rung_and_verifies_it(serve, tmp_path):
    async with serve(fake_coordination()) as target:
        modes = ("--mode", "single", "--mode", "batch")
        code, output = await sweep(target, tmp_path, *modes, "--clients", "1,5")
    assert code == 0, output
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["verified"]
    assert [(row["step"]["mode"], row["step"]["clients"]) for row in summary["rows"]] == [
        ("check", 16),
        ("single", 1),
        ("single", 5),
        ("batch", 1),
        ("batch", 5),
    ]
    assert all(row["cycles_per_second"] > 0 and row["generator_us_per_rpc"] > 0 for row in summary["rows"])
    with (tmp_path / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["verified"] for line in lines] == ["True"] * 5
    assert all(float(line["ack_p99_ms"]) >= float(line["ack_p50_ms"]) > 0 for line in lines[1:])


async def test_a_sweep_of_a_cheating_server_fails_and_says_why(serve, tmp_path):
    async with serve(fake_coordination("twice")) as target:
        code, output = await sweep(target, tmp_path, "--mode", "single", "--clients", "4")
    assert code == 1
    assert "NOT VERIFIED" in output
    assert "ledger" in output
    assert not json.loads((tmp_path / "out.json").read_text())["verified"]


async def test_a_sweep_of_nothing_fails(serve, tmp_path):
    async with serve(fake_coordination()) as target:
        pass
    code, output = await sweep(target, tmp_path, "--mode", "single", "--clients", "1")
    assert code == 1
    assert f"no connection to {target.address}" in output
