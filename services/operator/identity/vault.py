"""The keyring in its Secret: made once, read by every replica, rotated by the one that leads.

`kubectl annotate secret agentctl-ca agentctl.dev/rotate=root` (or the name of a trust class) asks for a
rotation; `agentctl.dev/rotate-overlap=10m` says how long the new authority is only published before it signs.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from libs.cluster import Cluster, Object
from libs.cluster.kinds import SECRET
from libs.errors import ConflictError, NotFoundError, PreconditionError
from libs.identity import TrustClass
from libs.pki import Authority, Keyring, Terms, kept

_log = logging.getLogger(__name__)

SECRET_NAME = "agentctl-ca"
ROTATE = "agentctl.dev/rotate"
OVERLAP = "agentctl.dev/rotate-overlap"
_KEY = "keyring.json"
_UNITS = {"s": 1, "m": 60, "h": 3600}


class Vault:
    """The authorities of one trust domain. `open` comes first."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        domain: str,
        clock: Callable[[], float],
        terms: Terms = Terms(),  # noqa: B008  (frozen)
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._domain = domain
        self._clock = clock
        self._terms = terms
        self._secret: Object = {}
        self._ring: Keyring | None = None

    async def open(self) -> None:
        """Reads the keyring, made if there is none. PreconditionError if it is of another trust domain;
        ValueError if the Secret does not hold one."""
        try:
            await self.refresh()
        except NotFoundError:
            ring = Keyring.begin(self._domain, self._now(), self._terms)
            metadata = {
                "name": SECRET_NAME,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/managed-by": "agentctl"},
            }
            thing = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata}
            try:
                await self._cluster.create(thing | _data(ring))
                _log.info("made the certificate authority of %s", self._domain)
            except ConflictError:
                pass  # another operator was first, and its authority is the one
            await self.refresh()

    async def refresh(self) -> None:
        """Sees what others have changed."""
        secret = await self._cluster.get(SECRET, self._namespace, SECRET_NAME)
        if secret["metadata"]["resourceVersion"] == self._secret.get("metadata", {}).get("resourceVersion"):
            return
        text = secret.get("data", {}).get(_KEY, "")
        ring = kept.load(b64decode(text).decode(), self._terms)
        if ring.domain != self._domain:
            raise PreconditionError(
                f"Secret {self._namespace}/{SECRET_NAME} is the authority of {ring.domain}, "
                f"and the settings say {self._domain}"
            )
        self._secret, self._ring = secret, ring

    async def keep(self) -> None:
        """Reads again, does the rotation that is asked for, renews what has lived two thirds of its life and
        drops what is past. For the replica that leads; nothing is lost when two do it."""
        await self.refresh()
        ring = self._asked().upkept(self._now())
        annotations = self._secret["metadata"].get("annotations", {})
        if ring is self.ring and ROTATE not in annotations:
            return
        rest = {name: value for name, value in annotations.items() if name not in (ROTATE, OVERLAP)}
        secret = self._secret | {"metadata": self._secret["metadata"] | {"annotations": rest}}
        try:
            self._secret = await self._cluster.replace(secret | _data(ring))
        except ConflictError:
            return  # next time
        self._ring = ring
        _log.info("the authorities have changed")

    @property
    def ring(self) -> Keyring:
        """All generations."""
        assert self._ring is not None, "open comes first"
        return self._ring

    @property
    def authority(self) -> Authority:
        """Who signs now, and whom to trust."""
        return self.ring.authority(self._now())

    def _asked(self) -> Keyring:
        annotations = self._secret["metadata"].get("annotations", {})
        if (asked := annotations.get(ROTATE)) is None:
            return self.ring
        try:
            which = None if asked == "root" else TrustClass(asked)
            overlap = _duration(annotations[OVERLAP]) if OVERLAP in annotations else None
            return self.ring.rotated(which, self._now(), overlap=overlap)
        except (ValueError, PreconditionError) as error:
            _log.error("%s=%s on Secret %s does nothing: %s", ROTATE, asked, SECRET_NAME, error)
            return self.ring

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _data(ring: Keyring) -> Object:
    return {"data": {_KEY: b64encode(kept.dump(ring).encode()).decode()}}


def _duration(text: str) -> timedelta:
    if text[-1:] not in _UNITS or not text[:-1].isdecimal():
        raise ValueError(f"{OVERLAP}: {text!r} is not a duration such as 10m or 24h")
    return timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
