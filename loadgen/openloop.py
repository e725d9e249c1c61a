"""The open loop: cycles begin when the schedule says so, whatever the server does.

A closed loop stops asking while the server stalls, and so leaves out the very calls that would have waited:
coordinated omission. Here a latency counts from the moment its cycle should have begun, so a stall is felt by
all that arrive during it. When each call was really sent is kept beside it, as its service time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from .arrivals import instants
from .loops import StuckError, Verbs, Window
from .tally import Step, Tally

Sleep = Callable[[float], Awaitable[object]]


class OpenLoop:
    """The share of one process. `clients` make the cycles, each one at a time; an arrival that finds none
    free waits for its turn, and one that finds the backlog full is never begun, and counted.
    """

    def __init__(
        self,
        step: Step,
        process: int,
        clients: Sequence[Verbs],
        tally: Tally,
        window: Window,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._step = step
        self._process = process
        self._free = deque(clients)
        self._waiting: deque[float] = deque()
        self._room = step.share(step.backlog, process)
        self._tally = tally
        self._window = window
        self._clock = clock
        self._sleep = sleep
        self._ids = tally.ledger.new_ids()

    async def run(self) -> None:
        """From the start of the window until everything that began has ended."""
        async with asyncio.TaskGroup() as group:
            for due in self._schedule():
                while (ahead := due - self._clock()) > 0:
                    await self._sleep(ahead)
                self._arrive(due, group)

    def _schedule(self) -> Iterator[float]:
        step, window = self._step, self._window
        rate = step.rate / step.batch / step.processes
        phase = self._process / step.processes
        for after in instants(step.arrivals, rate, f"{step.seed}/{self._process}", phase):
            if window.start + after >= window.end:
                return
            yield window.start + after

    def _arrive(self, due: float, group: asyncio.TaskGroup) -> None:
        counts = self._step.batch if self._window.measures(due) else 0
        self._tally.arrived += counts
        if self._free:
            group.create_task(self._serve(self._free.popleft(), due))
        elif len(self._waiting) < self._room:
            self._waiting.append(due)
            self._tally.backlog = max(self._tally.backlog, len(self._waiting))
        else:
            self._tally.shed += counts

    async def _serve(self, client: Verbs, due: float) -> None:
        await self._cycle(client, due)
        while self._waiting:
            await self._cycle(client, self._waiting.popleft())
        self._free.append(client)

    async def _cycle(self, client: Verbs, due: float) -> None:
        """Submits, claims as much and acks it, each as soon as it can be. Of the cycles that should have
        begun in the window every one is measured, however late it ends.
        """
        size = self._step.batch
        began = self._clock()
        times: list[tuple[str, float, float]] = [("start", due, began)]
        owed = await client.submit([next(self._ids) for _ in range(size)])
        submitted = before = self._clock()
        times.append(("submit", due, submitted))
        while owed > 0:
            held = await client.claim(owed)
            claimed = self._clock()
            times.append(("claim", before, claimed))
            before = claimed
            if held:
                owed -= len(held)
                await client.ack(held, 0)
                before = self._clock()
                times.append(("ack", claimed, before))
            elif claimed > self._window.give_up:
                raise StuckError(f"the queue does not drain: {owed} items owed to a cycle never came")
        times.append(("cycle", due, before))
        if self._window.measures(due):
            for verb, intended, ended in times:
                self._tally.latencies[verb].record(ended - intended)
            self._tally.service["cycle"].record(before - began)
