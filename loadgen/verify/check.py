"""Reads the whole history, item by item, with bounded memory, and has it judged."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from ..tally import Violations
from .faults import Done
from .history import SIZE, Event, Record, Verdict, chunks, item_at, records
from .plan import Kind
from .rules import Circumstances, Counts, Judge

_BUCKET = 1 << 14  # items that are judged at a time
_GAP = 500_000_000  # ns without an ack that stood: there may have been an outage
_MARGIN = 1_500_000_000
_HARMLESS = (Kind.WORKER_KILL, Kind.WORKER_FREEZE)  # to the store


@dataclass(frozen=True)
class Proof:
    """What the history says."""

    counts: Counts
    found: Violations
    recovery: dict[Kind, float]
    """The longest time from a fault of this kind until an ack that was sent after it stood, seconds."""
    longest_gap: float


class Acks:
    """When acks stood, an RPC each."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []

    def add(self, before: int, after: int) -> None:
        if not self._times or self._times[-1] != (before, after):
            self._times.append((before, after))

    def finish(self) -> None:
        """All were added."""
        self._times.sort()
        self._sent = [before for before, _ in self._times]
        self._first = list(accumulate((after for _, after in reversed(self._times)), min))[::-1]
        self._stood = sorted(after for _, after in self._times)

    def after(self, moment: int) -> int | None:
        """When the first ack stood that was sent after this."""
        place = bisect_left(self._sent, moment)
        return self._first[place] if place < len(self._first) else None

    def gaps(self) -> Iterator[tuple[int, int]]:
        return pairwise(self._stood)


def check(folder: Path, items: int, faults: Sequence[Done]) -> Proof:
    """Judges every item of the history files in `folder`; needs as much disk again."""
    accepted, acks = bytearray(items), Acks()
    with ExitStack() as stack:
        buckets = [
            stack.enter_context((folder / f"bucket-{n}").open("w+b", buffering=1 << 16))
            for n in range((items + _BUCKET - 1) // _BUCKET)
        ]
        for path in sorted(folder.glob("*.history")):
            for data in chunks(path):
                for offset in range(0, len(data), SIZE):
                    item = item_at(data, offset)
                    if data[offset] == Event.SUBMIT:
                        submit = next(records(data[offset : offset + SIZE]))
                        accepted[item : item + submit.value] = b"\1" * submit.value
                        continue
                    if data[offset] == Event.ACK and data[offset + 1] == Verdict.OK:
                        acks.add(
                            int.from_bytes(data[offset + 16 : offset + 24], "little"),
                            int.from_bytes(data[offset + 24 : offset + 32], "little"),
                        )
                    buckets[item // _BUCKET].write(data[offset : offset + SIZE])
        acks.finish()
        judge = Judge(_circumstances(faults, acks))
        for n, bucket in enumerate(buckets):
            bucket.seek(0)
            stories: defaultdict[int, list[Record]] = defaultdict(list)
            for record in records(bucket.read()):
                stories[record.item].append(record)
            for item in range(n * _BUCKET, min(items, (n + 1) * _BUCKET)):
                if accepted[item] or item in stories:
                    judge.judge(item, bool(accepted[item]), stories.get(item, []))
    recovery: dict[Kind, float] = {}
    for fault in faults:
        if (stood := acks.after(fault.began)) is not None:
            recovery[fault.kind] = max(recovery.get(fault.kind, 0.0), (stood - fault.began) / 1e9)
    longest = max((end - begin for begin, end in acks.gaps()), default=0)
    return Proof(judge.counts, judge.found, recovery, longest / 1e9)


def missing(folder: Path, items: int, most: int) -> list[int]:
    """Items that were accepted and of which no result was told, the first of them."""
    waiting = bytearray(items)
    for path in folder.glob("worker-*.history"):
        for data in chunks(path):
            for record in records(data):
                if record.event == Event.SUBMIT:
                    waiting[record.item : record.item + record.value] = b"\1" * record.value
    for data in chunks(folder / "watcher.history"):
        for record in records(data):
            waiting[record.item] = 0
    return [item for item in range(items) if waiting[item]][:most]


def _circumstances(faults: Sequence[Done], acks: Acks) -> Circumstances:
    outages = [
        (fault.began - _MARGIN, fault.ended + _MARGIN) for fault in faults if fault.kind not in _HARMLESS
    ]
    return Circumstances(
        steps=[(fault.began, fault.ended, fault.step) for fault in faults if fault.step],
        outages=[*outages, *((begin, end) for begin, end in acks.gaps() if end - begin > _GAP)],
        disturbances=[fault.began for fault in faults],
    )
