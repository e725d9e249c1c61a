"""The metric registry: what an agent's /metrics may hold under `agent_`. Frozen: contract 1.0.

An agent leaves out what it has not got, and never says a zero that it does not know. Ids and URIs are
no labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from prometheus_client import Counter, Gauge

from .statuses import Status

OTHER = "other"
"""The value of a label whose domain has no word for what happened."""

MAX_NAMES = 64
"""Names that a label without a domain of its own tells apart, in one process."""

_names: dict[tuple[str, str], set[str]] = {}


class Type(StrEnum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the registry."""

    name: str
    type: Type
    help: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Each label and its values; no values: names of the manifest, the first 64 that occur, then `other`."""

    def value(self, *values: str) -> Counter | Gauge:
        """The collector in the default registry, for these values of its labels. What a label has no word for
        is `other`; ValueError where that is no word either."""
        kept = [
            _word(self.name, label, domain, value)
            for value, (label, domain) in zip(values, self.labels, strict=True)
        ]
        collector = _collector(self)
        return collector.labels(*kept) if kept else collector

    def inc(self, *values: str, by: float = 1) -> None:
        """Counts `by` more."""
        self.value(*values).inc(by)

    def set(self, *values: str, to: float) -> None:
        """Says that a gauge is so much now."""
        found = self.value(*values)
        if not isinstance(found, Gauge):
            raise TypeError(f"{self.name} is no gauge")
        found.set(to)


def _word(metric: str, label: str, domain: tuple[str, ...], value: str) -> str:
    if not domain:
        known = _names.setdefault((metric, label), set())
        if len(known) < MAX_NAMES:
            known.add(value)
        return value if value in known else OTHER
    if value in domain:
        return value
    if OTHER not in domain:
        raise ValueError(f"{metric}: {label}={value!r} is none of {', '.join(domain)}")
    return OTHER


@cache
def _collector(metric: Metric) -> Counter | Gauge:
    made = Counter if metric.type is Type.COUNTER else Gauge
    return made(metric.name, metric.help, [name for name, _ in metric.labels])


def _counter(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(name, Type.COUNTER, help, tuple(labels.items()))


def _gauge(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(name, Type.GAUGE, help, tuple(labels.items()))


UP = _gauge("agent_up", "1 while the process works")
READY = _gauge("agent_ready", "1 while it can do its job")
PAUSED = _gauge("agent_paused", "1 while the whole agent is paused")
ACTIVE_RUNS = _gauge("agent_active_runs", "Runs under way, paused ones too")
SATURATION = _gauge("agent_saturation", "Share of its slots that is taken, 0 to 1")
RUNS = _counter("agent_runs_total", "Runs that ended", status=(*Status, OTHER))
STEPS = _counter("agent_loop_steps_total", "Turns with the model")
TOKENS = _counter("agent_tokens_total", "Tokens as the provider counted them", type=("in", "out"))
MODEL_CALLS = _counter("agent_intel_calls_total", "Calls of the model that were answered")
MODEL_ERRORS = _counter(
    "agent_intel_errors_total",
    "Calls of the model that failed",
    reason=("unreachable", "auth", "timeout", "throttled", "budget", "5xx", "body", "refused", OTHER),
)
MODEL_UP = _gauge("agent_intel_up", "1 if the last call of the model was answered")
TOOL_CALLS = _counter(
    "agent_tool_calls_total", "Calls of tools", server=(), outcome=("ok", "error", "timeout")
)
SERVER_FAILURES = _counter("agent_mcp_connect_failures_total", "Failures to reach a tool server", server=())
LIMITS = _counter(
    "agent_limit_exceeded_total",
    "Runs that a limit ended",
    limit=("steps", "tokens", "deadline", "depth", "size", "repeats", OTHER),
)
REFUSALS = _counter(
    "agent_refusals_total",
    "Messages that were not taken",
    reason=("depth", "slots", "paused", "draining", OTHER),
)
DRAINS = _counter("agent_drains_total", "Drains", phase=("started", "forced", "completed"))
PENDING_EVENTS = _gauge("agent_pending_events", "Changed resources that wait for a run")
SUBSCRIPTIONS = _gauge("agent_subscriptions_active", "Resources whose changes would be told")
REACTION_LAG = _gauge("agent_reaction_lag_ms", "From the last change to the start of its run, milliseconds")
CLAIMS_GRANTED = _counter("agent_claims_granted_total", "Items that this agent was given")
CLAIMS_LOST = _counter("agent_claims_lost_total", "Items whose lease ended before their run did")
CLAIMS_RELEASED = _counter("agent_claims_released_total", "Items given back unfinished")

REGISTRY: dict[str, Metric] = {
    each.name: each for each in list(globals().values()) if isinstance(each, Metric)
}
"""Every row, by name."""
