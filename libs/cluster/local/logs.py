"""The output of a local pod's containers, as the runner writes it to pods/<uid>/<container>.log.

The output of the container before it is in <container>.log.1.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_PIECE = 65_536
_POLL_SECONDS = 0.1


def path_of(folder: Path, pod_uid: str, container: str, *, previous: bool = False) -> Path:
    """Where the output of a container is."""
    return folder / "pods" / pod_uid / f"{container}.log{'.1' if previous else ''}"


async def read(path: Path, *, tail: int | None, follow: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The pieces of a file from its last `tail` lines on, or from its start; more as they come while `follow`
    says so, then what is left. A file that is replaced meanwhile is read to its end, then the new one; one
    that is cut, from its start."""
    while (file := _opened(path)) is None:
        if not follow():
            return
        await asyncio.sleep(_POLL_SECONDS)
    try:
        _skip(file, tail)
        while True:
            more = follow()  # asked before reading: what was written until then is read
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # the runner has cut it
            while piece := file.read(_PIECE):
                yield piece
            if _is_replaced(path, file) and (newer := _opened(path)):
                file.close()
                file = newer
            elif not more:
                return
            else:
                await asyncio.sleep(_POLL_SECONDS)
    finally:
        file.close()


def _opened(path: Path) -> BinaryIO | None:
    with suppress(FileNotFoundError):
        return path.open("rb")
    return None


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    return False


def _skip(file: BinaryIO, tail: int | None) -> None:
    """Goes to where the last lines begin, reading backwards by pieces."""
    if tail is None:
        return
    position = file.seek(0, 2)
    wanted, at_end = tail, True
    while position > 0 and wanted > 0:
        start = max(0, position - _PIECE)
        file.seek(start)
        piece = file.read(position - start)
        end = len(piece) - 1 if at_end and piece.endswith(b"\n") else len(piece)
        at_end = False
        while wanted and (found := piece.rfind(b"\n", 0, end)) >= 0:
            wanted, end = wanted - 1, found
            if not wanted:
                file.seek(start + found + 1)
                return
        position = start
    file.seek(0 if wanted else position)
