"""The closed loops: each logical client makes its next call when the previous one was answered.

A client submits, claims as many items as it submitted (whoever submitted them) and acks them, so what is
owed to all clients together is never more than what is in the queue, and at the end nothing is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from libs.errors import MeshError

from .tally import Step, Tally

_PATIENCE = 10.0  # seconds beyond the lease in which a step must drain


class Held(NamedTuple):
    """An item that was claimed, known to be ours."""

    item_id: str
    token: int


class Verbs(Protocol):
    """What a client does, each verb one call. Verdicts are checked inside; what is wrong is noted."""

    async def submit(self, item_ids: Sequence[str]) -> int:
        """How many were accepted."""

    async def claim(self, most: int) -> list[Held]:
        """Waits a little for the first item."""

    async def ack(self, held: Sequence[Held], claim_next: int) -> list[Held]:
        """Settles; and where claim_next is not 0, claims up to so many in the same call."""


@dataclass(frozen=True)
class Window:
    """The instants of a step, on the clock that all processes of a machine share."""

    start: float
    measure: float
    end: float
    give_up: float

    @classmethod
    def of(cls, step: Step, start: float) -> Window:
        measure = start + step.warmup
        end = measure + step.duration
        return cls(start, measure, end, end + step.lease + _PATIENCE)

    def measures(self, moment: float) -> bool:
        return self.measure <= moment < self.end


class StuckError(Exception):
    """The step cannot go on: a call was refused for good, or the queue does not drain."""


async def run_client(step: Step, verbs: Verbs, ids: Iterator[str], window: Window) -> None:
    """One logical client, from `start` until everything owed to it after `end` was settled."""
    owed = 0  # submitted, not yet claimed in return
    held: list[Held] = []
    if step.claim_next:  # one lot ahead, so that there is always a next one
        owed += await verbs.submit([next(ids) for _ in range(step.batch)])
    while True:
        now = time.monotonic()
        if now < window.end:
            owed += await verbs.submit([next(ids) for _ in range(step.batch)])
        elif not owed and not held:
            return
        elif now > window.give_up:
            raise StuckError(f"the queue does not drain: {owed} items owed to a client never came")
        if not held:
            held = await verbs.claim(min(owed, step.batch)) if owed else []
            owed -= len(held)
        if held:
            claimed = await verbs.ack(held, min(owed, step.batch) if step.claim_next else 0)
            owed -= len(claimed)
            held = claimed


async def run_clients(step: Step, clients: Sequence[Verbs], tally: Tally, window: Window) -> None:
    """All logical clients of this process."""
    ids = tally.ledger.new_ids()
    await run_together([run_client(step, verbs, ids, window) for verbs in clients], tally, window)


async def run_together(loops: Iterable[Coroutine[None, None, None]], tally: Tally, window: Window) -> None:
    """Starts all at the common instant. A stuck one ends the step, as a violation."""
    await asyncio.sleep(max(window.start - time.monotonic(), 0))
    try:
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)
    except* (StuckError, MeshError) as stuck:
        for error in _leaves(stuck):
            tally.violations.note("step cut short", f"{type(error).__name__} {error}")


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
