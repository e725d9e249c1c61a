"""What a scrape says of queues, and what it does not say when the store is away."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from libs.errors import UnavailableError
from services.coordination.metrics import QueueMetrics
from services.coordination.store.memory import MemoryStore
from services.coordination.work import ClaimOrder, NewItem

ID = "00000000-0000-7000-8000-00000000000{}"


class Flaky(MemoryStore):
    """A memory store that can be made to fail."""

    away = False

    async def queues(self, *which: Any) -> Any:
        if self.away:
            raise UnavailableError("away")
        return await super().queues(*which)


async def scrape(metrics: QueueMetrics, store: Flaky) -> str:
    keeping = asyncio.create_task(metrics.keep(store))
    await asyncio.sleep(0)  # one look; the next is seconds away
    await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.wait({keeping})
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


async def test_a_scrape_has_every_state_and_total_of_a_queue():
    store, metrics = Flaky(lambda queue, ready: None), QueueMetrics()
    await store.submit("demo/docs", [NewItem(ID.format(n), b"x", "someone") for n in range(3)])
    await store.claim(ClaimOrder("demo/docs", "holder", 1, 1000, None))
    text = await scrape(metrics, store)
    assert 'agentctl_coordination_backlog_items{queue="demo/docs",state="ready"} 2.0' in text
    assert 'agentctl_coordination_backlog_items{queue="demo/docs",state="leased"} 1.0' in text
    assert 'agentctl_coordination_submitted_items_total{queue="demo/docs"} 3.0' in text
    assert 'agentctl_coordination_granted_items_total{queue="demo/docs"} 1.0' in text
    assert 'agentctl_coordination_oldest_ready_age_seconds{queue="demo/docs"}' in text


async def test_a_store_that_is_away_is_a_gap_and_no_zero():
    store, metrics = Flaky(lambda queue, ready: None), QueueMetrics()
    await store.submit("demo/docs", [NewItem(ID.format(0), b"x", "someone")])
    assert "demo/docs" in await scrape(metrics, store)
    store.away = True
    assert "demo/docs" not in await scrape(metrics, store)
