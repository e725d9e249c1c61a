"""Progress of a queue or a group, as it happens, until all that is known is settled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2

from .choices import State
from .durations import span
from .items import short, state
from .output import Exit, FailedError, console, emit, grid, to_dict
from .session import Session
from .work import every_item, states

if TYPE_CHECKING:
    from rich.console import RenderableType

_INTERVAL = timedelta(milliseconds=500)
_LIVE_SECONDS, _JSON_SECONDS, _PLAIN_SECONDS = 0.25, 1.0, 2.0
_HOLDERS_SECONDS = 1.0
_MOST_COUNTED = 1_000_000


@dataclass
class Progress:
    """What is known so far about a queue, and about a group of it if one is watched."""

    name: str
    group: str = ""
    queue: work_pb2.Queue | None = None
    total: int = 0  # items of the group
    began: float = field(default_factory=time.monotonic)
    settled: Counter[str] = field(default_factory=Counter)  # state → how many
    finished_by: Counter[str] = field(default_factory=Counter)
    held_by: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> int:
        return self.settled.total()

    def see(self, queue: work_pb2.Queue) -> None:
        """News of the queue. Over is over when it has nothing left to settle."""
        self.queue = queue
        if not queue.ready_count + queue.delayed_count + queue.blocked_count + queue.leased_count:
            self.over.set()

    def headline(self) -> str:
        """One line that says where things stand."""
        took = span(time.monotonic() - self.began)
        queue = self.queue
        numbers = ""
        if queue is not None:
            numbers = (
                f"{queue.ready_count} ready, {queue.leased_count} leased, {queue.delayed_count} delayed, "
                f"{queue.dead_count} dead; {queue.settled_per_second:.1f} settled/s"
            )
        if not self.group:
            return f"{self.name}  {numbers}  ({took})"
        states = (
            ", ".join(f"{count} {name}" for name, count in sorted(self.settled.items())) or "none settled"
        )
        return f"{self.name}  {self.done}/{self.total} done ({states})  {numbers}  ({took})"

    def to_dict(self) -> dict[str, object]:
        """The documented shape of `-o json`."""
        return {
            "queue": to_dict(self.queue) if self.queue is not None else {},
            "group": self.group,
            "total": self.total,
            "settled": dict(self.settled),
            "finished_by": dict(self.finished_by),
            "held_by": dict(self.held_by),
        }


async def follow(session: Session, queue: str, group: str) -> None:
    """Shows it until the group is done, or without one the queue. FailedError if there is no such thing."""
    progress = Progress(queue, group)
    by_name = pb.GetQueuesRequest(queues=[progress.name])
    found = await session.stub.GetQueues(by_name)
    if not found.queues:
        mend = "queues are made by `work submit` or `queues configure`"
        raise FailedError(f"no queue {progress.name}: {mend}", Exit.NOT_FOUND)
    progress.see(found.queues[0])
    if group:
        progress.total = await _count(session, progress)
        if not progress.total:
            raise FailedError(f"no item of {progress.name} is of the group {group}", Exit.NOT_FOUND)
    with _screen(session, progress) as (draw, interval):
        await _first(
            _watch_group(session, progress) if group else progress.over.wait(),
            _watch_queue(session, progress),
            _watch_holders(session, progress),
            _redraw(draw, interval),
        )
        progress.held_by.clear()
        progress.queue = (await session.stub.GetQueues(by_name)).queues[0]


async def _first(goal: Coroutine[Any, Any, object], *beside: Coroutine[Any, Any, None]) -> None:
    """Until the goal is reached, or anything beside it fails."""
    tasks = [asyncio.ensure_future(each) for each in (goal, *beside)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch_queue(session: Session, progress: Progress) -> None:
    request = pb.WatchQueuesRequest(queues=[progress.name])
    request.min_interval.FromTimedelta(_INTERVAL)
    while True:
        async for news in session.client.parked_stub.WatchQueues(request):
            for queue in news.queues:
                progress.see(queue)


async def _watch_group(session: Session, progress: Progress) -> None:
    async for item in session.client.results(queue=progress.name, group=progress.group):
        progress.settled[state(item)] += 1
        if item.holder:
            progress.finished_by[short(item.holder)] += 1
        progress.total = max(progress.total, progress.done)


async def _watch_holders(session: Session, progress: Progress) -> None:
    request = pb.ListItemsRequest(queue=progress.name, group=progress.group, page_size=1000)
    request.states.append(work_pb2.WORK_STATE_LEASED)
    while True:
        page = await session.stub.ListItems(request)
        progress.held_by = Counter(short(item.holder) for item in page.items)
        await asyncio.sleep(_HOLDERS_SECONDS)


async def _count(session: Session, progress: Progress) -> int:
    request = pb.ListItemsRequest(queue=progress.name, group=progress.group, states=states([State.ALL]))
    return len([None async for _ in every_item(session, request, _MOST_COUNTED)])


async def _redraw(draw: Callable[[], None], interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        draw()


@contextmanager
def _screen(session: Session, progress: Progress) -> Iterator[tuple[Callable[[], None], float]]:
    """How to draw, and how often; draws a last time at the end."""
    out = console()
    if session.json:
        yield lambda: emit(progress.to_dict(), stream=True), _JSON_SECONDS
        emit(progress.to_dict(), stream=True)
    elif out.is_terminal:
        from rich.live import Live

        with Live(console=out, get_renderable=lambda: _panel(progress), refresh_per_second=4) as live:
            yield live.refresh, _LIVE_SECONDS
    else:
        yield lambda: typer.echo(progress.headline()), _PLAIN_SECONDS
        typer.echo(progress.headline())


def _panel(progress: Progress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(progress.headline())]
    if progress.total:
        bar = Table.grid()  # gives it a line of its own
        bar.add_row(ProgressBar(total=progress.total, completed=progress.done, width=60))
        parts.append(bar)
    workers = sorted(progress.finished_by.keys() | progress.held_by.keys())
    if workers:
        columns = ["WORKER", ">HOLDS"]
        rows: list[list[object]] = [[name, progress.held_by[name]] for name in workers]
        if progress.group:  # of a whole queue nobody knows who finished what
            columns.append(">FINISHED")
            for row, name in zip(rows, workers, strict=True):
                row.append(progress.finished_by[name])
        parts.append(grid(columns, rows))
    return Group(*parts)
