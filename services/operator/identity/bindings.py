"""One token, one key: whoever copies a token cannot use it for a key of his own.

The first key that a token is used for is written down before the certificate is signed, and kept until the
token ends, over restarts and for all replicas. Sixteen ledgers, by hash, so that writers seldom meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from libs.cluster import Bearer, Cluster
from libs.errors import DeniedError

from .ledger import Fact, Ledger

_LEDGERS = 16
_HOUR = 3600.0
_LONGEST_SECONDS = 24 * _HOUR
_SKEW_SECONDS = 60.0
_POD_HOURS = 4  # some renewals of an agent's certificate


class Bindings:
    """Which key each live token is for, and what the pods ran that were attested."""

    def __init__(self, cluster: Cluster, namespace: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ledgers = [
            Ledger(cluster, namespace, f"agentctl-identity-bindings-{n:x}", clock) for n in range(_LEDGERS)
        ]

    async def attested(self, pod_uid: str) -> str:
        """What the pod ran when it was last attested; empty if it never was."""
        ledger = self._ledger(pod_uid)
        if not (known := ledger.get(f"p.{pod_uid}")):
            await ledger.refresh()
            known = ledger.get(f"p.{pod_uid}")
        return known

    async def bind(self, bearer: Bearer, token: str, key: str, *, runs: str = "") -> None:
        """Keeps the token for this key, and with `runs` the pod for what it runs. DeniedError if the token is
        another key's, or lives too long to be kept in mind."""
        now = self._clock()
        if bearer.expires_at > now + _LONGEST_SECONDS + _SKEW_SECONDS:
            raise DeniedError("the token lives longer than a day; ask for one that does not")
        name = f"t.{_digest(bearer.token_id or token)}"
        facts = {name: Fact(key, max(bearer.expires_at, now) + _SKEW_SECONDS)}
        if runs:
            until = (now // _HOUR + _POD_HOURS) * _HOUR  # moves once an hour, and so does the write for it
            facts[f"p.{bearer.pod_uid}"] = Fact(runs, until)
        ledger = self._ledger(bearer.pod_uid or name)
        await ledger.add(facts)
        if ledger.get(name) != key:
            raise DeniedError(
                "the token was used for another key before; a new token can be used for a new key"
            )

    def _ledger(self, name: str) -> Ledger:
        return self._ledgers[int(_digest(name)[0], 16)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
