"""One step's figures, as they are shown and written down."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from .latency import Histogram
from .server import Cost
from .tally import Mode, Step, Tally, Violations

PERCENTS = (50, 90, 99)


@dataclass(frozen=True)
class Row:
    """What a step measured. Figures per RPC or cycle are microseconds of CPU; None: could not be known."""

    store: str
    step: Step
    cycles_per_second: float
    rpcs_per_second: float | None
    latencies_ms: dict[str, tuple[float, ...]]
    """Verb → its percentiles, as in PERCENTS."""
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

    @property
    def verified(self) -> bool:
        return not self.violations


def row_of(
    store: str, step: Step, tallies: Sequence[Tally], costs: Sequence[Cost], violations: Violations
) -> Row:
    """The figures of a step: its processes' tallies, and the server's costs at both ends of the window
    (none where the server is not ours).
    """
    cycles = sum(tally.cycles for tally in tallies)
    generator = sum(tally.cpu_seconds for tally in tallies)
    latencies: defaultdict[str, Histogram] = defaultdict(Histogram)
    errors: Counter[str] = Counter()
    for tally in tallies:
        errors.update(tally.errors)
        for verb, histogram in tally.latencies.items():
            latencies[verb].merge(histogram)
    rpcs: int | None = sum(tally.rpcs for tally in tallies)
    if step.mode is Mode.LIBRARY:  # its calls are not RPCs
        rpcs = costs[1].rpcs - costs[0].rpcs if costs else None
    if costs:
        server = costs[1].server.cpu_seconds - costs[0].server.cpu_seconds
        database = costs[1].database.cpu_seconds - costs[0].database.cpu_seconds
        others = costs[1].machine - costs[0].machine - server - database - generator
    return Row(
        store=store,
        step=step,
        cycles_per_second=cycles / step.duration,
        rpcs_per_second=None if rpcs is None else rpcs / step.duration,
        latencies_ms={
            verb: tuple(1000 * (histogram.percentile(percent) or 0) for percent in PERCENTS)
            for verb, histogram in sorted(latencies.items(), key=lambda pair: _ORDER.index(pair[0]))
        },
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
    )


_ORDER = ("check", "submit", "claim", "ack")


def _per(seconds: float, count: int | None) -> float | None:
    return seconds * 1e6 / count if count else None
