"""The operator's numbers for Prometheus. Labels are kinds, results and verbs: bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

RECONCILE = Histogram(
    "agentctl_operator_reconcile_seconds",
    "From taking a key off the queue to the last write that it led to, or to the end if there was none.",
    ("kind", "result"),
    buckets=(
        0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.012, 0.015, 0.02,
        0.03, 0.05, 0.1, 0.25, 1, 5,
    ),
)  # fmt: skip
"""result: written, unchanged, refused (a condition says why), failed (comes back by itself)."""

WRITES = Counter("agentctl_operator_writes", "Writes to the cluster.", ("kind", "verb"))
LEADING = Gauge("agentctl_operator_leading", "1 on the replica that leads.")


class Depths(Collector):
    """agentctl_operator_queue_keys{kind} and agentctl_operator_cache_age_seconds{kind}, read when scraped."""

    def __init__(
        self, depths: Callable[[], Mapping[str, int]], ages: Callable[[], Mapping[str, float]]
    ) -> None:
        self._depths = depths
        self._ages = ages

    def collect(self) -> Iterator[Metric]:
        keys = GaugeMetricFamily(
            "agentctl_operator_queue_keys", "Keys that wait for a worker.", labels=("kind",)
        )
        for kind, depth in self._depths().items():
            keys.add_metric((kind,), depth)
        yield keys
        age = GaugeMetricFamily(
            "agentctl_operator_cache_age_seconds", "Since the watch's last sign of life.", labels=("kind",)
        )
        for kind, seconds in self._ages().items():
            age.add_metric((kind,), seconds)
        yield age
