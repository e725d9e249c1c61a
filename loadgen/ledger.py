"""Who submitted what and who acked it: one ledger a process, balanced against each other at the end.

An item's id says which step, process and serial number it has, and its payload follows from its id, so
that any process can tell whether a grant is one of ours and unharmed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from libs.ids import new_id

MIN_PAYLOAD = 36  # the id once
MAX_PROCESSES = 0x1000
_NEWEST = 40_000  # items that a memory store still remembers when they are settled


def new_tag() -> str:
    """The first 18 characters of every id of a step: those of a new UUIDv7, so each tag is a later one."""
    return new_id()[:18]


def payload_of(item_id: str, size: int) -> bytes:
    """What the item with this id carries."""
    return (item_id * (size // MIN_PAYLOAD + 1))[:size].encode()


@dataclass
class Ledger:
    """What one process saw accepted and settled."""

    tag: str
    process: int
    payload_size: int
    accepted: bytearray = field(default_factory=bytearray)  # own serial → how often accepted
    acked: dict[int, bytearray] = field(default_factory=dict)  # process → serial → how often acked by us

    def new_ids(self) -> Iterator[str]:
        """Fresh ids without end."""
        prefix = f"{self.tag}-8{self.process:03x}-"
        return (f"{prefix}{serial:012x}" for serial in itertools.count())

    def note_accepted(self, item_ids: Iterable[str]) -> None:
        _count(self.accepted, [int(item_id[24:], 16) for item_id in item_ids])

    def note_acked(self, item_ids: Iterable[str]) -> None:
        serials: defaultdict[int, list[int]] = defaultdict(list)
        for item_id in item_ids:
            serials[int(item_id[20:23], 16)].append(int(item_id[24:], 16))
        for process, numbers in serials.items():
            _count(self.acked.setdefault(process, bytearray()), numbers)

    def is_ours(self, item_id: str, payload: bytes) -> bool:
        """Whether this step made this item, and with this payload."""
        return item_id.startswith(self.tag) and payload == payload_of(item_id, self.payload_size)


@dataclass(frozen=True)
class Balance:
    """The ledgers of all processes beside each other."""

    accepted: int
    acked: int
    violations: list[str]
    sample: list[str]
    """Ids of acked items, spread over the newest, at most as many as asked for."""


def balance(ledgers: Sequence[Ledger], sample_size: int) -> Balance:
    """Every accepted item must be acked exactly once, by whichever process."""
    violations: list[str] = []
    acked_ids: list[str] = []
    accepted = acked = 0
    newest = _NEWEST // len(ledgers)
    stride = sum(min(len(ledger.accepted), newest) for ledger in ledgers) // sample_size + 1
    for ledger in ledgers:
        parts = [other.acked.get(ledger.process, b"") for other in ledgers]
        counts = [sum(column) for column in itertools.zip_longest(*parts, fillvalue=0)]
        wanted = ledger.accepted
        accepted += sum(wanted)
        acked += sum(counts)
        prefix = f"{ledger.tag}-8{ledger.process:03x}-"
        for serial, (want, got) in enumerate(itertools.zip_longest(wanted, counts, fillvalue=0)):
            if want != got:
                violations.append(f"{prefix}{serial:012x}: accepted {want} times, acked {got} times")
        acked_ids += [
            f"{prefix}{serial:012x}"
            for serial in range(max(len(counts) - newest, 0), len(counts), stride)
            if counts[serial]
        ]
    return Balance(accepted, acked, violations, acked_ids[:sample_size])


def _count(column: bytearray, serials: list[int]) -> None:
    missing = max(serials, default=0) + 1 - len(column)
    if missing > 0:
        column.extend(bytes(missing))
    for serial in serials:
        column[serial] += 1
