"""The only way in which a pass writes to the cluster: as leader, counted, known to the cache at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from libs.cluster import Cluster, Object, Propagation, key_of
from libs.cluster.kinds import kind_of

from .cache import Cache
from .key import Key
from .metrics import WRITES

MANAGER = "agentctl-operator"
"""Our field manager."""
KEEPER = "agentctl-replicas"
"""The field manager that keeps a number of replicas until the scaler says one: nobody else lets go of it."""


@dataclass(frozen=True, slots=True)
class Note:
    """What an event says: see `Recorder.record`."""

    reason: str
    action: str
    text: str
    type: Literal["Normal", "Warning"] = "Normal"


class Writes:
    """The writes of one pass over one object. Each raises what `lead` raises if we do not lead."""

    def __init__(
        self, cluster: Cluster, cache: Cache, lead: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._lead = lead
        self._clock = clock
        self.count = 0
        self.last_at: float | None = None
        """When the last one was answered, by the clock; None: there was none."""
        self.notes: list[Note] = []
        """What people should know of this pass; told when it is over, so as to hold up nothing."""

    async def apply(self, thing: Object, subresource: str = "", manager: str = MANAGER) -> Object:
        """Server-side apply. The object after it."""
        key = Key(kind_of(thing["apiVersion"], thing["kind"]), *key_of(thing))
        self._lead()
        made = None
        self._cache.begin(key)
        try:
            made = await self._cluster.apply(thing, manager, subresource=subresource)
        finally:
            self._cache.end(key, made)
        self._wrote(key.kind.name, subresource or "apply")
        return made

    async def delete(self, live: Object, propagation: Propagation) -> None:
        """Deletes this object and no other of its name."""
        kind = kind_of(live["apiVersion"], live["kind"])
        self._lead()
        await self._cluster.delete(kind, *key_of(live), uid=live["metadata"]["uid"], propagation=propagation)
        self._wrote(kind.name, "delete")

    def _wrote(self, kind: str, verb: str) -> None:
        WRITES.labels(kind, verb).inc()
        self.count += 1
        self.last_at = self._clock()


Begin = Callable[[], Writes]
"""Begins a pass."""

CLOCK = time.perf_counter
"""The clock of passes."""
