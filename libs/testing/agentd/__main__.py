"""Starts the stand-in, as a module or as a folder that was mounted somewhere."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if not __package__:  # `python /path/agentd`: the folder itself is on the path, but its parent is what we need
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
process = importlib.import_module(f"{__package__ or Path(__file__).resolve().parent.name}.process")

if __name__ == "__main__":
    sys.exit(process.main())
