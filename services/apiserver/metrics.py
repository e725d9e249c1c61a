"""What the apiserver counts.

| metric                               | labels              | what                                          |
|--------------------------------------|---------------------|-----------------------------------------------|
| `agentctl_apiserver_verbs_total`     | verb, kind, outcome | calls, by what became of them                 |
| `agentctl_apiserver_fan_out_seconds` | verb                | from the first agent asked to the last answer |

`verb` is one of the five, or `status`; `kind` is agents or agentfleets. `outcome` is done (every pod came as
far as was asked), partial, late (none did, and not all have failed), failed (all have, or we did),
interrupted (the caller left), or the reason of the error that the call ended with, in lower case: denied,
not_found, precondition, unavailable, deadline, …
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

VERBS = Counter(
    "agentctl_apiserver_verbs_total",
    "Calls of management verbs by what became of them.",
    ("verb", "kind", "outcome"),
)
FAN_OUT_SECONDS = Histogram(
    "agentctl_apiserver_fan_out_seconds",
    "From the first agent asked to the last outcome.",
    ("verb",),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
)
