"""What pods read of the world: ConfigMaps, Secrets and tokens."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from libs.cluster import Object
from libs.cluster.kinds import CONFIG_MAP, SECRET, Kind
from libs.cluster.local.cluster import LocalCluster
from libs.errors import NotFoundError, PreconditionError


class MissingError(PreconditionError):
    """An object or a key that a pod names is not there yet."""


@dataclass(frozen=True)
class Inputs:
    """Reads them as they are now."""

    cluster: LocalCluster

    async def config_map(
        self, namespace: str, name: str, *, optional: bool = False, key: str = ""
    ) -> dict[str, bytes]:
        """Its files by name. MissingError if it, or the key asked for, is not there and not optional."""
        thing = await self._get(CONFIG_MAP, namespace, name, optional)
        data = {key: value.encode() for key, value in (thing.get("data") or {}).items()}
        data |= {key: base64.b64decode(value) for key, value in (thing.get("binaryData") or {}).items()}
        return _with(data, key, optional, f"ConfigMap {namespace}/{name}")

    async def secret(
        self, namespace: str, name: str, *, optional: bool = False, key: str = ""
    ) -> dict[str, bytes]:
        """Its files by name. MissingError if it, or the key asked for, is not there and not optional."""
        thing = await self._get(SECRET, namespace, name, optional)
        data = {key: base64.b64decode(value) for key, value in (thing.get("data") or {}).items()}
        data |= {key: value.encode() for key, value in (thing.get("stringData") or {}).items()}
        return _with(data, key, optional, f"Secret {namespace}/{name}")

    async def token(self, pod: Object, audience: str, seconds: int) -> bytes:
        """A new token of the pod. MissingError if its ServiceAccount is not there."""
        try:
            return (await self.cluster.issue_pod_token(pod, audience, seconds)).encode()
        except NotFoundError as error:
            raise MissingError(str(error)) from error

    async def _get(self, kind: Kind, namespace: str, name: str, optional: bool) -> Object:
        try:
            return await self.cluster.get(kind, namespace, name)
        except NotFoundError as error:
            if optional:
                return {}
            raise MissingError(f"{kind.name} {namespace}/{name} is not there") from error


def _with(data: dict[str, bytes], key: str, optional: bool, name: str) -> dict[str, bytes]:
    if key and key not in data and not optional:
        raise MissingError(f"{name} has no key {key}")
    return data
