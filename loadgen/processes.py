"""CPU time and memory of process trees, as Linux counts them in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """Seconds of CPU since the processes began, ended children included, and resident bytes now."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0

    @classmethod
    def sum(cls, usages: Sequence[Usage]) -> Usage:
        """Of all together."""
        return cls(sum(each.cpu_seconds for each in usages), sum(each.resident_bytes for each in usages))


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    pid: int
    parent: int
    command: str
    usage: Usage


def usage(processes: Iterable[Process]) -> Usage:
    """The sum over these."""
    return Usage.sum([process.usage for process in processes])


def machine_seconds() -> float:
    """CPU that the whole machine was busy with since it started, stolen time included: it is not ours."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, (_PROC / "stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) * _TICK


def tree(pid: int) -> list[Process]:
    """A process and everything below it, as far as it is there."""
    everyone = list(_everyone())
    found = {process.pid: process for process in everyone if process.pid == pid}
    grew = True
    while grew:
        children = [each for each in everyone if each.parent in found and each.pid not in found]
        found |= {child.pid: child for child in children}
        grew = bool(children)
    return list(found.values())


@dataclass(frozen=True)
class Activity:
    """What all threads of some processes did until now."""

    milliseconds: float
    """On a processor."""
    wakeups: int
    """Voluntary context switches."""


def activity(pids: Iterable[int]) -> Activity:
    """Linux counts ticks of 10 ms in `stat`, which sleepers slip through, and nanoseconds in `schedstat`."""
    nanoseconds = wakeups = 0
    for thread in (each for pid in pids for each in (_PROC / str(pid) / "task").iterdir()):
        nanoseconds += int((thread / "schedstat").read_text().split()[0])
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                wakeups += int(line.split()[1])
    return Activity(nanoseconds / 1e6, wakeups)


def postgres_under(folder: Path) -> list[Process]:
    """PostgreSQL's processes on data directories in this folder; each runs inside its own."""
    root = folder.resolve()
    return [each for each in _everyone() if each.command == "postgres" and _runs_under(each.pid, root)]


def _everyone() -> Iterator[Process]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended between the listing and the reading
            yield _parse(stat)


def _parse(stat: str) -> Process:
    head, _, tail = stat.rpartition(") ")  # the command may hold spaces and parentheses
    pid, _, command = head.partition(" (")
    fields = tail.split()
    cpu = sum(int(ticks) for ticks in fields[11:15]) * _TICK  # utime stime cutime cstime
    return Process(int(pid), int(fields[1]), command, Usage(cpu, int(fields[21]) * _PAGE))


def _runs_under(pid: int, root: Path) -> bool:
    try:
        return Path(os.readlink(_PROC / str(pid) / "cwd")).is_relative_to(root)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
