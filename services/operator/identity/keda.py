"""KEDA's certificate for the scaler, in the Secret where KEDA looks for it: the only one that holds a private
key of the mesh, since KEDA can enrol with nobody."""

from __future__ import annotations

import hashlib
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from libs import pki
from libs.cluster import Cluster
from libs.cluster.kinds import SECRET
from libs.errors import MeshError, NotFoundError
from libs.pki.certificates import new_key, private_pem

from .attest import LIFETIME

_log = logging.getLogger(__name__)

NAME = "agentctl-scaler-client"
DIGEST = "agentctl.dev/digest"
"""Annotation: of what we wrote, so that we see when somebody else did."""
_FILES = ("ca.crt", "tls.crt", "tls.key")
_PATH = "/cp/keda"
_MANAGER = "agentctl-operator"


class ScalerClient:
    """Keeps the Secret right, whoever changes or deletes it. KEDA, or its namespace, may not be there yet."""

    def __init__(self, cluster: Cluster, namespace: str, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._clock = clock
        self._trouble: type[MeshError] | None = None

    async def keep(self, authority: pki.Authority) -> None:
        """Writes a new key and certificate when two thirds of its life are over, when the bundle vouches for
        it no more, when the roots are others, and when the Secret does not hold what we wrote. What hinders
        it is logged once: it is tried again next time."""
        try:
            await self._keep(authority)
        except MeshError as error:
            if self._trouble is not type(error):
                _log.warning("no certificate for KEDA in the namespace %s yet: %s", self._namespace, error)
            self._trouble = type(error)
        else:
            self._trouble = None

    async def _keep(self, authority: pki.Authority) -> None:
        if await self._is_right(authority.bundle):
            return
        key = new_key()
        chain = authority.sign(
            pki.new_request(key),
            f"spiffe://{authority.domain}{_PATH}",
            lifetime=LIFETIME,
            now=datetime.fromtimestamp(self._clock(), UTC),
        )
        files = {"ca.crt": authority.bundle.root.encode(), "tls.crt": chain, "tls.key": private_pem(key)}
        data = {name: b64encode(files[name]).decode() for name in _FILES}
        metadata = {
            "name": NAME,
            "namespace": self._namespace,
            "labels": {"app.kubernetes.io/managed-by": "agentctl"},
            "annotations": {DIGEST: _digest(data)},
        }
        secret = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
        await self._cluster.apply(secret, _MANAGER)
        _log.info("issued a certificate for KEDA in the namespace %s", self._namespace)

    async def _is_right(self, bundle: pki.TrustBundle) -> bool:
        try:
            secret = await self._cluster.get(SECRET, self._namespace, NAME)
        except NotFoundError:
            return False
        data = secret.get("data") or {}
        if not all(data.get(name) for name in _FILES):
            return False
        if (secret["metadata"].get("annotations") or {}).get(DIGEST) != _digest(data):
            return False
        root, chain, key = (b64decode(data[name]) for name in _FILES)
        return root == bundle.root.encode() and self._clock() < pki.renewal_of(chain, key, bundle)


def _digest(data: Mapping[str, str]) -> str:
    return hashlib.sha256("\n".join(data.get(name, "") for name in _FILES).encode()).hexdigest()
