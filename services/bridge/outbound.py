"""Whom the bridge believes at https endpoints that are not of the mesh, and what it shows them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

from libs.identity import Identity


class Outbound:
    """The system's authorities and those of a file; with an identity also its root, and its certificate is
    shown to whoever asks for one. All may change in place: a connection that is made later counts with
    them."""

    def __init__(self, identity: Identity | None, ca_file: Path | None) -> None:
        self._identity = identity
        self._ca_file = ca_file
        self._seen: list[tuple[int, int, int]] = []
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For the next connection. OSError if a file cannot be read, and was not read before."""
        try:
            seen = [_state(path) for path in self._paths()]
            if self._context is None or seen != self._seen:
                self._context, self._seen = self._made(), seen
        except OSError:
            if self._context is None:
                raise
        return self._context

    def _paths(self) -> Iterator[Path]:
        if self._ca_file:
            yield self._ca_file
        if self._identity:
            yield self._identity.certificate
            yield self._identity.root

    def _made(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca_file:
            context.load_verify_locations(self._ca_file)
        if self._identity:
            context.load_verify_locations(self._identity.root)
            context.load_cert_chain(self._identity.certificate, self._identity.key)
        return context


def _state(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
