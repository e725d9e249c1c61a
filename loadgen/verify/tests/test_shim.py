"""The library that PostgreSQL loads, in a process that looks at the clock and syncs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import Any

import pytest

from loadgen.verify.shim import Shim, ShimError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

_LOOK = """
import os, sys, time
folder = os.open(sys.argv[1], os.O_RDONLY)
for line in sys.stdin:
    began = time.monotonic()
    os.fsync(folder)
    print(time.time(), time.monotonic() - began, flush=True)
"""


def test_the_wall_clock_jumps_and_syncs_take_their_time(tmp_path):
    shim = Shim(tmp_path)
    process: Any = subprocess.Popen(
        [sys.executable, "-c", _LOOK, str(tmp_path)],
        env={**os.environ, **shim.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def look():
        process.stdin.write("look\n")
        process.stdin.flush()
        wall, took = map(float, process.stdout.readline().split())
        return wall - time.time(), took

    try:
        ahead, _ = look()
        assert abs(ahead) < 60
        shim.step(3600.0)
        assert look()[0] > 3000
        shim.step(-7200.0)
        assert look()[0] < -3000
        shim.delay(0.3)
        assert look()[1] >= 0.3
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
        shim.close()


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ShimError, match="no C compiler"):
        Shim(tmp_path)
