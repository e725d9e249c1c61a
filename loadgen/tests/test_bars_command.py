"""The command from outside."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

pytestmark = pytest.mark.processes


async def bars(*options):
    """Exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen", "bars", "--quick", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_parts_are_measured_printed_and_written(tmp_path):
    written = ("--json", str(tmp_path / "out.json"), "--markdown", str(tmp_path / "out.md"))
    code, output = await bars("--only", "parked", "--only", "imports", "--store", "memory", *written)
    assert code == 0, output
    summary = json.loads((tmp_path / "out.json").read_text())
    assert [line["name"] for line in summary["lines"]][:2] == ["200 parked claims", "imports of coordination"]
    assert summary["verified"]
    for text in (output, (tmp_path / "out.md").read_text()):
        assert "200 parked claims" in text
        assert "imports of coordination" in text
        assert "of 1 bars met" in text


async def test_a_part_that_has_nothing_to_measure_is_no_success():
    code, output = await bars("--only", "snapshot", "--store", "memory")
    assert code == 1
    assert "0 of 0 bars met" in output
