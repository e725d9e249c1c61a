"""Many claimers and few items: what a claim costs when almost everybody comes too late."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .calls import StubVerbs
from .loops import StuckError, Window
from .tally import Step, Tally

_LAST_LOOK = 0.5  # seconds; the items of those who submitted last are still to come


async def compete(
    step: Step, index: int, verbs: StubVerbs, ids: Iterator[str], tally: Tally, window: Window
) -> None:
    """One claimer of this process, number `index`. It claims one item, without waiting; who gets one acks it
    and submits the next, so there are as many items as the step began with, ready or just taken.
    """
    if index < step.share(step.ready, tally.ledger.process):
        await verbs.submit([next(ids)])
    while True:
        ending = time.monotonic() >= window.end
        held = await verbs.claim(1, _LAST_LOOK if ending else 0)
        now = time.monotonic()
        if held:
            await verbs.ack(held, 0)
            if now < window.end:
                await verbs.submit([next(ids)])
        elif ending:
            return
        elif window.measures(now):
            tally.empty += 1
        if now > window.give_up:
            raise StuckError("the queue does not drain")
