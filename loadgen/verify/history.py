"""What everybody saw, as records of fixed size in files that only grow.

A record is in the kernel's hands before its writer acts on what it says, so a killed worker loses only
what nobody knew. All times are nanoseconds of the one monotonic clock of the machine.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_LAYOUT = struct.Struct("<BBHIqqqQ")
SIZE = _LAYOUT.size
_CHUNK = SIZE << 14


class Event(IntEnum):
    """What a record tells; `status`, `worker`, `value` beside what their names say."""

    SUBMIT = 1  # ACCEPTED: `value` items from `item` on
    GRANT = 2  # status: the attempt; value: when the lease ends at the earliest
    ACK = 3
    RENEW = 4  # value of OK: when the lease ends at the earliest
    FAIL = 5
    RELEASE = 6
    RESULT = (
        7  # status: the state; token, worker: of the ack; before: attempts; value: the `story` of failures
    )


class Verdict(IntEnum):
    """The numbers of the wire, and UNKNOWN: sent, and no answer (yet)."""

    UNKNOWN = 0
    OK = 1
    LOST = 2
    SETTLED = 3


class Record(NamedTuple):
    """One line of the history."""

    event: int
    status: int
    worker: int
    item: int
    token: int
    before: int
    after: int
    value: int


class Writer:
    """Appends to one file, whole records at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, records: Iterable[tuple[int, int, int, int, int, int, int, int]]) -> None:
        """Now, before anything is done about them."""
        data = b"".join([_LAYOUT.pack(*record) for record in records])
        if os.write(self._file, data) != len(data):
            raise OSError("the history could not be written")

    def close(self) -> None:
        os.close(self._file)


def chunks(path: Path) -> Iterator[bytes]:
    """Whole records, many at a time; a last one that was cut short is left out."""
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            yield data[: len(data) // SIZE * SIZE]


def records(data: bytes) -> Iterator[Record]:
    return map(Record._make, _LAYOUT.iter_unpack(data))


def item_at(data: bytes, offset: int) -> int:
    """The item of the record at this offset."""
    return int.from_bytes(data[offset + 4 : offset + 8], "little")


class Ending(NamedTuple):
    """How an earlier attempt ended."""

    attempt: int
    expired: bool


def story(endings: Iterable[Ending]) -> int:
    """Up to ten of them in a number; attempts above 31 are told as 31."""
    number = count = 0
    for count, (attempt, expired) in enumerate(endings, 1):
        number |= (min(attempt, 31) << 1 | expired) << (count * 6 - 2)
    return number | count


def endings(number: int) -> list[Ending]:
    """What `story` told."""
    places = (number >> (nth * 6 + 4) & 63 for nth in range(number & 15))
    return [Ending(place >> 1, bool(place & 1)) for place in places]
