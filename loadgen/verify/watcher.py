"""The process that watches all results, and goes on from its cursors whatever happens to the streams."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic_ns
from typing import Any

import grpc
import uvloop

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs import mesh
from libs.errors import DeadlineError, UnavailableError
from libs.identity import Identity
from libs.rpc.client import dial

from .board import Board, Phase
from .history import Ending, Event, Writer, story
from .plan import EXPIRED, Plan

_SILENCE = 3.0  # seconds, after which a stream is left for another
_PAUSE = 0.1


def main(plan: Plan, folder: Path, addresses: Sequence[str], identity: Identity) -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_run(plan, folder, addresses, identity))


async def _run(plan: Plan, folder: Path, addresses: Sequence[str], identity: Identity) -> None:
    board = Board(folder / "board")
    writer = Writer(folder / "watcher.history")
    errors = (folder / "watcher.errors").open("a", buffering=1)
    async with AsyncExitStack() as stack:
        stack.callback(errors.close)
        stubs = []
        for address in addresses:
            channel = dial(mesh.COORDINATION, address, identity, own_connection=True, check_seconds=3600.0)
            stubs.append(pb_grpc.CoordinationServiceStub(await stack.enter_async_context(channel)))
        rng = random.Random(plan.seed)

        seen = bytearray(plan.items)

        async def watch(queue: str) -> None:
            cursor = ""
            while board.phase < Phase.STOP:
                request = pb.WatchResultsRequest(queue=queue, cursor=cursor, follow=True)
                stream: Any = rng.choice(stubs).WatchResults(request)
                try:
                    while board.phase < Phase.STOP:
                        async with asyncio.timeout(_SILENCE):
                            message = await stream.read()
                        if message is grpc.aio.EOF:
                            break
                        lines = lines_of(plan, message.results, errors.write)
                        writer.write(lines)
                        cursor = message.cursor or cursor
                        fresh = {item for _, _, _, item, *_ in lines if not seen[item]}
                        for item in fresh:
                            seen[item] = 1
                        board.seen += len(fresh)
                except (UnavailableError, DeadlineError, TimeoutError):
                    await asyncio.sleep(_PAUSE)
                finally:
                    stream.cancel()

        async with asyncio.TaskGroup() as tasks:
            for queue in plan.queues:
                tasks.create_task(watch(queue))


Line = tuple[int, int, int, int, int, int, int, int]


def lines_of(plan: Plan, items: Sequence[work_pb2.Item], complain: Callable[[str], object]) -> list[Line]:
    """What results say; complains about those that are none of ours."""
    now = monotonic_ns()
    lines: list[Line] = []
    for item in items:
        number = plan.number(item.id)
        if number is None:
            complain(f"WatchResults: an item that is not ours\t{item.id}\n")
            continue
        parts = item.result.split(b":")
        token = worker = 0
        if len(parts) == 3 and parts[0] == b"%d" % number:  # as `Calls` makes it
            token, worker = int(parts[1]), int(parts[2])
        told = story(Ending(failure.attempt, failure.error == EXPIRED) for failure in item.failures)
        lines.append((Event.RESULT, item.state, worker, number, token, item.attempt, now, told))
    return lines
