"""An engine that does as it is told, and an agent around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from libs.contract.events import NAMES, Ring
from libs.contract.manifest import Limits, Manifest, Surfaces
from libs.contract.statuses import Status
from services.agent.desk import Desk
from services.agent.order import Ended, Live, Order
from services.agent.steering import ReferenceAgent

Do = Callable[[Order, Live], Awaitable[Ended]]
NOW = timedelta(0)
SOON = timedelta(seconds=5)


async def echo(order: Order, live: Live) -> Ended:
    """Answers what it is asked about."""
    await live.step("model")
    return Ended(Status.COMPLETED, f"about {order.text}")


class Engine:
    """Remembers its orders and does what `do` does; `begun` has one permit for each."""

    def __init__(self, do: Do = echo) -> None:
        self.do = do
        self.orders: list[Order] = []
        self.begun = asyncio.Semaphore(0)

    async def run(self, order: Order, live: Live) -> Ended:
        self.orders.append(order)
        self.begun.release()
        return await self.do(order, live)


class Turns:
    """Runs of so many steps: between two of them a run waits for `go`."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.taken: list[tuple[str, int]] = []
        self.go = asyncio.Semaphore(0)
        self.news = asyncio.Condition()

    async def __call__(self, order: Order, live: Live) -> Ended:
        for number in range(self.count):
            await live.step(f"turn {number}")
            async with self.news:
                self.taken.append((order.text, number))
                self.news.notify_all()
            await self.go.acquire()
        return Ended(Status.COMPLETED, f"about {order.text}")

    async def until(self, count: int) -> None:
        """Returns when so many turns have begun."""
        async with asyncio.timeout(10), self.news:
            await self.news.wait_for(lambda: len(self.taken) >= count)


async def forever(order: Order, live: Live) -> Ended:
    """Is in a call that never ends."""
    await live.step("model")
    await asyncio.Event().wait()
    raise AssertionError


def failing(status: Status = Status.MODEL, error: str = "no", **how: object) -> Do:
    """Ends so, each time."""

    async def do(order: Order, live: Live) -> Ended:
        return Ended(status, error=error, **how)  # type: ignore[arg-type]

    return do


def reference(
    engine: Engine | None, *, slots: int = 2, mode: str = "loop", drain_timeout: timedelta = SOON
) -> ReferenceAgent:
    """An agent that is not entered yet."""
    manifest = Manifest(
        "agentctl-agent", "0", mode, limits=Limits(max_depth=4, slots=slots), surfaces=Surfaces(messages=True)
    )
    desk = Desk(Ring(), slots)
    return ReferenceAgent(desk, manifest, drain_timeout=drain_timeout, engine=engine, instruction="Be brief.")


@asynccontextmanager
async def living(
    agent: ReferenceAgent, mode: Callable[[], Awaitable[object]]
) -> AsyncIterator[asyncio.Task[Any]]:
    """The mode runs inside of the agent, and has ended, drained, after the block."""

    async def live() -> object:
        async with agent:
            agent.started()
            begun.set()
            return await mode()

    begun = asyncio.Event()
    task = asyncio.create_task(live())
    await begun.wait()
    try:
        yield task
        agent.stop()
        async with asyncio.timeout(10):
            await task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def told(agent: ReferenceAgent) -> list[str]:
    """The names of its events, after its end. They are the contract's."""
    names = [event.name async for event, _ in agent.events.watch()]
    assert set(names) <= set(NAMES)
    return names
