"""The certificates between agent and bridge, by an authority that lives in this process alone."""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from libs.pki.certificates import (
    CLIENT,
    SERVER,
    authority_certificate,
    leaf_certificate,
    new_key,
    pem,
    private_pem,
)
from libs.pki.files import write

NAME = "localhost"
"""Whom the agent's certificate names, wherever on loopback it listens."""

_DOMAIN = "loopback"
_AUTHORITY_LIFETIME = timedelta(days=3650)
_READABLE, _OURS = 0o640, 0o600  # the agent may run as another user of the pod's group
_RETRY_SECONDS = 10.0
_log = logging.getLogger(__name__)


class Loopback:
    """An authority whose key never leaves memory, and two certificates by it: the agent's in the shared
    folder (tls.crt, tls.key, and ca.crt, which says whom it may let in), and ours in the private one.

    All files are whole when the constructor returns. OSError.
    """

    def __init__(self, shared: Path, private: Path, lifetime: timedelta) -> None:
        self._shared, self._private, self._lifetime = shared, private, lifetime
        self._agent_key, self._own_key = new_key(), new_key()
        key, now = new_key(), datetime.now(UTC)
        root = authority_certificate(_DOMAIN, "root", key, None, start=now, end=now + _AUTHORITY_LIFETIME)
        self._issuer = (root, key)
        shared.mkdir(parents=True, exist_ok=True)
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(shared / "ca.crt", pem(root), mode=_READABLE)
        write(shared / "tls.key", private_pem(self._agent_key), mode=_READABLE)
        write(private / "tls.key", private_pem(self._own_key), mode=_OURS)
        self.renew()

    def renew(self) -> None:
        """New certificates for the same keys, so that a reader never sees a pair that does not match."""
        start = datetime.now(UTC)
        end = start + self._lifetime
        agent = leaf_certificate(
            self._issuer,
            self._agent_key.public_key(),
            f"spiffe://{_DOMAIN}/agent",
            name=NAME,
            dns_names=[NAME],
            usages=[SERVER],
            start=start,
            end=end,
        )
        own = leaf_certificate(
            self._issuer,
            self._own_key.public_key(),
            f"spiffe://{_DOMAIN}/bridge",
            name="bridge",
            dns_names=[],
            usages=[CLIENT],
            start=start,
            end=end,
        )
        write(self._shared / "tls.crt", pem(agent), mode=_READABLE)
        write(self._private / "tls.crt", pem(own), mode=_OURS)
        context = ssl.create_default_context(cadata=pem(self._issuer[0]).decode())
        context.load_cert_chain(self._private / "tls.crt", self._private / "tls.key")
        self._context = context

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection to the agent: believes it alone, and shows it who we are."""
        return self._context

    async def keep(self) -> None:
        """Renews at two thirds of a certificate's life, for ever."""
        wait = self._lifetime.total_seconds() * 2 / 3
        while True:
            await asyncio.sleep(wait)
            try:
                self.renew()
            except OSError as error:
                _log.warning("cannot renew the agent's certificate, trying again: %s", error)
                wait = _RETRY_SECONDS
            else:
                wait = self._lifetime.total_seconds() * 2 / 3
