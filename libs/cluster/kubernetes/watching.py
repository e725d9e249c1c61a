"""A watch's lines: pieces of bytes become changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from libs.cluster import Change

from .api import error_of


async def lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Each whole line, however long, and however it was cut. What the end leaves unfinished is dropped."""
    begun: list[bytes] = []
    async for piece in pieces:
        *finished, rest = piece.split(b"\n")
        for line in finished:
            yield b"".join((*begun, line))
            begun.clear()
        if rest:
            begun.append(rest)


def change_of(line: bytes) -> Change:
    """The change that a line tells; the error that it means if it tells of an error."""
    event: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    if event["type"] == "ERROR":
        raise error_of(event["object"].get("code", 500), event["object"])
    return Change(event["type"], event["object"])
