"""The clock and the disk of PostgreSQL, in our hands: a small library that it loads before the C library."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")
_DIALS = struct.Struct("<qq")


class ShimError(Exception):
    """It cannot be had here; the message says why."""


class Shim:
    """Made in `folder`, which PostgreSQL's user must be able to enter. Raises ShimError."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise ShimError("there is no C compiler (cc)")
        library, dials = folder / "shim.so", folder / "shim.dials"
        made = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"],
            capture_output=True,
            check=False,
        )
        if made.returncode:
            raise ShimError(f"cc failed: {made.stderr.decode(errors='replace').strip()[:200]}")
        dials.write_bytes(bytes(_DIALS.size))
        for path in (library, dials):
            path.chmod(0o755)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "AGENTCTL_VERIFY_SHIM": str(dials),
        }
        with dials.open("r+b") as file:
            self._dials = mmap.mmap(file.fileno(), _DIALS.size)
        self._offset = self._delay = 0.0

    def step(self, seconds: float) -> None:
        """Move the wall clock by so much, at once."""
        self._offset += seconds
        self._write()

    def delay(self, seconds: float) -> None:
        """Every sync takes so much longer from now on."""
        self._delay = seconds
        self._write()

    def _write(self) -> None:
        # Two numbers, each of which is written whole.
        cells = memoryview(self._dials).cast("q")
        cells[0], cells[1] = round(self._offset * 1e9), round(self._delay * 1e9)
        cells.release()

    def close(self) -> None:
        self._dials.close()
