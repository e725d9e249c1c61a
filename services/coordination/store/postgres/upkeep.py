"""What the store does by itself: looks at everything whose time has come, and housekeeping.

A look says when something is due next. What this replica changes after it is looked at soon by itself, so it
need not be known what a change brings; what another one changed is its own to look at, and ours twice a
second, should it be gone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import LiteralString

import psycopg

from libs.errors import UnavailableError

from .session import Fault, Link, fault, unavailable
from .verbs import Woken, wakes

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.1  # between two looks, and from a change to the look after it
# Half of the gap between looks from which on the database takes us for gone (recover_1).
IDLE_SECONDS = 0.5
FULL_SECONDS = 2.0  # a look from the beginning of time; the others begin a little before the last one
TIDY_SECONDS = 0.25
IDLE_TIDY_SECONDS = 2.0
PARTITION_SECONDS = 600.0
PROOF_SECONDS = 1.0
MOST = 1000

_SWEEP: LiteralString = (
    "select * from sweep_2(case when %s then '-infinity'::timestamptz"
    " else clock_timestamp() - interval '4 s' end, %s, interval '500 ms')"
)


class Upkeep:
    """Runs in every replica; the database lets one at a time."""

    def __init__(self, link: Link, woken: Woken) -> None:
        self._link = link
        self._woken = woken
        self._turn = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._sooner = asyncio.Event()
        self._next = self._tidy = self._full = self._partition = self._proof = -math.inf
        self.trouble: str | None = None  # why the last look failed

    def stir(self) -> None:
        """Something has changed that may bring something due."""
        now = self._clock()
        if now + SWEEP_SECONDS < self._next:
            self._next = now + SWEEP_SECONDS
            self._sooner.set()
        self._tidy = min(self._tidy, now + TIDY_SECONDS)

    @property
    def proven(self) -> bool:
        """Whether a look has committed within the last second, and its connection has been quiet since."""
        return self._clock() - self._proof < PROOF_SECONDS and self._link.calm

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._due()
            began, self._next = self._clock(), math.inf
            try:
                wait = await self._look(began)
                self.trouble = None
            except UnavailableError as error:
                wait = SWEEP_SECONDS
                self._full = -math.inf
                if self.trouble is None:
                    log.warning("nothing expires at the moment: %s", error)
                self.trouble = str(error)
            self._next = min(self._next, began + wait)

    async def _due(self) -> None:
        """Return when the next look is due, which may come to be sooner meanwhile."""
        while (wait := self._next - self._clock()) > 0:
            self._sooner.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._sooner.wait()

    async def partition(self) -> None:
        """See to it that results have partitions to go to, and drop those that are over."""
        await self._once("select partition_1()")

    async def close(self) -> None:
        async with self._turn:
            await self._link.drop()

    async def _look(self, now: float) -> float:
        """Do what is to be done; seconds from `now` until there may be more."""
        if now >= self._partition:
            self._partition = now + PARTITION_SECONDS
            await self.partition()
        if now >= self._tidy:
            self._tidy = now + IDLE_TIDY_SECONDS
            ((some,),) = await self._once("select tidy_2()")
            if some:
                self._tidy = now + TIDY_SECONDS
        full = now >= self._full
        sent = self._clock()
        *found, last = await self._once(_SWEEP, full, MOST) or [()]
        if full:
            self._full = now + FULL_SECONDS
        wakes(found, self._woken)
        if sum(row[1] for row in found) >= MOST:
            return 0.0
        if not last:  # another replica is looking, perhaps since before our last change
            return SWEEP_SECONDS
        if last[1]:
            self._proof = sent
        if last[4] is None:
            return IDLE_SECONDS
        return max(SWEEP_SECONDS, self._clock() - now + last[4] / 1000)

    async def _once(self, statement: LiteralString, *params: object) -> list[tuple[int, ...]]:
        async with self._turn:
            try:
                return await self._link.run(statement, params)
            except psycopg.Error as error:
                if fault(error) is not Fault.AGAIN:
                    log.warning("%s: %s", statement, error)
                raise unavailable(error) from error
