"""What the store does by itself: ten looks a second at everything whose time has come, and housekeeping."""

from __future__ import annotations

import asyncio
import logging
from typing import LiteralString

import psycopg

from libs.errors import UnavailableError

from .session import Fault, Link, fault, unavailable
from .verbs import Woken, wakes

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.1
FULL_SECONDS = 2.0  # a look from the beginning of time; the others begin a little before the last one
TIDY_SECONDS = 0.25
PARTITION_SECONDS = 600.0
MOST = 1000

_SWEEP: LiteralString = (
    "select * from sweep_1(case when %s then '-infinity'::timestamptz"
    " else clock_timestamp() - interval '4 s' end, %s)"
)


class Upkeep:
    """Runs in every replica; the database lets one at a time."""

    def __init__(self, link: Link, woken: Woken) -> None:
        self._link = link
        self._woken = woken
        self._turn = asyncio.Lock()
        self.trouble: str | None = None  # why the last look failed

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        full = tidy = partition = 0.0
        while True:
            now = loop.time()
            try:
                if now >= partition:
                    partition = now + PARTITION_SECONDS
                    await self.partition()
                if now >= tidy:
                    tidy = now + TIDY_SECONDS
                    await self._once("select tidy_1()")
                whole = now >= full
                again = await self._sweep(whole)
                if whole:
                    full = now + FULL_SECONDS
                self.trouble = None
            except UnavailableError as error:
                again = False
                full = 0.0
                if self.trouble is None:
                    log.warning("nothing expires at the moment: %s", error)
                self.trouble = str(error)
            if not again:
                await asyncio.sleep(max(0.005, SWEEP_SECONDS - (loop.time() - now)))

    async def partition(self) -> None:
        """See to it that results have partitions to go to, and drop those that are over."""
        await self._once("select partition_1()")

    async def close(self) -> None:
        async with self._turn:
            await self._link.drop()

    async def _sweep(self, full: bool) -> bool:
        found = await self._once(_SWEEP, full, MOST)
        wakes(found, self._woken)
        return sum(row[1] for row in found if row[0] == 0) >= MOST

    async def _once(self, statement: LiteralString, *params: object) -> list[tuple[int, ...]]:
        async with self._turn:
            try:
                return await self._link.run(statement, params)
            except psycopg.Error as error:
                if fault(error) is not Fault.AGAIN:
                    log.warning("%s: %s", statement, error)
                raise unavailable(error) from error
