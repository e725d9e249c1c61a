"""Notices that the files of our own certificate have changed."""

from __future__ import annotations

import ssl

from libs.identity import Identity


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
