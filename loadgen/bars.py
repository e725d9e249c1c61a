"""What coordination is held to on a machine of 2 cores shared by generator, server and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .row import Row
from .tally import Mode


@dataclass(frozen=True)
class Bar:
    """Limits for one kind of row. What is None is not limited, or matches any row."""

    store: str
    mode: Mode
    clients: int
    connections: int | None = None
    processes: int | None = None
    batch: int = 1
    claim_next: bool | None = None
    cycles: float | None = None
    goal: float | None = None  # to be approached, never judged
    p50_ms: float | None = None
    p99_ms: float | None = None
    p99_of_memory: float | None = None  # times the same row's in memory
    server_us_per_rpc: float | None = None

    def applies(self, row: Row) -> bool:
        step = row.step
        return (
            (self.store, self.mode, self.clients, self.batch)
            == (row.store, step.mode, step.clients, step.batch)
            and not step.rate
            and self.connections in (None, step.connections)
            and self.processes in (None, step.processes)
            and self.claim_next in (None, step.claim_next)
        )


BARS = (
    Bar("memory", Mode.BATCH, 16, batch=100, cycles=60_000),
    Bar("postgres", Mode.BATCH, 16, batch=100, cycles=25_000),
    Bar("memory", Mode.LIBRARY, 256, processes=4, cycles=25_000),
    Bar("postgres", Mode.LIBRARY, 256, processes=4, cycles=12_000),
    Bar("memory", Mode.SINGLE, 256, 16, claim_next=False, cycles=4500, goal=9000, p99_ms=50),
    Bar("memory", Mode.SINGLE, 256, 16, claim_next=True, cycles=6500, goal=9000, p99_ms=50),
    Bar("memory", Mode.SINGLE, 256, 16, claim_next=False, server_us_per_rpc=60),
    Bar("memory", Mode.SINGLE, 256, 256, cycles=3000),
    Bar("postgres", Mode.SINGLE, 256, 16, cycles=3000, goal=4800, p99_of_memory=2),
    Bar("memory", Mode.SINGLE, 1, p50_ms=0.4),
    Bar("postgres", Mode.SINGLE, 1, p50_ms=1.0),
)


@dataclass(frozen=True)
class Judgement:
    """One limit and whether a row keeps it."""

    text: str
    met: bool


def judge(row: Row, rows: Sequence[Row]) -> list[Judgement]:
    """The limits that apply to a row; `rows` has the others of the sweep to compare with."""
    found: list[Judgement] = []
    for bar in BARS:
        if bar.applies(row):
            found += _judge(bar, row, rows)
    return found


def _judge(bar: Bar, row: Row, rows: Sequence[Row]) -> list[Judgement]:
    found = []
    if bar.cycles is not None:
        goal = f" (goal {bar.goal:,.0f})" if bar.goal else ""
        found.append(Judgement(f"≥ {bar.cycles:,.0f}/s{goal}", row.cycles_per_second >= bar.cycles))
    if bar.p50_ms is not None:
        found.append(Judgement(f"p50 ≤ {bar.p50_ms:g} ms", _worst(row, 0) <= bar.p50_ms))
    p99_ms = bar.p99_ms
    if bar.p99_of_memory is not None:
        twins = [_worst(each, 2) for each in rows if each.store == "memory" and each.step.same_load(row.step)]
        p99_ms = bar.p99_of_memory * twins[0] if twins else None
    if p99_ms is not None:
        found.append(Judgement(f"p99 ≤ {p99_ms:.3g} ms", _worst(row, 2) <= p99_ms))
    if bar.server_us_per_rpc is not None and row.server_us_per_rpc is not None:
        met = row.server_us_per_rpc <= bar.server_us_per_rpc
        found.append(Judgement(f"server ≤ {bar.server_us_per_rpc:g} µs/RPC", met))
    return found


def _worst(row: Row, percentile: int) -> float:
    """Of all verbs; infinite where nothing was measured."""
    return max((values[percentile] for values in row.latencies_ms.values()), default=float("inf"))
