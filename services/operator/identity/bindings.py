"""One token, one key: whoever copies a token cannot use it for a key of his own.

The first key that a token is used for is written down before the certificate is signed, and kept until the
token ends, over restarts and for all replicas. Sixteen ledgers of pods' tokens, by hash, so that writers
seldom meet, and four of all others: nobody who asks for tokens takes the place of a pod.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

from libs.cluster import Bearer, Cluster
from libs.errors import DeniedError, ExhaustedError

from .ledger import Fact, Ledger

_OF_PODS, _OF_OTHERS = 16, 4
_MOST_TOKENS = 64
"""Live ones of one account, or of one pod, with a key."""
_HOUR = 3600.0
_LONGEST_SECONDS = 24 * _HOUR
_LONGEST_OF_POD_SECONDS = 48 * _HOUR  # see `plan.pod`
_SKEW_SECONDS = 60.0
_POD_HOURS = 4  # some renewals of an agent's certificate


class Bindings:
    """Which key each live token is for, and what the pods ran that were attested."""

    def __init__(self, cluster: Cluster, namespace: str, clock: Callable[[], float]) -> None:
        self._clock = clock

        def ledgers(name: str, count: int) -> list[Ledger]:
            return [Ledger(cluster, namespace, f"{name}-{n:x}", clock) for n in range(count)]

        self._pods = ledgers("agentctl-identity-bindings", _OF_PODS)
        self._underway: Counter[str] = Counter()  # being written down, by owner
        self._others = ledgers("agentctl-identity-bindings-others", _OF_OTHERS)

    async def attested(self, pod_uid: str) -> str:
        """What the pod ran when it was last attested; empty if it never was."""
        ledger = _among(self._pods, pod_uid)
        if not (known := ledger.get(f"p.{pod_uid}")):
            await ledger.refresh()
            known = ledger.get(f"p.{pod_uid}")
        return known

    async def bind(self, bearer: Bearer, token: str, key: str, *, runs: str = "") -> None:
        """Keeps the token for this key, and with `runs` the pod for what it runs. DeniedError if the token is
        another key's, or lives too long to be kept in mind; ExhaustedError if its account, or its pod, has
        too many live tokens with a key."""
        now = self._clock()
        longest = _LONGEST_OF_POD_SECONDS if bearer.pod_uid else _LONGEST_SECONDS
        if bearer.expires_at > now + longest + _SKEW_SECONDS:
            hours = round(longest / _HOUR)
            raise DeniedError(f"the token lives longer than {hours} h; ask for one that does not")
        owner = bearer.pod_uid or bearer.username
        prefix = f"t.{_digest(owner)[:16]}."
        name = prefix + _digest(bearer.token_id or token)
        facts = {name: Fact(key, max(bearer.expires_at, now) + _SKEW_SECONDS)}
        if runs:
            until = (now // _HOUR + _POD_HOURS) * _HOUR  # moves once an hour, and so does the write for it
            facts[f"p.{bearer.pod_uid}"] = Fact(runs, until)
        ledger = _among(self._pods if bearer.pod_uid else self._others, owner)
        await ledger.open()
        if not ledger.get(name) and ledger.count(prefix) + self._underway[prefix] >= _MOST_TOKENS:
            whose = f"pod {bearer.pod}" if bearer.pod_uid else bearer.username
            raise ExhaustedError(f"{whose} has {_MOST_TOKENS} live tokens in use: wait until one has ended")
        self._underway[prefix] += 1
        try:
            await ledger.add(facts)
        finally:
            self._underway[prefix] -= 1
            self._underway += Counter()  # forgets the zeros
        if ledger.get(name) != key:
            raise DeniedError(
                "the token was used for another key before; a new token can be used for a new key"
            )


def _among(ledgers: Sequence[Ledger], owner: str) -> Ledger:
    return ledgers[int(_digest(owner)[-1], 16) % len(ledgers)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
