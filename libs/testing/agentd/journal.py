"""Events: JSON lines on stderr, and a ring of the same lines for `agent://events`."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from . import clock
from .exits import Json

SCHEMA = "1.0"
LEVELS = ("debug", "info", "warn", "error")
READ_LIMIT = 512


class Journal:
    """One line an event, with a growing `seq` in the ring; what fell out of the ring is counted."""

    def __init__(self, stream: TextIO, *, run_id: str, trace_id: str, level: str, ring: int) -> None:
        self._stream = stream
        self._threshold = LEVELS.index(level)
        self._base: Json = {"run_id": run_id, "agent_id": "0", "agent_path": "0", "comp": "supervisor"}
        self._tail: Json = {"pid": os.getpid(), "trace_id": trace_id}
        self._ring: deque[Json] = deque(maxlen=ring)
        self._seq = 0
        self._followers: set[asyncio.Queue[str | None]] = set()

    def emit(self, level: str, event: str, **fields: Any) -> None:
        """Telemetry never fails a run: a closed stderr is let go."""
        if LEVELS.index(level) < self._threshold:
            return
        line = {"ts": clock.now(), "level": level, "event": event, **self._base, **self._tail, **fields}
        self._seq += 1
        self._ring.append({"seq": self._seq, **line})
        for follower in self._followers:
            follower.put_nowait(event)
        try:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            pass

    @contextmanager
    def following(self) -> Iterator[asyncio.Queue[str | None]]:
        """The names of the events from here on; None is the end."""
        follower: asyncio.Queue[str | None] = asyncio.Queue()
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)

    def close(self) -> None:
        """Ends whoever follows."""
        for follower in self._followers:
            follower.put_nowait(None)

    def read(self, after: int = 0, level: str = "debug", prefixes: Sequence[str] = ()) -> Json:
        """The body of `agent://events`: at most 512 events after a seq, of a level or graver."""
        lowest = LEVELS.index(level)
        events = [
            line
            for line in self._ring
            if line["seq"] > after
            and LEVELS.index(line["level"]) >= lowest
            and (not prefixes or line["event"].startswith(tuple(prefixes)))
        ]
        return {
            "events_schema": SCHEMA,
            "oldest_seq": self._ring[0]["seq"] if self._ring else 0,
            "newest_seq": self._seq,
            "dropped": self._seq - len(self._ring),
            "events": events[:READ_LIMIT],
        }
