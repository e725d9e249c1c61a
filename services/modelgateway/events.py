"""Server-sent events out of pieces of bytes. Pure.

What goes on is cut where events end, so that nothing of ours ever stands inside of one; otherwise it is what
came.
"""

from __future__ import annotations

import re

_END = re.compile(rb"\n\n|\r\r|\n\r\n")
_LINE = re.compile(rb"\r\n|\n|\r")


class Cutter:
    """Whole events, as they come."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = b""

    def push(self, piece: bytes) -> list[bytes]:
        """The events that are whole now, with the empty lines that end them. ValueError for one of more than
        `most` bytes."""
        data = self._rest + piece if self._rest else piece
        events, begun = [], 0
        for match in _END.finditer(data):
            events.append(data[begun : match.end()])
            begun = match.end()
        self._rest = data[begun:]
        if len(self._rest) > self._most:
            raise ValueError("an event is too large")
        return events

    def rest(self) -> bytes:
        """What came after the last whole event."""
        return self._rest


def data_of(event: bytes) -> bytes:
    """The data of an event; empty if it has none, as a comment."""
    if event.startswith(b"data: ") and (end := event.find(b"\n")) > 0 and event[end:].strip() == b"":
        return event[6:end].rstrip(b"\r")
    lines = _LINE.split(event)
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
