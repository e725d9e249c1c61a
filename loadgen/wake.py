"""Long polls: how soon a parked claim hears of an item."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from .arrivals import instants
from .calls import StubVerbs
from .latency import Histogram
from .loops import Window
from .tally import Step, Tally

_WAIT = 30.0
_GRACE = 1.0  # seconds after the end in which the last items are expected


async def park(verbs: StubVerbs, tally: Tally, window: Window) -> None:
    """One claimer, parked for up to 30 s at a time, and never for longer than the step."""
    close = window.end + _GRACE
    while (left := close - time.monotonic()) > 0:
        held = await verbs.claim(1, round(min(_WAIT, left), 3), "parked")
        woken = time.monotonic()
        if held:
            tally.woken[held[0].item_id] = woken
            await verbs.ack(held, 0)


async def pace(step: Step, verbs: StubVerbs, ids: Iterator[str], tally: Tally, window: Window) -> None:
    """Submits one item after the other, at random moments, at the step's pace, until the end."""
    for after in instants(step.arrivals, step.pace, f"{step.seed}"):
        due = window.start + after
        if due >= window.end:
            return
        await asyncio.sleep(max(due - time.monotonic(), 0))
        item_id = next(ids)
        sent = time.monotonic()
        await verbs.submit([item_id])
        if window.measures(sent):
            tally.sent[item_id] = (sent, time.monotonic())


def wake_times(tallies: Sequence[Tally]) -> dict[str, Histogram]:
    """From the sending of the submit to the answer of the claim; and from the answer of the submit, which is
    0 where the claim was answered first.
    """
    woken = {item_id: moment for tally in tallies for item_id, moment in tally.woken.items()}
    found = {"wake": Histogram(), "wake_answered": Histogram()}
    for tally in tallies:
        for item_id, (sent, answered) in tally.sent.items():
            if item_id in woken:  # else the books say so
                found["wake"].record(woken[item_id] - sent)
                found["wake_answered"].record(max(woken[item_id] - answered, 0.0))
    return found if tallies else {}
