"""Whether a component of the control plane can do its job, which stands on a cluster and a certificate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from libs.errors import MeshError, UnavailableError
from libs.identity import Identity

from . import Cluster

_FRESH_SECONDS = 5.0  # for which the cluster's answer is good


class Readiness:
    """Ready while the cluster answers and there is a certificate. Probes may be many: of all together one
    asks the cluster at a time, and seldom while it answers."""

    def __init__(
        self, cluster: Cluster, identity: Identity, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answered_at = float("-inf")

    async def check(self) -> None:
        """UnavailableError."""
        if not self._identity.certificate.exists():
            raise UnavailableError("there is no certificate yet")
        async with self._asking:
            if self._clock() - self._answered_at <= _FRESH_SECONDS:
                return
            try:
                await self._cluster.version()
            except MeshError as error:
                raise UnavailableError(f"the cluster does not answer: {error}") from error
            self._answered_at = self._clock()
