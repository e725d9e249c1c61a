"""Where states are measured: servers of our own, and somebody who wants to know how far we are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..channel import Target
from ..server import Engine, Server
from ..sweep import own_server


@dataclass(frozen=True)
class Place:
    """What all states need."""

    folder: Path | None
    """For the servers' data; None: where temporary files go."""
    environment: Mapping[str, str]
    """Of the processes that are started."""
    say: Callable[[str], None]
    """Tells people, a line at a time."""

    @contextmanager
    def server(self, engine: Engine, **settings: str) -> Iterator[tuple[Target, Server]]:
        """A coordination service with an empty store, gone with the block. Errors in its log are told."""
        with own_server(engine, self.folder, {**self.environment, **settings}) as (target, server):
            try:
                yield target, server
            finally:
                for line in server.complaints():
                    self.say(f"  the server's log: {line}")
