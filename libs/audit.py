"""Who did what to whom, and what came of it: one line of the log each, and a counter."""

from __future__ import annotations

import logging
from typing import Literal

from prometheus_client import Counter

Decision = Literal["allowed", "denied"]

_EVENTS = Counter(
    "agentctl_audit_events_total", "Audited events by name and decision.", ("event", "decision")
)
LOGGER = "agentctl.audit"
"""Its lines are never left out, whatever the log level and however many there are."""
CLAIMS = f"{LOGGER}.claims"
"""Its lines count for the log's limit, as all others do."""
MAX_FIELD = 1024
"""Letters of a field that a line has."""

_log = logging.getLogger(LOGGER)
_log.setLevel(logging.INFO)
_claims = logging.getLogger(CLAIMS)


def record(
    event: str,
    *,
    who: str,
    what: str,
    target: str,
    decision: Decision,
    outcome: str = "",
    reason: str = "",
    is_claimed: bool = False,
) -> None:
    """`event` is a word of the caller's code, so that labels are bounded; `target` is namespace/kind/name;
    `is_claimed`: whoever reaches us can have us say it. The trace, if there is one, and the connection's
    caller come with every line of the log. What is longer than `MAX_FIELD` is cut."""
    _EVENTS.labels(event, decision).inc()
    given = {
        "event": event,
        "who": who,
        "what": what,
        "target": target,
        "decision": decision,
        "outcome": outcome,
        "reason": reason,
    }
    fields = {name: _cut(text) for name, text in given.items() if text}
    log = _claims if is_claimed else _log
    log.info("%s %s %s by %s", _cut(what), _cut(target), decision, _cut(who), extra=fields)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_FIELD else f"{text[: MAX_FIELD - 1]}…"
