"""The picture follows coordination, and is not known while coordination is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import anyio
import pytest
from prometheus_client import REGISTRY

from libs.mesh import COORDINATION
from libs.rpc.client import Channel, dial
from libs.testing.mesh import Mesh
from libs.testing.ports import free_port

from ..demand import AGE, ITEMS, Demand
from ..feed import Feed
from ..picture import Picture
from .served import Clock, FakeCoordination, Plane, plane, ref, unavailable, until

DOCS = "demo/docs"


@dataclass
class Fed:
    """A scaler that coordination feeds, and that coordination's switch."""

    plane: Plane
    coordination: FakeCoordination
    channel: Channel
    port: int
    up: AsyncExitStack

    async def start(self) -> None:
        await self.up.enter_async_context(self.coordination.serve(self.plane.mesh, self.port))

    async def stop(self) -> None:
        await self.up.aclose()
        self.up = AsyncExitStack()

    async def is_known(self, queue: str, demand: Demand) -> None:
        """Returns when the picture has it."""

        async def look() -> bool:
            picture = self.plane.picture
            return picture.is_fresh and picture.demand(queue) == demand

        await until(look)


@pytest.fixture
async def fed(certified: Mesh) -> AsyncIterator[Fed]:
    async with feeding(certified) as made:
        await made.start()
        yield made


@asynccontextmanager
async def feeding(mesh: Mesh) -> AsyncIterator[Fed]:
    port = free_port()
    async with (
        plane(mesh) as served,
        dial(COORDINATION, f"127.0.0.1:{port}", mesh.identity("cp/scaler"), own_connection=True) as channel,
        anyio.create_task_group() as tasks,
    ):
        made = Fed(served, FakeCoordination(), channel, port, AsyncExitStack())  # type: ignore[abstract]
        tasks.start_soon(Feed(channel, served.picture, timedelta(milliseconds=5)).run)
        try:
            yield made
        finally:
            tasks.cancel_scope.cancel()
            await made.stop()


def breaks() -> float:
    return REGISTRY.get_sample_value("agentctl_scaler_feed_breaks_total") or 0


async def broken(since: float) -> None:
    async def look() -> bool:
        return breaks() > since

    await until(look)


async def test_what_coordination_says_reaches_keda_by_one_stream_and_no_poll(fed):
    keda = await fed.plane.caller()
    stream = keda.stream(ref())
    assert not await stream.active()
    fed.coordination.put(DOCS, ready=2, leased=1, age=3.5)
    assert await stream.active()
    trigger = ref(metadata={"targetAge": "1s"})
    assert await keda.metrics(trigger) == {ITEMS: (3, 3.0), AGE: (4, 3.5)}
    assert (len(fed.coordination.asked), fed.coordination.looks) == (1, 0)
    [asked] = fed.coordination.asked
    assert (list(asked.queues), asked.namespace, asked.min_interval.ToTimedelta()) == (
        [],
        "",
        timedelta(milliseconds=5),
    )


async def test_delayed_blocked_and_dead_items_need_nobody(fed):
    fed.coordination.put(DOCS, ready=1)
    keda = await fed.plane.caller()
    await fed.is_known(DOCS, Demand(ready=1))
    fed.coordination.put(DOCS, delayed_count=3, blocked_count=2, dead_count=1)
    await fed.is_known(DOCS, Demand())
    assert not await keda.is_active(ref())


async def test_a_first_picture_is_not_known_before_it_is_whole(fed):
    picture = Picture(Clock())
    feed = Feed(fed.channel, picture, timedelta(milliseconds=5))
    parts = feed._take({}, {DOCS: Demand(1)}, has_more=True)
    assert (picture.is_fresh, parts) == (False, {DOCS: Demand(1)})
    assert feed._take(parts, {"demo/mail": Demand(2)}, has_more=False) is None
    assert [picture.demand(queue) for queue in (DOCS, "demo/mail")] == [Demand(1), Demand(2)]


async def test_a_first_picture_of_several_parts_is_known(certified):
    async with feeding(certified) as fed:
        for n in range(4001):
            fed.coordination.put(f"demo/queue-{n}", ready=1)
        await fed.start()
        assert await (await fed.plane.caller()).stream(ref("queue-4000")).active()


async def test_of_a_first_picture_that_may_not_be_whole_what_is_missing_is_unknown_and_not_zero(certified):
    async with feeding(certified) as fed:
        for n in range(2000):
            fed.coordination.put(f"demo/queue-{n}", leased=1)
        await fed.start()
        keda = await fed.plane.caller()
        assert await keda.stream(ref("queue-1999")).active()
        assert await unavailable(keda, ref())
        stream = keda.stream(ref())
        fed.coordination.put("demo/queue-7", leased=2)
        assert not await stream.active()
        assert not await keda.is_active(ref())


async def test_quiet_queues_stay_known(fed):
    fed.coordination.put(DOCS, ready=1)
    await fed.is_known(DOCS, Demand(ready=1))
    fed.plane.clock.now += 6
    await fed.is_known(DOCS, Demand(ready=1))
    assert len(fed.coordination.asked) == 1


async def test_nothing_is_known_before_coordination_is_there(certified):
    async with feeding(certified) as fed:
        keda = await fed.plane.caller()
        assert await unavailable(keda, ref())
        stream = keda.stream(ref())
        await broken(breaks())
        assert await unavailable(keda, ref())
        fed.coordination.put(DOCS, leased=1)
        await fed.start()
        assert await stream.active()


async def test_coordination_down_is_an_error_and_a_stream_that_holds(fed):
    fed.coordination.put(DOCS, ready=1)
    keda = await fed.plane.caller()
    stream = keda.stream(ref())
    await fed.is_known(DOCS, Demand(ready=1))
    assert await stream.active() or await stream.active()
    await fed.stop()
    assert await keda.is_active(ref())  # for a few seconds what was so is taken to be so
    fed.plane.clock.now += 6
    assert await unavailable(keda, ref())
    await broken(breaks())
    assert await unavailable(keda, ref())
    await fed.start()
    await fed.is_known(DOCS, Demand(ready=1))
    fed.coordination.put(DOCS)
    assert not await stream.active()  # the first word since the outage


async def test_a_restart_that_forgot_queues_makes_them_inactive(fed):
    fed.coordination.put(DOCS, ready=1)
    stream = (await fed.plane.caller()).stream(ref())
    await fed.is_known(DOCS, Demand(ready=1))
    assert await stream.active() or await stream.active()
    await fed.stop()
    fed.coordination.queues.clear()
    fed.coordination.put("demo/mail", ready=1)
    await fed.start()
    assert not await stream.active()
    assert len(fed.coordination.asked) >= 2


async def test_a_store_that_does_not_answer_is_an_outage_though_connections_live(fed):
    fed.coordination.put(DOCS, ready=1)
    keda = await fed.plane.caller()
    await fed.is_known(DOCS, Demand(ready=1))
    before = breaks()
    fed.coordination.has_store.clear()
    await broken(before)
    fed.plane.clock.now += 6
    assert await unavailable(keda, ref())
    fed.coordination.queues[DOCS].ready_count = 2
    fed.coordination.has_store.set()
    await fed.is_known(DOCS, Demand(ready=2))


async def test_a_connection_that_is_closed_with_its_certificate_is_followed_by_another(fed):
    fed.coordination.put(DOCS, ready=1)
    await fed.is_known(DOCS, Demand(ready=1))
    old = fed.channel.connection
    assert await fed.channel.renew()
    before = breaks()
    await old.close()
    await broken(before)
    fed.coordination.put(DOCS, ready=2)
    await fed.is_known(DOCS, Demand(ready=2))
