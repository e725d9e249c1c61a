"""Time that passes only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools


async def settle():
    """Until every task has done what it can without time passing; none here takes more turns than this."""
    for _ in range(25):
        await asyncio.sleep(0)


class Alarm:
    """What `Clock.call_later` gives."""

    def __init__(self, callback):
        self.callback = callback

    def cancel(self):
        self.callback = lambda: None


class Clock:
    """A clock with alarms, and a `sleep` by it."""

    def __init__(self):
        self.now = 1000.0
        self._alarms = []
        self._order = itertools.count()

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        alarm = Alarm(callback)
        heapq.heappush(self._alarms, (self.now + delay, next(self._order), alarm))
        return alarm

    def until_next(self):
        """Seconds to the next alarm."""
        return self._alarms[0][0] - self.now

    async def sleep(self, seconds):
        woken = asyncio.get_running_loop().create_future()
        alarm = self.call_later(seconds, lambda: woken.set_result(None))
        try:
            await woken
        finally:
            alarm.cancel()

    async def advance(self, seconds):
        """Lets so much time pass. Whoever wakes meanwhile does all it can before the next one does."""
        end = self.now + seconds + 1e-9  # so that sums of floats end where one means
        await settle()
        while self._alarms and self._alarms[0][0] <= end:
            self.now, _, alarm = heapq.heappop(self._alarms)
            alarm.callback()
            await settle()
        self.now = end
