"""What the command line costs before it does anything."""

from __future__ import annotations

import subprocess
import sys

COSTLY = (
    "asyncio",
    "ssl",
    "grpc",
    "google.protobuf",
    "yaml",
    "rich",
    "msgspec",
    "cryptography",
    "libs.cluster",
)
LOADED = f"import sys, services.cli.__main__; print([name for name in {COSTLY} if name in sys.modules])"


def test_help_needs_no_costly_module():
    found = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == "[]\n"
