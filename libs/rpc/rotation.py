"""Notices that the files of our own certificate have changed."""

from __future__ import annotations

from libs.identity import Identity


class Files:
    """The state in which our certificate and the root were last seen.

    Whoever renews writes the key before the certificate, so a new certificate means that all is there.
    """

    def __init__(self, identity: Identity) -> None:
        self._paths = (identity.certificate, identity.root)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether they differ from the last time. OSError if one is not there."""
        found = self._look()
        changed = found != self._seen
        self._seen = found
        return changed

    def _look(self) -> list[tuple[int, int, int]]:
        stats = [path.stat() for path in self._paths]
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
