"""What the model gateway counts: names of OpenTelemetry's GenAI conventions as Prometheus has them, and ours.

Labels are few: objects of the cluster, models that a pool lists (others are `other`), classes of errors;
beside a pool stands its namespace.

| metric                                      | labels                | what                          |
|---------------------------------------------|-----------------------|-------------------------------|
| `gen_ai_client_inference_usage_*_total`     | pool, endpoint, model | tokens: input, output, cached |
| `gen_ai_client_inference_duration_seconds`  | pool, operation       | calls, to the last byte       |
| `gen_ai_server_time_to_first_token_seconds` | pool, endpoint        | to the first byte             |
| `agentctl_modelgateway_errors_total`        | pool, class           | calls that failed             |
| `agentctl_modelgateway_failures_total`      | pool, endpoint, class | tries that failed             |
| `agentctl_modelgateway_unmetered_total`     | pool                  | calls without a reservation   |
| `agentctl_modelgateway_unsettled_total`     |                       | calls that were not booked    |
| `agentctl_modelgateway_expired_total`       |                       | reservations of dead calls    |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from prometheus_client import Counter, Histogram

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_MODEL = ("namespace", "pool", "endpoint", "model")
_USAGE = "gen_ai_client_inference_usage"

INPUT = Counter(f"{_USAGE}_input_tokens", "Tokens of prompts.", _MODEL)
OUTPUT = Counter(f"{_USAGE}_output_tokens", "Tokens of answers.", _MODEL)
CACHED = Counter(f"{_USAGE}_cache_read_input_tokens", "Tokens of prompts that the provider had.", _MODEL)
DURATION = Histogram(
    "gen_ai_client_inference_duration_seconds",
    "How long calls took.",
    ("namespace", "pool", "operation"),
    buckets=_BUCKETS,
)
FIRST = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "Until the first byte of an answer.",
    ("namespace", "pool", "endpoint"),
    buckets=_BUCKETS,
)
ERRORS = Counter(
    "agentctl_modelgateway_errors", "Calls that did not end well.", ("namespace", "pool", "class")
)
FAILURES = Counter(
    "agentctl_modelgateway_failures",
    "Tries at an endpoint that failed.",
    ("namespace", "pool", "endpoint", "class"),
)
UNMETERED = Counter(
    "agentctl_modelgateway_unmetered",
    "Calls without a reservation: the store was down.",
    ("namespace", "pool"),
)
UNSETTLED = Counter("agentctl_modelgateway_unsettled", "Calls that could not be booked.")
EXPIRED = Counter("agentctl_modelgateway_expired", "Reservations of dead calls.")


@dataclass(frozen=True, slots=True)
class Series:
    """What one call counts in: to find it by labels each time is a good part of a call's cost."""

    input: Counter
    output: Counter
    cached: Counter
    duration: Histogram
    first: Histogram


@lru_cache(maxsize=4096)
def series(namespace: str, pool: str, endpoint: str, model: str, operation: str) -> Series:
    """Of calls of one kind."""
    labels = namespace, pool, endpoint, model
    return Series(
        INPUT.labels(*labels),
        OUTPUT.labels(*labels),
        CACHED.labels(*labels),
        DURATION.labels(namespace, pool, operation),
        FIRST.labels(namespace, pool, endpoint),
    )
