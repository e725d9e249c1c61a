"""Lines for whoever reads stdout, who may be slow or gone: the plane never waits for them."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from datetime import datetime

_MOST_LINES = 1000  # beyond it they are dropped
_LAST_SECONDS = 1.0


class Terminal:
    """Writes lines in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_LINES)
        self._thread = threading.Thread(target=self._write, name="terminal", daemon=True)
        self._thread.start()

    def say(self, name: str, event: str) -> None:
        """A line of what happened to whom; without a name just the text."""
        line = f"{datetime.now():%H:%M:%S}  {name:<32}  {event}\n" if name else f"{event}\n"
        with suppress(queue.Full):
            self._lines.put_nowait(line)

    def close(self) -> None:
        """Returns when all is written, or after a second."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
            self._thread.join(_LAST_SECONDS)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            left = line.encode()
            with suppress(OSError):  # nobody reads, and the terminal may be closed
                while left:
                    left = left[os.write(self._descriptor, left) :]
