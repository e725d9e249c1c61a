"""Numbers that all processes of a run share; each has one writer, and outlives it."""

from __future__ import annotations

import mmap
from enum import IntEnum
from pathlib import Path

from .plan import MAX_WORKERS

_CELLS = 8


class Phase(IntEnum):
    """What the workers are to do."""

    RUN = 0
    DRAIN = 1  # submit nothing more
    STOP = 2


class Cell(IntEnum):
    """What a worker counts."""

    SUBMITTED = 0  # items of its share that were accepted
    STALLS = 1  # times it held leases beyond their end
    UNKNOWN = 2  # calls whose outcome was unknown, and that were repeated
    DONE = 3  # 1: its share is submitted, or it was told to submit no more


class Board:
    """A mapped file of numbers."""

    def __init__(self, path: Path) -> None:
        size = 8 * (_CELLS + MAX_WORKERS * _CELLS)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._cells = memoryview(self._map).cast("q")

    @property
    def phase(self) -> Phase:
        return Phase(self._cells[0])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._cells[0] = phase

    @property
    def seen(self) -> int:
        """Results that the watcher has got."""
        return self._cells[1]

    @seen.setter
    def seen(self, count: int) -> None:
        self._cells[1] = count

    def get(self, slot: int, cell: Cell) -> int:
        return self._cells[_CELLS + slot * _CELLS + cell]

    def set(self, slot: int, cell: Cell, count: int) -> None:
        self._cells[_CELLS + slot * _CELLS + cell] = count

    def add(self, slot: int, cell: Cell, count: int = 1) -> None:
        self._cells[_CELLS + slot * _CELLS + cell] += count

    def total(self, cell: Cell) -> int:
        """Over all workers."""
        return sum(self._cells[_CELLS + cell :: _CELLS])

    def close(self) -> None:
        self._cells.release()
        self._map.close()
