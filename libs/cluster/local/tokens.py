"""Tokens of the local home: JWTs with the claims of Kubernetes' bound ServiceAccount tokens.

https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens
They are signed (EdDSA) with a key that never leaves the folder of the home.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from libs.cluster import Bearer, Object
from libs.cluster.kinds import POD, SERVICE_ACCOUNT, Kind
from libs.errors import InvalidError, NotFoundError, UnauthenticatedError

ISSUER = "https://agentctl.local"
_ALGORITHM = "EdDSA"
_OVERDUE_SECONDS = 60  # after its deletionTimestamp: from then on API servers take it for gone
_CLAIMS = ("iss", "sub", "aud", "exp", "iat", "nbf", "jti")

Find = Callable[[Kind, str, str], Object]
"""Reads an object now, or raises NotFoundError."""


def signing_key(path: Path) -> Ed25519PrivateKey:
    """The key in that file (mode 0600), made when there is none."""
    if not path.exists():
        made = Ed25519PrivateKey.generate()
        text = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidError(f"{path} is not an Ed25519 key")
    return key


class Tokens:
    """Issues tokens and says whom one belongs to. `clock` gives unix seconds."""

    def __init__(self, key: Ed25519PrivateKey, find: Find, clock: Callable[[], float] = time.time) -> None:
        self._key, self._find, self._clock = key, find, clock

    def issue(
        self, namespace: str, account: str, audience: str, seconds: int, pod: Object | None = None
    ) -> str:
        """A token of a ServiceAccount, bound to a pod if one is given. NotFoundError, InvalidError."""
        if not audience or seconds < 1:
            raise InvalidError("a token needs an audience and at least one second to live")
        found = self._find(SERVICE_ACCOUNT, namespace, account)
        bound: dict[str, Any] = {"namespace": namespace, "serviceaccount": _named(found)}
        if pod is not None:
            bound["pod"] = _named(pod)
        now = int(self._clock())
        claims = {
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{namespace}:{account}",
            "aud": [audience],
            "iat": now,
            "nbf": now,
            "exp": now + seconds,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": bound,
        }
        return jwt.encode(claims, self._key, _ALGORITHM)

    def review(self, token: str, audience: str) -> Bearer:
        """Whom a token belongs to. UnauthenticatedError unless it is ours, in time (without leeway: this very
        clock issued it), for this audience, and its account and pod are still those and not overdue."""
        try:
            # PyJWT has no clock to be given: it checks the rest, we the times
            claims = jwt.decode(
                token,
                self._key.public_key(),
                algorithms=[_ALGORITHM],
                audience=audience,
                issuer=ISSUER,
                options={
                    "require": list(_CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False,
                },
            )  # fmt: skip
        except jwt.InvalidTokenError as error:
            raise UnauthenticatedError(f"the token is not valid: {error}") from error
        if not claims["nbf"] <= self._clock() < claims["exp"]:
            raise UnauthenticatedError("the token has expired")
        bound = claims["kubernetes.io"]
        namespace, account, pod = bound["namespace"], bound["serviceaccount"], bound.get("pod", {})
        self._require(SERVICE_ACCOUNT, namespace, account)
        if pod:
            self._require(POD, namespace, pod)
        extra: dict[str, tuple[str, ...]] = {
            "authentication.kubernetes.io/credential-id": (f"JTI={claims['jti']}",)
        }
        if pod:
            extra["authentication.kubernetes.io/pod-name"] = (pod["name"],)
            extra["authentication.kubernetes.io/pod-uid"] = (pod["uid"],)
        return Bearer(
            username=claims["sub"],
            groups=(
                "system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated",
            ),
            uid=account["uid"],
            pod=pod.get("name", ""),
            pod_uid=pod.get("uid", ""),
            token_id=claims["jti"],
            expires_at=claims["exp"],
            extra=extra,
        )  # fmt: skip

    def _require(self, kind: Kind, namespace: str, bound: dict[str, str]) -> None:
        try:
            metadata = self._find(kind, namespace, bound["name"])["metadata"]
        except NotFoundError:
            metadata = {}
        if metadata.get("uid") != bound["uid"] or self._is_overdue(metadata):
            raise UnauthenticatedError(f"the token's {kind.name} {bound['name']} is gone")

    def _is_overdue(self, metadata: Object) -> bool:
        deadline = metadata.get("deletionTimestamp")
        if not deadline:
            return False
        return self._clock() > datetime.fromisoformat(deadline).timestamp() + _OVERDUE_SECONDS


def _named(thing: Object) -> dict[str, str]:
    return {"name": thing["metadata"]["name"], "uid": thing["metadata"]["uid"]}
