"""What a container says at its end, in the file of its terminationMessagePath.

https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/. Only the default
policy, File: no message is made of the log.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from libs.cluster import Object

MOST_BYTES = 4096
_DEFAULT = "/dev/termination-log"


def path_in(container: Object) -> str:
    """Where the container has the file."""
    return container.get("terminationMessagePath") or _DEFAULT


def begin(path: Path) -> None:
    """An empty file, whatever the container before has left there. OSError."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def read(path: Path) -> str:
    """What the file says, of a longer one the last MOST_BYTES as the kubelet has it; "" if there is no file
    any more. The container may have put anything in its place."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode):
            return ""
        return os.pread(handle, MOST_BYTES, max(0, seen.st_size - MOST_BYTES)).decode(errors="replace")
    finally:
        os.close(handle)
