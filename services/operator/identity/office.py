"""The whole of identity, put together for the operator: what it serves, and what it does by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentctl.identity.v1 import identity_service_pb2_grpc as pb_grpc
from libs import pki
from libs.cluster import Cluster
from libs.errors import MeshError
from libs.identity import Identity
from libs.mesh import OPERATOR
from libs.rpc.boundary import Limits

from .attest import LIFETIME, Rules
from .bindings import Bindings
from .denials import Denials
from .keda import ScalerClient
from .publication import Publication
from .rates import Rate, Rates
from .server import IdentityServer
from .vault import Vault

_log = logging.getLogger(__name__)

LIMITS = Limits(max_message=64 * 1024, max_connections=1024, max_streams=16, max_underway=8 * 1024 * 1024)
"""Of the listener of `mesh.IDENTITY`."""


@dataclass(frozen=True)
class Charter:
    """What an office is for and how it works."""

    domain: str
    tls_dir: Path
    """Where the operator's own certificate goes."""
    rules: Rules = field(default_factory=Rules)
    keda_namespace: str = ""
    """Where KEDA finds its certificate for the scaler; empty: nowhere."""
    terms: pki.Terms = field(default_factory=pki.Terms)
    everybody: Rate = field(default=Rate(100, 400))
    peer: Rate = field(default=Rate(20, 100))
    look_seconds: float = 10.0
    """How often the administrator's deny list is read."""
    keep_seconds: float = 60.0
    """How often the authorities are looked at: changes of other replicas, rotations that are asked for."""


class Office:
    """Made by `open_office`. Every replica serves and runs `run`; the one that leads runs `lead` as well."""

    def __init__(self, cluster: Cluster, charter: Charter, clock: Callable[[], float]) -> None:
        system = charter.rules.system_namespace
        self._charter = charter
        self._clock = clock
        self.identity = Identity(charter.tls_dir)
        self.vault = Vault(cluster, system, charter.domain, clock, charter.terms)
        self.denials = Denials(cluster, system, charter.domain, clock)
        self._publication = Publication(cluster, system)
        keda = charter.keda_namespace
        self._scaler_client = ScalerClient(cluster, keda, clock) if keda else None
        self._server = IdentityServer(
            cluster,
            self.vault,
            Bindings(cluster, system, clock),
            self.denials,
            Rates(charter.everybody, charter.peer, time.monotonic),
            charter.rules,
            clock,
        )

    def register(self, server: Any) -> None:
        """What `serving(mesh.IDENTITY, …)` takes."""
        pb_grpc.add_IdentityServiceServicer_to_server(self._server, server)

    async def publish(self, namespace: str) -> None:
        """Puts the trust bundle into a namespace; from then on it is kept right there."""
        await self._publication.publish(namespace, self.vault.authority.bundle, self.denials)

    async def run(self) -> None:
        """Sees what others change, and keeps the operator's own certificate fresh, for ever."""
        next_refresh = 0.0
        while True:
            now = time.monotonic()
            refresh = now >= next_refresh
            if await _done(self.look(refresh=refresh)) and refresh:
                next_refresh = now + self._charter.keep_seconds
            await asyncio.sleep(self._charter.look_seconds)

    async def lead(self) -> None:
        """Rotates, and publishes what has changed, for ever."""
        while True:
            self.denials.news.clear()
            await _done(self.keep())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._charter.keep_seconds):
                    await self.denials.news.wait()

    async def look(self, *, refresh: bool = True) -> None:
        """One round of `run`: the administrator's deny list, and with `refresh` what other replicas wrote."""
        if refresh:
            await self.vault.refresh()
            await self.denials.refresh()
        await self.denials.reread()
        self._certify()

    async def keep(self) -> None:
        """One round of `lead`."""
        try:
            await self.vault.keep()
            await self._publication.keep(self.vault.authority.bundle, self.denials)
        finally:  # scaling is not to stop for what hinders the rest
            if self._scaler_client:
                await self._scaler_client.keep(self.vault.authority)

    def _certify(self) -> None:
        """Our own certificate and whom we trust, written if they are not as they should be."""
        authority, identity = self.vault.authority, self.identity
        pki.write_denied(identity, self.denials.text)
        if self._clock() >= pki.renewal(identity, authority.bundle):
            service = f"{OPERATOR.name}.{self._charter.rules.system_namespace}.svc"
            authority.issue(
                f"spiffe://{authority.domain}/cp/{OPERATOR.name}",
                identity.folder,
                lifetime=LIFETIME,
                dns_names=[service, f"{service}.cluster.local", "localhost"],
                now=datetime.fromtimestamp(self._clock(), UTC),
            )
        else:
            pki.write_bundle(identity, authority.bundle)


async def _done(work: Awaitable[None]) -> bool:
    """Whether it ended well. If not, that is logged: whatever one round meets, the next one comes."""
    (outcome,) = await asyncio.gather(work, return_exceptions=True)
    if isinstance(outcome, MeshError | OSError):
        _log.warning("identity: %s; trying again", outcome)
    elif outcome is not None:
        _log.error("identity: trying again after a bug", exc_info=outcome)
    return outcome is None


@asynccontextmanager
async def open_office(
    cluster: Cluster, charter: Charter, clock: Callable[[], float] = time.time
) -> AsyncIterator[Office]:
    """An office with its authority at hand and the operator's own certificate written, before it yields."""
    office = Office(cluster, charter, clock)
    await office.vault.open()
    await office.look()
    yield office
