"""The numbers of the queues for Prometheus, as the store last gave them.

Every replica of one store exports the same: take max() over them, not sum(). What could not be read is
not exported, so a dead store shows as a gap and never as zeros.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from libs.errors import UnavailableError

from .store import Store
from .work import QueueStats

REFRESH_SECONDS = 5.0
MOST_QUEUES = 500  # labels are bounded: of more, those with the longest backlog

_STATES = ("ready", "delayed", "blocked", "leased", "dead")
_TOTALS = ("submitted", "granted", "settled")


class QueueMetrics(Collector):
    """agentctl_coordination_backlog_items{queue,state}, _oldest_ready_age_seconds{queue}, and the totals
    _submitted_items, _granted_items and _settled_items{queue}.
    """

    def __init__(self) -> None:
        self._latest: Sequence[QueueStats] = ()

    async def keep(self, store: Store) -> None:
        """Reads the store every few seconds, until cancelled."""
        while True:
            try:
                queues = await store.queues(None, None)
            except UnavailableError:
                self._latest = ()
            else:
                self._latest = sorted(queues, key=lambda queue: -queue.backlog)[:MOST_QUEUES]
            await asyncio.sleep(REFRESH_SECONDS)

    def collect(self) -> Iterator[Metric]:
        latest = self._latest
        prefix = "agentctl_coordination_"
        backlog = GaugeMetricFamily(
            prefix + "backlog_items", "Items by where they stand.", labels=("queue", "state")
        )
        age = GaugeMetricFamily(
            prefix + "oldest_ready_age_seconds",
            "Since the oldest item became ready.",
            labels=("queue",),
        )
        for queue in latest:
            for state in _STATES:
                backlog.add_metric((queue.name, state), getattr(queue, state))
            if queue.oldest_ready_age_ms is not None:
                age.add_metric((queue.name,), queue.oldest_ready_age_ms / 1000)
        yield from (backlog, age)
        for verb in _TOTALS:
            total = CounterMetricFamily(
                f"{prefix}{verb}_items", f"Items {verb} since the queue was made.", labels=("queue",)
            )
            for queue in latest:
                total.add_metric((queue.name,), getattr(queue, f"{verb}_total"))
            yield total
