"""The key of a model provider in the person's environment: a Secret where a pool names it, only there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from libs.cluster import Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import MODEL_POOL, SECRET
from libs.errors import ConflictError, MeshError, NotFoundError
from libs.settings import SettingsError

NAME, KEY = "openai", "api-key"
"""What a pool writes in its secretRef."""

_VARIABLE = "OPENAI_API_KEY"
_LABEL = "agentctl.dev/environment"
_log = logging.getLogger(__name__)


def key_of(environ: Mapping[str, str]) -> str:
    """OPENAI_API_KEY, or what the file OPENAI_API_KEY_FILE holds; empty: neither is there. SettingsError."""
    file = environ.get(f"{_VARIABLE}_FILE")
    try:
        return (Path(file).read_text() if file else environ.get(_VARIABLE, "")).strip()
    except (OSError, ValueError) as error:
        raise SettingsError(f"{_VARIABLE}_FILE: {file} cannot be read: {error}") from error


@asynccontextmanager
async def handed_out(cluster: Cluster, key: str) -> AsyncIterator[None]:
    """While the block runs, Secret `openai` is in each namespace that has a pool which names it. One that
    somebody has made is left as it is."""
    await _take_back(cluster)  # of one that was killed
    if not key:
        yield
        return
    wanting = asyncio.Queue[str]()

    def see(_: Object | None, pool: Object | None) -> None:
        if pool is not None and _names(pool):
            wanting.put_nowait(pool["metadata"]["namespace"])

    async def hand_out() -> None:
        while True:
            namespace = await wanting.get()
            try:
                await _make(cluster, namespace, key)
            except MeshError as error:
                _log.error("Secret %s/%s is not made: %s", namespace, NAME, error)

    informer = Informer(cluster, MODEL_POOL)
    informer.subscribe(see)
    tasks = [asyncio.create_task(informer.run()), asyncio.create_task(hand_out())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _take_back(cluster)


def _names(pool: Object) -> bool:
    refs = (
        (endpoint.get("credential") or {}).get("secretRef") for endpoint in pool["spec"].get("endpoints", ())
    )
    return {"name": NAME, "key": KEY} in refs


async def _make(cluster: Cluster, namespace: str, key: str) -> None:
    with suppress(ConflictError):  # it is there
        await cluster.create(
            {
                "apiVersion": "v1",
                "kind": SECRET.name,
                "metadata": {"name": NAME, "namespace": namespace, "labels": {_LABEL: _VARIABLE}},
                "stringData": {KEY: key},
            }
        )


async def _take_back(cluster: Cluster) -> None:
    for secret in (await cluster.list(SECRET, "", _LABEL)).items:
        metadata = secret["metadata"]
        with suppress(NotFoundError):
            await cluster.delete(SECRET, metadata["namespace"], NAME, uid=metadata["uid"])
