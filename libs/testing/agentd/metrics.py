"""The registry of metrics, schema 1.0: 41 names are told from the start; one more after a failed connection.

agentd counts in the process that does the thing and tells from another: so the model's calls, its health and
the loop's steps stay 0 here as there, while tokens and runs are true.
"""

from __future__ import annotations

from collections.abc import Iterator

STATUSES = (
    "completed refused exhausted_steps exhausted_tokens deadline stalled loop_detected cancelled"
    " crashed other"
)
_LABELLED = {
    "agent_runs_total": ("status", STATUSES),
    "agent_tokens_total": ("type", "in out"),
    "agent_intel_errors_total": ("reason", "unreachable auth timeout 5xx other"),
    "agent_refusals_total": ("reason", "trifecta rate budget depth mcp other"),
    "agent_limit_exceeded_total": (
        "limit",
        "steps tokens deadline depth tree_tokens restart_storm spawn_rate other",
    ),
    "agent_subagents_exited_total": ("status", STATUSES),
    "agent_subagent_restarts_total": ("reason", "crashed stuck rate other"),
    "agent_subagent_stuck_kills_total": ("signal", "term kill other"),
    "agent_drains_total": ("phase", "started completed forced other"),
    "agent_config_reload_total": ("result", "applied rejected other"),
}
_PLAIN = (
    "agent_up agent_ready agent_paused agent_loop_steps_total agent_intel_calls_total agent_intel_up"
    " agent_intel_all_down agent_active_subagents agent_tree_depth agent_tree_breadth"
    " agent_subagents_spawned_total agent_restarts_total agent_reactor_stalls_total agent_config_generation"
    " agent_pending_events agent_inflight_reactions agent_subscriptions_active agent_reaction_lag_ms"
    " agent_saturation agent_shard_skipped_total agent_claims_lost_total agent_claims_granted_total"
    " agent_claims_released_total agent_runs_started_total agent_runs_completed_total agent_runs_failed_total"
    " agent_runs_killed_total agent_reactions_total agent_tokens_input_total agent_tokens_output_total"
    " agent_restarts_tripped_total"
)
_MCP_FAILURES = "agent_mcp_connect_failures_total"
_MAX_SERVERS = 16


class Metrics:
    """Names and label values are closed: a name or value outside the registry is a KeyError."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {name: {"": 0} for name in _PLAIN.split()}
        for name, (_, values) in _LABELLED.items():
            self._values[name] = dict.fromkeys(values.split(), 0.0)
        self._failures: dict[str, float] = {}

    def add(self, name: str, value: str = "", by: float = 1) -> None:
        """One more, at a label's value where the name has a label."""
        self._values[name][value] += by

    def put(self, name: str, value: float) -> None:
        """A gauge's present value."""
        self._values[name][""] = value

    def connect_failed(self, server: str) -> None:
        """Sixteen servers have a series of their own; the rest are `other`."""
        known = server in self._failures or len(self._failures) < _MAX_SERVERS
        label = server if known else "other"
        self._failures[label] = self._failures.get(label, 0) + 1

    def render(self) -> str:
        """Prometheus text, format 0.0.4."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        families = dict(self._values)
        if self._failures:
            families[_MCP_FAILURES] = self._failures
        for name, series in families.items():
            yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
            label = "server" if name == _MCP_FAILURES else _LABELLED.get(name, ("", ""))[0]
            for value, number in series.items():
                yield f'{name}{{{label}="{value}"}} {number:.15g}' if label else f"{name} {number:.15g}"
