"""Who is refused although his certificate is good: pods that are gone, and whom an administrator names.

An administrator writes SPIFFE ids or certificate serial numbers (decimal), one a line, under any keys of the
ConfigMap `agentctl-denied`. Pods come from the operator and leave the list when their certificates have
ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from libs.cluster import Cluster
from libs.cluster.kinds import CONFIG_MAP
from libs.errors import ExhaustedError, NotFoundError
from libs.identity import Kind, Principal

from .attest import AGENT_LIFETIME
from .ledger import Fact, Ledger

_log = logging.getLogger(__name__)

NAME = "agentctl-denied"
PODS = "agentctl-denied-pods"
_SKEW_SECONDS = 300.0


class Denials:
    """The deny list of a trust domain, shared by all replicas of the operator."""

    def __init__(self, cluster: Cluster, namespace: str, domain: str, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._domain = domain
        self._clock = clock
        self._pods = Ledger(cluster, namespace, PODS, clock)
        self._named: frozenset[str] = frozenset()
        self._callers: Mapping[str, set[str]] = {}  # of those: who could call agents, by their namespace
        self.news = asyncio.Event()
        """Set when the list has changed."""

    async def deny_pod(self, namespace: str, agent: str, pod: str, uid: str) -> None:
        """Denies a pod that is gone until its last certificate has ended. UnavailableError; a full list is
        logged, and its certificate then works until it ends."""
        spiffe_id = f"spiffe://{self._domain}/ns/{namespace}/agent/{agent}/pod/{pod}/{uid}"
        until = self._clock() + AGENT_LIFETIME.total_seconds() + _SKEW_SECONDS
        try:
            if not self._pods.get(uid):
                await self._pods.add({uid: Fact(spiffe_id, until)})
                self.news.set()
        except ExhaustedError:
            _log.error("the deny list is full: %s is not on it", spiffe_id)

    async def refresh(self) -> None:
        """Sees which pods other replicas have denied."""
        before = self.text
        await self._pods.refresh()
        self._tell(before)

    async def reread(self) -> None:
        """Reads the administrator's list."""
        before = self.text
        try:
            written = await self._cluster.get(CONFIG_MAP, self._namespace, NAME)
        except NotFoundError:
            self._named = frozenset()
        else:
            self._named = frozenset(" ".join((written.get("data") or {}).values()).split())
        self._callers = _callers(self._named)
        self._tell(before)

    def _tell(self, before: str) -> None:
        if self.text != before:
            self.news.set()

    def denies(self, spiffe_id: str) -> bool:
        """Whether it was on the list when that was last seen."""
        return spiffe_id in self._named or spiffe_id in self._pods.standing()

    @property
    def text(self) -> str:
        """The file `denied` of every component."""
        return _lines(self._named.union(self._pods.standing()))

    def text_in(self, namespace: str) -> str:
        """The file `denied` of the agents of a namespace: those who could call them. Who else is denied is
        none of that namespace's business."""
        return _lines(self._callers.get("", set()) | self._callers.get(namespace, set()))


def _lines(entries: Iterable[str]) -> str:
    return "".join(f"{entry}\n" for entry in sorted(entries))


def _callers(entries: Iterable[str]) -> Mapping[str, set[str]]:
    """Whoever could call agents, by the agents' namespace; under the empty name, those of all namespaces. A
    serial number may be anybody's."""
    found: Mapping[str, set[str]] = defaultdict(set)
    for entry in entries:
        if entry.isdecimal():
            found[""].add(entry)
            continue
        try:
            principal = Principal.parse(entry)
        except ValueError:
            continue  # nobody has that id
        if principal.kind not in (Kind.AGENT, Kind.PRODUCER):
            found[principal.namespace].add(entry)
    return found
