"""Traces and metrics to an OpenTelemetry collector. Costly to import: only when there is a collector.

What we measure lives in one registry, Prometheus's. An exporter reads it whole at each interval, so a metric
is declared once and both sides see the same numbers.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Iterable
from itertools import pairwise

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

_SCOPE = InstrumentationScope("agentctl")
_LAST_EXPORT_SECONDS = 2.0


def start(service: str) -> None:
    """Export spans and metrics from now on, and what is left when the process ends. Endpoint, TLS and
    intervals are the standard OTEL_* variables. A collector that is away costs spans and two seconds at the
    end, nothing else."""
    resource = Resource.create({"service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    exporter = OTLPMetricExporter()
    interval = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "60000")) / 1000
    stopping = threading.Event()
    started_ns = time.time_ns()

    def export() -> None:
        now = time.time_ns()
        converted = (convert(family, started_ns, now) for family in REGISTRY.collect())
        scopes = [ScopeMetrics(_SCOPE, [metric for metric in converted if metric], "")]
        exporter.export(MetricsData([ResourceMetrics(resource, scopes, "")]))

    def run() -> None:
        while not stopping.wait(interval):
            export()
        provider.shutdown()
        export()
        exporter.shutdown()

    thread = threading.Thread(target=run, name="otlp", daemon=True)
    thread.start()

    def stop() -> None:
        stopping.set()
        thread.join(_LAST_EXPORT_SECONDS)

    atexit.register(stop)


def convert(family: Family, start_ns: int, now_ns: int) -> Metric | None:
    """A Prometheus family as OpenTelemetry data: the same name, cumulative. None for summaries and infos."""
    data: Histogram | Sum | Gauge
    if family.type == "histogram":
        data = Histogram(_histograms(family.samples, start_ns, now_ns), AggregationTemporality.CUMULATIVE)
    elif family.type == "counter":
        totals = [sample for sample in family.samples if sample.name.endswith("_total")]
        data = Sum(_numbers(totals, start_ns, now_ns), AggregationTemporality.CUMULATIVE, is_monotonic=True)
    elif family.type in ("gauge", "unknown"):
        data = Gauge(_numbers(family.samples, start_ns, now_ns))
    else:
        return None
    return Metric(family.name, family.documentation, family.unit, data)


def _numbers(samples: Iterable[Sample], start_ns: int, now_ns: int) -> list[NumberDataPoint]:
    return [NumberDataPoint(sample.labels, start_ns, now_ns, sample.value) for sample in samples]


def _histograms(samples: Iterable[Sample], start_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    buckets: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}  # labels → bound → count up to it
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    points = []
    for labels, upto in buckets.items():
        counts = list(upto.values())
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=start_ns,
                time_unix_nano=now_ns,
                count=int(counts[-1]),
                sum=sums[labels],
                bucket_counts=[int(high - low) for low, high in pairwise([0.0, *counts])],
                explicit_bounds=[bound for bound in upto if bound != math.inf],
                min=None,  # type: ignore[arg-type]  # optional on the wire, and Prometheus does not keep it
                max=None,  # type: ignore[arg-type]
            )
        )
    return points
