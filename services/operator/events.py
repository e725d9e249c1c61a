"""Events for people, one for each change: events.k8s.io/v1, written beside the work and never in its way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Literal

from libs.cluster import Object
from libs.errors import MeshError

_log = logging.getLogger(__name__)

_MOST_WAITING = 5000
_NOTE_LENGTH = 1024  # the API's limit

Write = Callable[[Object], Awaitable[Object]]


class Recorder:
    """Takes events at once and writes them in order, each once. When the cluster is slower than what happens,
    the oldest are dropped; one that cannot be written is logged and gone, for an event is no state."""

    def __init__(
        self, write: Write, replica: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._write = write
        self._replica = replica
        self._now = now
        self._waiting: deque[Object] = deque(maxlen=_MOST_WAITING)
        self._news = asyncio.Event()
        self._last = 0

    def record(
        self,
        about: Object,
        reason: str,
        action: str,
        note: str,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Says that something was done (`action`) about an object, and why (`reason`, CamelCase)."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        self._last = max(self._last + 1, time.time_ns())  # as unique as client-go's names
        self._waiting.append({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{self._last:x}", "namespace": namespace},
            "eventTime": self._now().isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "type": type,
            "reason": reason,
            "action": action,
            "note": note[:_NOTE_LENGTH],
            "reportingController": "agentctl.dev/operator",
            "reportingInstance": self._replica,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": namespace,
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        })  # fmt: skip
        self._news.set()

    async def run(self) -> None:
        """Writes what was recorded, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                event = self._waiting.popleft()
                try:
                    await self._write(event)
                except MeshError as error:
                    _log.warning("event %s is lost: %s", event["reason"], error)
