"""Notices that the files of our own certificate have changed, and has them taken over."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

from libs.identity import Identity

_log = logging.getLogger(__name__)


class Files:
    """The state in which our certificate and the root were last seen.

    Whoever renews writes the key before the certificate, so a new certificate means that all is there.
    """

    def __init__(self, identity: Identity) -> None:
        self._certificate = identity.certificate
        self._key = identity.key
        self._paths = (identity.certificate, identity.root)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether they differ from the last time. OSError if one is not there."""
        found = self._look()
        changed = found != self._seen
        self._seen = found
        return changed

    def check(self) -> None:
        """OSError if the certificate and the key are not a pair, or not readable."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)

    def _look(self) -> list[tuple[int, int, int]]:
        stats = [path.stat() for path in self._paths]
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]


async def follow(files: Files, seconds: float, take: Callable[[], Awaitable[bool]]) -> None:
    """For ever: when the files have changed and are whole, calls `take`, again until it says that it has
    taken them over."""
    stale = False
    while True:
        await asyncio.sleep(seconds)
        try:
            stale = files.changed() or stale
            if stale:
                files.check()
                stale = not await take()
        except (OSError, ValueError) as error:
            _log.warning("cannot read our certificate, trying again: %s", error)
