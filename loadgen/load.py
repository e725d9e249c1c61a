"""What one generator process does in a step: its connections, its clients, and which loop they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice
from typing import Any

import grpc

from libs.work import connect

from .alarm import Alarm
from .calls import Checks, StubVerbs
from .channel import Target, bare
from .contention import compete
from .library import LibraryVerbs
from .loops import Verbs, Window, run_client, run_together
from .openloop import OpenLoop
from .tally import Mode, Step, Tally
from .wake import pace, park

Load = Callable[[Window], Awaitable[None]]
_Loops = Sequence[Coroutine[Any, Any, None]]


async def prepared(step: Step, process: int, target: Target, tally: Tally, stack: AsyncExitStack) -> Load:
    """The load of this process. Its connections are open; the stack closes them."""
    clients = step.share(step.clients, process)
    if step.mode is Mode.LIBRARY:
        client = await stack.enter_async_context(connect(target.address, target.identity))

        def through_library(window: Window) -> Awaitable[None]:
            verbs = [LibraryVerbs(step, client, tally, window) for _ in range(clients)]
            return run_together(_cycles(step, process, verbs, tally, window), tally, window)

        return through_library
    parked_at = Target(target.parked_at or target.address, target.identity)
    channels = [
        await stack.enter_async_context(bare(parked_at if step.mode is Mode.WAKE else target, step.client))
        for _ in range(step.share(step.connections, process))
    ]
    submitting = (
        await stack.enter_async_context(bare(target, step.client)) if step.mode is Mode.WAKE else None
    )

    def over_stubs(window: Window) -> Awaitable[None]:
        spread = islice(cycle(channels), clients)
        if step.mode is Mode.CHECK:
            checks = [Checks(step, channel, tally, window).run() for channel in spread]
            return run_together(checks, tally, window)
        verbs = [StubVerbs(step, channel, tally, window) for channel in spread]
        if submitting:
            loops = _wakes(step, process, verbs, submitting, tally, window)
        elif step.mode is Mode.CONTENTION:
            ids = tally.ledger.new_ids()
            loops = [compete(step, index, each, ids, tally, window) for index, each in enumerate(verbs)]
        else:
            loops = _cycles(step, process, verbs, tally, window)
        return run_together(loops, tally, window)

    return over_stubs


def _cycles(step: Step, process: int, verbs: Sequence[Verbs], tally: Tally, window: Window) -> _Loops:
    if step.rate:
        return [_open(step, process, verbs, tally, window)]
    ids = tally.ledger.new_ids()
    return [run_client(step, each, ids, window) for each in verbs]


async def _open(step: Step, process: int, verbs: Sequence[Verbs], tally: Tally, window: Window) -> None:
    with Alarm() as alarm:
        await OpenLoop(step, process, verbs, tally, window, sleep=alarm.sleep).run()


def _wakes(
    step: Step,
    process: int,
    verbs: Sequence[StubVerbs],
    channel: grpc.aio.Channel,
    tally: Tally,
    window: Window,
) -> _Loops:
    parked = [park(each, tally, window) for each in verbs]
    if process:
        return parked  # one submits, for all
    submitter = StubVerbs(step, channel, tally, window)
    return [*parked, pace(step, submitter, tally.ledger.new_ids(), tally, window)]
