"""One step's figures, as they are shown and written down."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .latency import Histogram
from .server import Cost
from .tally import Mode, Step, Tally, Violations
from .wake import wake_times

VERBS = ("check", "start", "submit", "claim", "ack", "cycle", "parked", "wake", "wake_answered")
_KEPT_UP = 0.95  # of what arrived; the rest may be under way
PERCENTS = (50, 90, 99, 99.9, 100)


@dataclass(frozen=True)
class Row:
    """What a step measured. Figures per RPC or cycle are microseconds of CPU; None: could not be known."""

    store: str
    step: Step
    cycles_per_second: float
    rpcs_per_second: float | None
    latencies_ms: dict[str, tuple[float, ...]]
    """Verb → its percentiles, as in PERCENTS. Open loop: from when it should have begun, and so corrected for
    coordinated omission; else from when it was sent.
    """
    errors: dict[str, int]
    generator_us_per_rpc: float | None
    generator_us_per_cycle: float | None
    server_us_per_rpc: float | None = None
    server_us_per_cycle: float | None = None
    database_us_per_cycle: float | None = None
    server_cores: float | None = None
    server_mib: float | None = None
    others_cores: float | None = None
    """Cores that were busy with neither generator, server nor PostgreSQL, or stolen from this machine."""
    violations: list[str] = field(default_factory=list)
    service_ms: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Open loop: from when it was sent, the way a closed loop counts."""
    calls: dict[str, int] = field(default_factory=dict)
    """How many latencies of each verb there are."""
    offered_per_second: float | None = None
    shed_per_second: float | None = None
    """Cycles that should have begun and never did, since the backlog was full."""
    most_waiting: int | None = None
    """The longest that the backlog was."""
    empty_per_second: float | None = None
    """Claims that brought nothing."""
    claims_per_grant: float | None = None

    @property
    def verified(self) -> bool:
        return not self.violations

    @property
    def kept_up(self) -> bool | None:
        """Whether the server did what an open loop offered; None for a closed one."""
        if self.offered_per_second is None:
            return None
        return not self.shed_per_second and self.cycles_per_second >= _KEPT_UP * self.offered_per_second


def row_of(
    store: str, step: Step, tallies: Sequence[Tally], costs: Sequence[Cost], violations: Violations
) -> Row:
    """The figures of a step: its processes' tallies, and the server's costs at both ends of the window
    (none where the server is not ours).
    """
    cycles = sum(tally.cycles for tally in tallies)
    generator = sum(tally.cpu_seconds for tally in tallies)
    latencies = _merged([tally.latencies for tally in tallies])
    if step.mode is Mode.WAKE:
        latencies |= wake_times(tallies)
    errors: Counter[str] = Counter()
    for tally in tallies:
        errors.update(tally.errors)
    rpcs: int | None = sum(tally.rpcs for tally in tallies)
    if step.mode is Mode.LIBRARY:  # its calls are not RPCs
        rpcs = costs[1].rpcs - costs[0].rpcs if costs else None
    if costs:
        server = costs[1].server.cpu_seconds - costs[0].server.cpu_seconds
        database = costs[1].database.cpu_seconds - costs[0].database.cpu_seconds
        others = costs[1].machine - costs[0].machine - server - database - generator
    empty = sum(tally.empty for tally in tallies)
    contended = step.mode is Mode.CONTENTION
    return Row(
        store=store,
        step=step,
        cycles_per_second=cycles / step.duration,
        rpcs_per_second=None if rpcs is None else rpcs / step.duration,
        latencies_ms=_in_ms(latencies),
        service_ms=_in_ms(_merged([tally.service for tally in tallies])),
        calls={verb: latencies[verb].total for verb in _sorted(latencies)},
        errors=dict(errors),
        generator_us_per_rpc=_per(generator, rpcs),
        generator_us_per_cycle=_per(generator, cycles),
        server_us_per_rpc=_per(server, rpcs) if costs else None,
        server_us_per_cycle=_per(server, cycles) if costs else None,
        database_us_per_cycle=_per(database, cycles) if costs and store == "postgres" else None,
        server_cores=server / step.duration if costs else None,
        server_mib=costs[1].server.resident_bytes / (1 << 20) if costs else None,
        others_cores=max(others, 0) / step.duration if costs else None,
        violations=violations.lines(),
        offered_per_second=_rate(step, [tally.arrived for tally in tallies]),
        shed_per_second=_rate(step, [tally.shed for tally in tallies]),
        most_waiting=sum(tally.backlog for tally in tallies) if step.rate else None,
        empty_per_second=empty / step.duration if contended else None,
        claims_per_grant=(cycles + empty) / cycles if contended and cycles else None,
    )


def _merged(parts: Sequence[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    whole: defaultdict[str, Histogram] = defaultdict(Histogram)
    for part in parts:
        for verb, histogram in part.items():
            whole[verb].merge(histogram)
    return dict(whole)


def _in_ms(latencies: Mapping[str, Histogram]) -> dict[str, tuple[float, ...]]:
    return {
        verb: tuple(1000 * (latencies[verb].percentile(percent) or 0) for percent in PERCENTS)
        for verb in _sorted(latencies)
    }


def _sorted(latencies: Mapping[str, Histogram]) -> list[str]:
    return sorted(latencies, key=VERBS.index)


def _rate(step: Step, counts: Sequence[int]) -> float | None:
    return sum(counts) / step.duration if step.rate else None


def _per(seconds: float, count: int | None) -> float | None:
    return seconds * 1e6 / count if count else None
