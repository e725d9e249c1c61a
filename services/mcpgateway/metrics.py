"""What the gateway counts. Names of tools are those that servers list, so they are few.

* `agentctl_mcpgateway_calls_total`: calls of tools, by namespace, server, tool, and result (ok, tool_error,
  refused, error)
* `agentctl_mcpgateway_call_seconds`: how long they took, by namespace and server
* `agentctl_mcpgateway_upstream_failures_total`: times that a server failed us, by namespace and server
* `agentctl_mcpgateway_tokens_total`: OAuth tokens asked for, by namespace, server and result (ok, error)
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

CALLS = Counter(
    "agentctl_mcpgateway_calls_total", "Calls of tools.", ("namespace", "server", "tool", "result")
)
SECONDS = Histogram(
    "agentctl_mcpgateway_call_seconds",
    "How long calls of tools took.",
    ("namespace", "server"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
FAILURES = Counter(
    "agentctl_mcpgateway_upstream_failures_total", "Times that a server failed us.", ("namespace", "server")
)
TOKENS = Counter(
    "agentctl_mcpgateway_tokens_total", "OAuth tokens asked for.", ("namespace", "server", "result")
)
