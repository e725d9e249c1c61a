"""Whom the agent believes at https endpoints that are not of the mesh, and what it shows them of itself."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from pathlib import Path

from libs.identity import Identity

_log = logging.getLogger(__name__)


class Believed:
    """The system's authorities and those of a file. With an identity also the mesh's, and our certificate is
    shown to those who ask for one. The files may change in place."""

    def __init__(self, ca_file: Path | None = None, identity: Identity | None = None) -> None:
        self._ca_file = ca_file
        self._identity = identity
        self._seen: list[tuple[int, int, int]] = []
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For the next connection; another object only if a file has changed. OSError if a file cannot be
        read and never could; later the last good state is kept, as files may be in the middle of a change."""
        try:
            seen = [_state(path) for path in self._paths()]
            if self._context is None or seen != self._seen:
                self._context, self._seen = self._made(), seen
        except OSError as error:
            if self._context is None:
                raise
            _log.warning("cannot read the files of TLS, keeping what they said", extra={"reason": str(error)})
        return self._context

    def _paths(self) -> Iterable[Path]:
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
