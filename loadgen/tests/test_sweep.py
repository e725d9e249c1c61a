"""The command, from outside, against the fake."""

from __future__ import annotations

import asyncio
import csv
import json
import sys

import pytest

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


@pytest.mark.processes
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


@pytest.mark.processes
async def test_an_open_loop_says_what_it_offered_and_both_kinds_of_latency(serve, tmp_path):
    async with serve(fake_coordination()) as target:
        code, output = await sweep(
            target,
            tmp_path,
            "--mode",
            "single",
            "--mode",
            "batch",
            "--batch",
            "5",
            "--rate",
            "50",
            "--arrivals",
            "fixed",
        )
    assert code == 0, output
    single, batch = json.loads((tmp_path / "out.json").read_text())["rows"][1:]
    for row in (single, batch):
        assert row["step"]["rate"] == 50
        assert row["offered_per_second"] == pytest.approx(50, rel=0.2)
        assert row["shed_per_second"] == 0
        assert set(row["latencies_ms"]) == {"start", "submit", "claim", "ack", "cycle"}
        assert set(row["service_ms"]) == {"submit", "claim", "ack", "cycle"}
        assert row["latencies_ms"]["cycle"]["max"] >= row["service_ms"]["cycle"]["max"]
    assert single["calls"]["cycle"] == round(single["offered_per_second"] * 0.4)
    assert batch["calls"]["cycle"] * 5 == round(batch["offered_per_second"] * 0.4)


@pytest.mark.processes
async def test_claimers_that_compete_get_one_grant_an_item(serve, tmp_path):
    fake = fake_coordination()
    async with serve(fake) as target:
        code, output = await sweep(
            target, tmp_path, "--mode", "contention", "--clients", "20", "--ready", "3"
        )
    assert code == 0, output
    row = json.loads((tmp_path / "out.json").read_text())["rows"][1]
    assert row["verified"]
    assert row["empty_per_second"] > 0
    grants = row["cycles_per_second"]
    assert row["claims_per_grant"] == pytest.approx((grants + row["empty_per_second"]) / grants)
    assert fake.granted == len(fake.results) == len(fake.queue_of) >= 3


@pytest.mark.processes
async def test_a_competition_in_which_an_item_is_granted_twice_fails(serve, tmp_path):
    async with serve(fake_coordination("twice")) as target:
        code, output = await sweep(
            target, tmp_path, "--mode", "contention", "--clients", "20", "--ready", "20"
        )
    assert code == 1
    assert "acked 2 times" in output


@pytest.mark.processes
async def test_parked_claims_are_woken_by_each_item(serve, tmp_path):
    fake = fake_coordination()
    async with serve(fake) as target:
        code, output = await sweep(target, tmp_path, "--mode", "wake", "--clients", "6", "--pace", "60")
    assert code == 0, output
    row = json.loads((tmp_path / "out.json").read_text())["rows"][1]
    assert 0 < row["calls"]["wake"] == row["calls"]["wake_answered"] <= len(fake.results)
    assert row["latencies_ms"]["wake"]["p50"] > 0
    assert len(fake.results) == len(fake.queue_of)


@pytest.mark.processes
async def test_a_sweep_can_be_drawn_and_a_picture_that_cannot_be_is_refused_before_it(serve, tmp_path):
    async with serve(fake_coordination()) as target:
        options = ("--mode", "single", "--clients", "1,3", "--plot", tmp_path / "out.png")
        code, output = await sweep(target, tmp_path, *options, "--plot", tmp_path / "out.svg")
        assert code == 0, output
        refused, why = await sweep(target, tmp_path, "--plot", tmp_path / "out.gif")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "memory" not in (picture := (tmp_path / "out.svg").read_text())
    assert "remote single p99" in picture
    assert refused == 2
    assert "--plot" in why
    assert not (tmp_path / "out.gif").exists()


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
