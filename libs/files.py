"""Files that are replaced whole: whoever reads one never sees a half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace(path: Path, content: bytes, *, mode: int = 0o644, lasts: bool = False) -> None:
    """Puts the content there, or, with OSError, leaves what there was and nothing beside it. `lasts`: also if
    the machine stops right after."""
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # made 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            if lasts:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(scratch, mode)
        os.replace(scratch, path)
    except OSError:
        os.unlink(scratch)
        raise
