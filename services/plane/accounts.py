"""What a pod of Kubernetes finds mounted, for components in this process: tokens and the trust bundle.

The same files under the same names, kept fresh: tokens well before they end, the bundle when it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from libs.cluster import Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import CONFIG_MAP, SERVICE_ACCOUNT
from libs.enrol import Credentials
from libs.errors import ConflictError
from libs.pki.files import write

_AUDIENCE = "agentctl-identity"
_BUNDLE = "agentctl-trust"
_TOKEN_SECONDS = 3600
_RENEWAL_SECONDS = _TOKEN_SECONDS * 0.6
_RETRY_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Accounts:
    """ServiceAccounts of the system namespace, as files below a folder."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        folder: Path,
        identities: Path,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._cluster = cluster
        self._namespace = namespace
        self._tokens = folder / "tokens"
        self._trust = folder / "trust"
        self._identities = identities
        self.identity_address = ""
        """host:port of IdentityService, once it is known."""

    @property
    def root(self) -> Path:
        """The roots of the trust domain, PEM; there once anybody has enrolled."""
        return self._trust / "ca.crt"

    def credentials(self, account: str) -> Credentials:
        """How to enrol by that account."""
        return Credentials(
            tls_dir=self._identities / account,
            identity_address=self.identity_address,
            token_file=self._tokens / account,
            trust_dir=self._trust,
        )

    @asynccontextmanager
    async def mounted(self, accounts: Sequence[str]) -> AsyncIterator[None]:
        """The tokens of these accounts are there meanwhile; the bundle comes when it is published."""
        for folder in (self._tokens, self._trust):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for account in accounts:
            metadata = {"name": account, "namespace": self._namespace}
            with suppress(ConflictError):  # it is there
                await self._cluster.create(
                    {"apiVersion": "v1", "kind": SERVICE_ACCOUNT.name, "metadata": metadata}
                )
        await self._write_tokens(accounts)
        informer = Informer(self._cluster, CONFIG_MAP, self._namespace)
        informer.subscribe(self._see)
        tasks = [asyncio.create_task(self._renew(accounts)), asyncio.create_task(informer.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self, accounts: Sequence[str]) -> None:
        pause = _RENEWAL_SECONDS
        while True:
            await self._sleep(pause)
            # As a value: whatever it was, the next try may do, and without a token a component ends.
            (error,) = await asyncio.gather(self._write_tokens(accounts), return_exceptions=True)
            if error is not None:
                _log.error("the tokens of %s are not renewed", ", ".join(accounts), exc_info=error)
            pause = _RETRY_SECONDS if error else _RENEWAL_SECONDS

    async def _write_tokens(self, accounts: Sequence[str]) -> None:
        for account in accounts:
            token = await self._cluster.issue_token(self._namespace, account, _AUDIENCE, _TOKEN_SECONDS)
            write(self._tokens / account, token.encode(), mode=0o600)

    def _see(self, _: Object | None, thing: Object | None) -> None:
        if thing is not None and thing["metadata"]["name"] == _BUNDLE:
            for name, content in (thing.get("data") or {}).items():
                path = self._trust / name
                if not path.exists() or path.read_text() != content:
                    write(path, content.encode())
