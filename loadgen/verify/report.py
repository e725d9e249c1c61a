"""What the runs did and found, as a table for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from .run import Outcome

_DOUBLE_GRANTS = ("two grants with one token", "two live owners", "granted again though it was settled")
_DOUBLE_SETTLES = ("settled twice", "told twice by WatchResults", "another result than the one acked")


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """One column a store."""
    table = Table("", *(outcome.plan.store.value for outcome in outcomes), title=_title(outcomes))
    rows = [_figures(outcome) for outcome in outcomes]
    for name in rows[0]:
        table.add_row(name, *(row[name] for row in rows))
    return table


def violations_of(outcome: Outcome) -> list[str]:
    """A line a kind."""
    return [f"{outcome.plan.store}: {line}" for line in outcome.found.lines()]


def write_json(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Everything."""
    told = [
        {
            "store": outcome.plan.store,
            "clean": outcome.clean,
            "accepted": outcome.accepted,
            "seconds": round(outcome.seconds, 1),
            "counts": asdict(outcome.counts),
            "faults": dict(outcome.faults),
            "left_out": dict(outcome.left_out),
            "stalls": outcome.stalls,
            "calls_repeated": outcome.repeated,
            "recovery_seconds": outcome.recovery,
            "longest_gap_seconds": outcome.longest_gap,
            "violations": dict(outcome.found.counts),
            "examples": outcome.found.examples,
            "plan": asdict(outcome.plan),
        }
        for outcome in outcomes
    ]
    path.write_text(json.dumps(told, indent=2) + "\n")


def _title(outcomes: Sequence[Outcome]) -> str:
    items = sum(outcome.accepted for outcome in outcomes)
    return f"{items:,} items, seed {outcomes[0].plan.seed}"


def _figures(outcome: Outcome) -> dict[str, str]:
    counts, found = outcome.counts, outcome.found.counts
    slowest = max(outcome.recovery.items(), key=lambda pair: pair[1], default=None)
    short = " (time was up)" if outcome.timed_out else ""
    return {
        "items accepted": f"{outcome.accepted:,}{short}",
        "seconds": f"{outcome.seconds:.0f}",
        "settled with a result": f"{counts.settled:,}",
        "dead, as they should": f"{counts.dead:,}",
        "grants seen": f"{counts.grants:,}",
        "regrants": f"{counts.regrants:,}",
        "leases that ran out": f"{counts.expired:,}",
        "  forgiven for an outage": f"{counts.forgiven:,}",
        "  acked all the same": f"{counts.late_acks:,}",
        "lost leases refused": f"{counts.refused:,}",
        "unknown outcomes resolved": f"{outcome.repeated:,}",
        "faults": "\n".join(f"{kind} {count}" for kind, count in outcome.faults.items()) or "none",
        "leases held too long": f"{outcome.stalls:,} batches",
        "left out": "\n".join(f"{kind}: {why}" for kind, why in outcome.left_out.items()) or "nothing",
        "slowest recovery": f"{slowest[1]:.1f} s after {slowest[0]}" if slowest else "",
        "longest time without an ack": f"{outcome.longest_gap:.1f} s",
        "lost": str(found["lost"]),
        "double grants": str(sum(found[kind] for kind in _DOUBLE_GRANTS)),
        "double settles": str(sum(found[kind] for kind in _DOUBLE_SETTLES)),
        "other violations": str(
            found.total() - sum(found[kind] for kind in ("lost", *_DOUBLE_GRANTS, *_DOUBLE_SETTLES))
        ),
    }
