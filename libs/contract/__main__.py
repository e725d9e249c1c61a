"""Prints docs/contract.md."""

from __future__ import annotations

import sys

from .page import page

if __name__ == "__main__":
    sys.stdout.write(page())
