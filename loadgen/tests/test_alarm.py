from __future__ import annotations

import asyncio
import signal
import time

from loadgen.alarm import Alarm


async def test_it_wakes_its_sleeper_each_time_and_not_much_too_early():
    with Alarm() as alarm:
        for seconds in (0.02, 0.003, 0.0, -1.0):
            began = time.monotonic()
            async with asyncio.timeout(10):
                await alarm.sleep(seconds)
            assert time.monotonic() - began > seconds - 0.001


async def test_it_leaves_no_timer_and_no_handler_behind():
    before = signal.getsignal(signal.SIGALRM)
    with Alarm() as alarm:
        sleeper = asyncio.create_task(alarm.sleep(60))
        await asyncio.sleep(0)
        sleeper.cancel()
        await asyncio.wait({sleeper})
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before
