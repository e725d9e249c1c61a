"""What a step is, and what one generator process found out in it. Both cross between processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .arrivals import Arrivals
from .latency import Histogram
from .ledger import Ledger


class Mode(StrEnum):
    """How items travel."""

    CHECK = "check"  # no items: health checks, the control figure
    SINGLE = "single"
    BATCH = "batch"
    LIBRARY = "library"
    CONTENTION = "contention"  # a few items, and everybody wants them
    WAKE = "wake"  # parked claims, and now and then an item


class Client(StrEnum):
    """What carries the calls of bare stubs."""

    GRPCIO = "grpcio"
    LEAN = "lean"  # see lean.py


@dataclass(frozen=True)
class Step:
    """One rung of the ladder: clients in processes, over connections, for a time.

    With a `rate` it is an open loop: cycles a second are offered whatever the server does, at most `clients`
    are under way, and at most `backlog` wait for their turn.
    """

    mode: Mode
    clients: int
    connections: int
    processes: int
    warmup: float = 1.0
    duration: float = 3.0
    batch: int = 1
    payload: int = 128
    lease: float = 30.0
    claim_next: bool = False
    request_ids: bool = False
    client: Client = Client.GRPCIO
    rate: float = 0.0
    arrivals: Arrivals = Arrivals.POISSON
    seed: int = 1
    backlog: int = 0
    ready: int = 0  # contention: items in the queue
    pace: float = 0.0  # wake: items a second
    queue: str = ""
    tag: str = ""

    def same_load(self, other: Step) -> bool:
        """Whether the two differ in nothing but the items' names."""
        return replace(self, queue="", tag="") == replace(other, queue="", tag="")

    def share(self, whole: int, process: int) -> int:
        """How many of `whole` clients or connections this process has."""
        return whole // self.processes + (process < whole % self.processes)


@dataclass
class Violations:
    """What must never happen: kinds, how often, and the first example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, kind: str, example: str = "", count: int = 1) -> None:
        self.counts[kind] += count
        self.examples.setdefault(kind, example)

    def merge(self, other: Violations) -> None:
        for kind, count in other.counts.items():
            self.note(kind, other.examples[kind], count)

    def lines(self) -> list[str]:
        """One for people, a kind."""
        return [
            f"{kind} ({count} times{self.examples[kind] and ', first: ' + self.examples[kind]})"
            for kind, count in self.counts.items()
        ]


@dataclass
class Tally:
    """Counts and latencies of the measured window; errors, violations and the ledger of the whole step."""

    ledger: Ledger
    cycles: int = 0
    rpcs: int = 0
    latencies: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """From when a call should have begun."""
    service: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """From when it was sent; of open loops, where that is another moment."""
    arrived: int = 0  # open loop: cycles that should have begun
    shed: int = 0  # of these, never begun: the backlog was full
    backlog: int = 0  # the most that waited for their turn
    empty: int = 0  # contention: claims that brought nothing
    sent: dict[str, tuple[float, float]] = field(default_factory=dict)
    """wake: item → when its submit was sent and answered"""
    woken: dict[str, float] = field(default_factory=dict)
    """wake: item → when its claim was answered"""
    errors: Counter[str] = field(default_factory=Counter)
    violations: Violations = field(default_factory=Violations)
    cpu_seconds: float = 0.0
