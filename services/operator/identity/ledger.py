"""Small facts with an end, in a ConfigMap that several replicas write.

A ConfigMap and not a Secret, since nothing here is secret: hashes, and ids of pods. Writes that come at the
same time go in one; a writer that was overtaken reads again and keeps what the other one wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from libs.cluster import Cluster, Object
from libs.cluster.kinds import CONFIG_MAP
from libs.errors import ConflictError, ExhaustedError, NotFoundError, UnavailableError

_TRIES = 8
_SKEW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Fact:
    """A text, and until when (unix seconds) it is kept."""

    text: str
    until: float


class Ledger:
    """One ConfigMap of facts by key. A fact stands until its end: a later one of the same key does not
    replace it, though it may prolong it."""

    def __init__(
        self, cluster: Cluster, namespace: str, name: str, clock: Callable[[], float], most: int = 4096
    ) -> None:
        self._cluster = cluster
        self._namespace, self._name = namespace, name
        self._clock = clock
        self._most = most
        self._thing: Object | None = None  # as last seen
        self._facts: dict[str, Fact] = {}
        self._waiting: list[Mapping[str, Fact]] = []
        self._writing = asyncio.Lock()

    def get(self, key: str) -> str:
        """What was last seen to stand there; empty if nothing."""
        fact = self._facts.get(key)
        return fact.text if fact and fact.until > self._clock() else ""

    def count(self, prefix: str) -> int:
        """How many facts, of keys that begin so, were last seen to stand."""
        now = self._clock()
        return sum(fact.until > now for key, fact in self._facts.items() if key.startswith(prefix))

    def standing(self) -> list[str]:
        """The texts of all facts that were last seen to stand."""
        now = self._clock()
        return [fact.text for fact in self._facts.values() if fact.until > now]

    async def open(self) -> None:
        """Sees what is there, unless it has before."""
        if self._thing is None:
            await self.refresh()

    async def refresh(self) -> None:
        """Sees what others have written."""
        async with self._writing:
            await self._read()

    async def add(self, facts: Mapping[str, Fact]) -> None:
        """Writes these down unless their keys are taken; they, or those that were there first, stand when it
        returns. ExhaustedError if there are too many; UnavailableError."""
        for _ in range(_TRIES):
            if all(self._stands(key, fact) for key, fact in facts.items()):
                return
            self._waiting.append(facts)
            async with self._writing:
                if any(each is facts for each in self._waiting):  # else somebody took them along
                    batch, self._waiting = self._waiting, []
                    await self._write(batch)
        raise UnavailableError("could not write down a fact, try again")

    def _stands(self, key: str, fact: Fact) -> bool:
        standing = self._facts.get(key)
        if standing is None or standing.until <= self._clock():
            return False
        return standing.text != fact.text or standing.until >= fact.until

    async def _write(self, batch: list[Mapping[str, Fact]]) -> None:
        if self._thing is None:
            await self._read()
        now = self._clock()
        facts = {key: fact for key, fact in self._facts.items() if fact.until + _SKEW_SECONDS > now}
        for key, fact in ((key, fact) for each in batch for key, fact in each.items()):
            standing = facts.get(key)
            if standing is None or standing.until <= now or standing.text == fact.text:
                facts[key] = Fact(fact.text, max(fact.until, standing.until if standing else 0.0))
        if len(facts) > self._most:
            raise ExhaustedError(f"{self._name} is full, try again later")
        data = {key: f"{fact.text} {fact.until:.0f}" for key, fact in facts.items()}
        try:
            if self._thing is None:
                self._thing = await self._cluster.create(self._new(data))
            else:
                self._thing = await self._cluster.replace(self._thing | {"data": data})
        except (ConflictError, NotFoundError):
            self._thing = None  # somebody else was first: read and try again
        else:
            self._facts = facts

    async def _read(self) -> None:
        try:
            self._thing = await self._cluster.get(CONFIG_MAP, self._namespace, self._name)
        except NotFoundError:
            self._thing, self._facts = None, {}
            return
        pairs = ((key, line.rpartition(" ")) for key, line in (self._thing.get("data") or {}).items())
        self._facts = {key: Fact(text, float(until)) for key, (text, _, until) in pairs}

    def _new(self, data: Mapping[str, str]) -> Object:
        metadata = {
            "name": self._name,
            "namespace": self._namespace,
            "labels": {"app.kubernetes.io/managed-by": "agentctl"},
        }
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}
