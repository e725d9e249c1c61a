"""What processes that have nothing to do take all the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from .. import processes
from ..processes import Process
from ..server import Server

_MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """MiB. Proportional and unique are None where the kernel does not tell us."""

    resident: float
    proportional: float | None
    unique: float | None

    def __str__(self) -> str:
        if self.proportional is None or self.unique is None:
            return f"RSS {self.resident:.1f} MiB"
        return f"RSS {self.resident:.1f}, PSS {self.proportional:.1f}, USS {self.unique:.1f} MiB"


@dataclass(frozen=True)
class Idle:
    """A core's share in percent, and the memory at the end."""

    percent: float
    memory: Memory


Group = Callable[[], Sequence[Process]]
"""Processes that belong together, as they are at the moment."""


def own(server: Server) -> list[Process]:
    """The service without its PostgreSQL."""
    theirs = {each.pid for each in database(server)}
    return [each for each in processes.tree(server.pid) if each.pid not in theirs]


def database(server: Server) -> list[Process]:
    """Its PostgreSQL, if it has one of its own."""
    return processes.postgres_under(server.data)


def memory(group: Sequence[Process]) -> Memory:
    """Of these together, now. What they share is in the resident sum as often as it is shared."""
    resident, proportional, unique = 0.0, 0.0, 0.0
    told = True
    for each in group:
        with suppress(psutil.NoSuchProcess):  # PostgreSQL's helpers come and go
            process = psutil.Process(each.pid)
            resident += process.memory_info().rss / _MIB
            try:
                full = process.memory_full_info()
            except psutil.AccessDenied:
                told = False
            else:
                proportional += full.pss / _MIB
                unique += full.uss / _MIB
    return Memory(resident, proportional, unique) if told else Memory(resident, None, None)


def watch(groups: Sequence[Group], seconds: float) -> list[Idle]:
    """What each group used in the next so many seconds, its ended children included; the kernel counts in
    steps of 10 ms.
    """
    before = [processes.usage(group()).cpu_seconds for group in groups]
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    found = [group() for group in groups]
    return [
        Idle(100 * (processes.usage(group).cpu_seconds - early) / elapsed, memory(group))
        for early, group in zip(before, found, strict=True)
    ]
