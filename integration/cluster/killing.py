"""kill -9 of a container, from outside: nobody inside can."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from libs.cluster import Object


def kill(pod: Object, container: str) -> None:
    """SIGKILL to its first process. Skips the test if its node is not this machine."""
    found = processes(pod, container)
    if not found:
        pytest.skip("the node's processes are not on this machine")
    os.kill(min(found), signal.SIGKILL)


def processes(pod: Object, container: str) -> Sequence[int]:
    """Those of a container, if its node is this machine."""
    said = pod["status"]
    statuses = [*said.get("containerStatuses", ()), *said.get("initContainerStatuses", ())]
    [full_id] = [each["containerID"] for each in statuses if each["name"] == container]
    of_container = full_id.rpartition("/")[2]
    paths = Path("/proc").glob("[0-9]*/cgroup")
    return [int(path.parent.name) for path in paths if of_container in _text(path)]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended meanwhile
        return ""
