"""A worker process: submits its share, and claims, renews, acks, fails, releases and dawdles by chance."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

import uvloop

from .board import Board, Cell, Phase
from .calls import Calls, Held, OutOfPatienceError, Seat
from .history import Writer
from .plan import Plan, is_poison

_CLAIMERS = 8
_WAITS = (0.1, 1.0)
_PAUSE = 0.005
_STALLING = 0.01  # of the batches are held beyond the end of their leases
_RENEWING = 0.03  # and all that are contested
_MIXED = 0.2  # have a few items that are failed or released
_CHAINING = 0.3  # ask for the next batch in the Ack
_REPEATING = 0.02  # of the submits are sent once more


def main(plan: Plan, seat: Seat) -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, which ends us
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    uvloop.run(_run(plan, seat))


async def _run(plan: Plan, seat: Seat) -> None:
    rng = random.Random(f"{plan.seed} {plan.store} {seat.slot} {seat.turn}")
    board = Board(seat.folder / "board")
    writer = Writer(seat.folder / f"worker-{seat.slot}.history")
    async with AsyncExitStack() as stack:
        calls = Calls(plan, seat, board, writer, rng)
        await calls.open(stack)
        worker = _Worker(plan, seat, board, calls, rng)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.submit())
            for _ in range(_CLAIMERS):
                tasks.create_task(worker.claim())


class _Worker:
    def __init__(self, plan: Plan, seat: Seat, board: Board, calls: Calls, rng: random.Random) -> None:
        self._plan, self._board, self._calls, self._rng = plan, board, calls, rng
        self._slot, self._taken_over = seat.slot, seat.turn > 0

    async def submit(self) -> None:
        """The share, from where an earlier worker of this place came to."""
        share, batch = self._plan.share(self._slot), self._plan.batch
        first = share.start + self._board.get(self._slot, Cell.SUBMITTED)
        doubtful = self._taken_over  # whoever was here before may have sent the next ones
        while first < share.stop and (doubtful or self._board.phase is Phase.RUN):
            if not doubtful and self._board.total(Cell.SUBMITTED) - self._board.seen > self._plan.window:
                await asyncio.sleep(_PAUSE)
                continue
            count = min(batch - first % batch, share.stop - first)
            try:
                await self._calls.submit(first, count)
                if self._rng.random() < _REPEATING:
                    await self._calls.submit(first, count)
            except OutOfPatienceError:
                continue
            first += count
            doubtful = False
            self._board.set(self._slot, Cell.SUBMITTED, first - share.start)
        self._board.set(self._slot, Cell.DONE, 1)

    async def claim(self) -> None:
        """Work until it is over."""
        held: list[Held] = []
        while held or self._board.phase is not Phase.STOP:
            try:
                if not held:
                    wait = self._rng.choice(_WAITS)
                    held = await self._calls.claim(self._calls.claiming(wait), wait)
                batch, held = held, []
                if batch:
                    held = await self._work(batch)
            except OutOfPatienceError:
                held = []

    async def _work(self, held: Sequence[Held]) -> list[Held]:
        """Deals with a batch; what was claimed with its last ack."""
        calls, rng = self._calls, self._rng
        chance = rng.random()
        if self._plan.stalls and chance < _STALLING:
            await self._dawdle(held)
        elif chance < _STALLING + _RENEWING or any(lease.contested for lease in held):
            await self._take_time(held)
        failing = [lease for lease in held if is_poison(lease.item)]
        good = [lease for lease in held if not is_poison(lease.item)]
        if good and rng.random() < _MIXED:
            few = [good.pop() for _ in range(min(len(good), rng.randrange(1, 5)))]
            failing += few[::2]
            if few[1::2]:
                await calls.release(few[1::2])
        if failing:
            await calls.fail(failing)
        if not good:
            return []
        chained = rng.random() < _CHAINING and self._board.phase is not Phase.STOP
        return await calls.ack(good, calls.claiming() if chained else None)

    async def _take_time(self, held: Sequence[Held]) -> None:
        """As long as a lease, with a renewal half-way."""
        for part in (0.4, 0.2):
            await asyncio.sleep(self._plan.lease * part)
            await self._calls.renew(held)

    async def _dawdle(self, held: Sequence[Held]) -> None:
        """Hold on for longer than the leases last, then try everything that needs a live one."""
        self._board.add(self._slot, Cell.STALLS)
        await asyncio.sleep(self._plan.lease * self._rng.uniform(1.0, 1.8))
        third = len(held) // 3
        await self._calls.renew(held[third:])
        if third:
            await self._calls.fail(held[:third])
            await self._calls.release(held[third : 2 * third])
