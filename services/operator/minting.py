"""A token of another ServiceAccount, for a neighbour in our pod that may do less than we do: kept in a folder
that both mount, as Kubernetes itself would mount it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from libs import files
from libs.cluster import Cluster
from libs.cluster.kinds import CONFIG_MAP
from libs.errors import MeshError

_log = logging.getLogger(__name__)

LIFE_SECONDS = 3600
"""An API server may be told to issue shorter tokens, but none of less than an hour."""
RENEW_SECONDS = 0.6 * LIFE_SECONDS
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_ROOTS = "kube-root-ca.crt"  # Kubernetes puts this ConfigMap into every namespace


class Mint:
    """Of one account of a namespace. The folder has to be there."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        account: str,
        folder: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._account = account
        self._folder = folder
        self._sleep = sleep

    async def run(self) -> None:
        """A fresh token whenever the last one has lived 60 % of its life, for ever."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self.mint()
            except (MeshError, OSError) as error:
                _log.warning("no token of %s/%s: %s; trying again", self._namespace, self._account, error)
                await self._sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
                await self._sleep(RENEW_SECONDS)

    async def mint(self) -> None:
        """Writes ca.crt, namespace and, last, token. MeshError, OSError."""
        token = await self._cluster.issue_token(self._namespace, self._account, "", LIFE_SECONDS)
        roots = (await self._cluster.get(CONFIG_MAP, self._namespace, _ROOTS))["data"]["ca.crt"]
        files.replace(self._folder / "ca.crt", roots.encode())
        files.replace(self._folder / "namespace", self._namespace.encode())
        files.replace(self._folder / "token", token.encode(), mode=0o600)
