"""What a run does: how many items, by whom, under which faults; and which item is which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..ledger import payload_of
from ..server import Engine

NAMESPACE = "verify"
QUEUES = 12  # one watch of results delivers about 4,000 a second
MAX_WORKERS = 64
MAX_ITEMS = 50_000_000
ATTEMPTS = 30
POISON_ATTEMPTS = 3
EXPIRED = "lease expired"  # what the server notes of a lease that ran out
_POISON = 1009
_PAYLOAD = 64


class Kind(StrEnum):
    """A kind of fault."""

    WORKER_KILL = "worker-kill"
    WORKER_FREEZE = "worker-freeze"
    CUT = "cut"
    FREEZE = "freeze"
    SERVER_KILL = "server-kill"
    SERVER_FREEZE = "server-freeze"
    POSTMASTER_KILL = "postmaster-kill"
    BACKEND_KILL = "backend-kill"
    DATABASE_CUT = "database-cut"
    DATABASE_FREEZE = "database-freeze"
    CLOCK_FORWARD = "clock-forward"
    CLOCK_BACK = "clock-back"
    SLOW_FSYNC = "slow-fsync"


MEMORY_KINDS = (Kind.WORKER_KILL, Kind.WORKER_FREEZE, Kind.CUT, Kind.FREEZE, Kind.SERVER_FREEZE)
SHIM_KINDS = (Kind.CLOCK_FORWARD, Kind.CLOCK_BACK, Kind.SLOW_FSYNC)


@dataclass(frozen=True)
class Plan:
    """One run against one store."""

    store: Engine
    items: int
    workers: int
    replicas: int
    kinds: tuple[Kind, ...]
    stalls: bool  # some leases are held beyond their end
    seed: int
    duration: float  # seconds in which items are submitted and faults injected
    tag: str
    batch: int = 100
    lease: float = 3.0
    calm: float = 5.0  # seconds before the first fault, in which leases only expire

    @property
    def database(self) -> bool:
        """Whether the store is one that survives its servers."""
        return self.store is Engine.POSTGRES

    @property
    def window(self) -> int:
        """How many items may be accepted and not seen settled: with a short queue, what comes back is granted
        again at once; and a memory store forgets what settled long ago.
        """
        return 100 * self.batch

    @property
    def queues(self) -> list[str]:
        return [f"{NAMESPACE}/q{n}" for n in range(QUEUES)]

    def share(self, slot: int) -> range:
        """The items that a worker submits."""
        return range(slot * self.items // self.workers, (slot + 1) * self.items // self.workers)

    def queue(self, item: int) -> str:
        """Where an item goes: the items of a Submit to one queue."""
        return f"{NAMESPACE}/q{item // self.batch % QUEUES}"

    def id(self, item: int) -> str:
        return f"{self.tag}-8000-{item:012x}"

    def payload(self, item: int) -> bytes:
        return payload_of(self.id(item), _PAYLOAD)

    def number(self, item_id: str) -> int | None:
        """Which of our items this is; None: none."""
        ours = item_id.startswith(self.tag) and item_id[19:23] == "8000"
        return int(item_id[24:], 16) if ours else None


def is_poison(item: int) -> bool:
    """Whether its workers always fail, so that it must die after POISON_ATTEMPTS."""
    return item % _POISON == 17
