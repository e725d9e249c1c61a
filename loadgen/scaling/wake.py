"""From a submit to its item done by a fleet that was asleep, again and again."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from libs.cluster.kinds import DEPLOYMENT, POD, Kind
from libs.ids import new_id
from libs.work import Work

from ..provision.world import EVERYTHING
from .moments import Row, Wake, certified_at
from .site import Cluster, Site, at

PUSH = "push"
_FLEET = "scaling-wake"
_COOLDOWN_SECONDS = 1
_PROBES = 20
_LOOK_SECONDS = 0.01
_DOCUMENT = b"Nothing happens here. Nobody comes, nobody goes. It is awful."


@dataclass(frozen=True)
class Plan:
    """Seconds are `patience`, until a run has failed, and `poll`."""

    namespace: str
    runs: int
    patience: float
    poll: float | None = None
    """None: the scaler's push wakes the fleet. Else a client that asks so often whether there is work."""


async def measure(
    plan: Plan, where: Cluster | Mapping[str, str], say: Callable[[str], None]
) -> Sequence[Row]:
    """The runs, after one that does not count. TimeoutError says what did not come in one of them."""
    rows = []
    by = PUSH if plan.poll is None else f"poll {plan.poll:g} s"
    by_hand = None if plan.poll is None else 0
    async with (
        at(where, plan.namespace) as site,
        site.fleet(_FLEET, 1, slots=4, cooldown=_COOLDOWN_SECONDS, replicas=by_hand) as queue,
    ):
        for run in range(plan.runs + 1):
            calls = await _claim_and_ack(site)
            await _asleep(site, plan.patience)
            wake = await _run(site, plan, queue)
            own = wake.own(is_home=site.is_home, calls=calls)
            say(f"{by}, run {run}: {max(wake.at.values()):.3f} s, of which ours {own * 1000:.0f} ms")
            if run:
                rows.append(Row.of(by, run, wake, own))
    return rows


async def _asleep(site: Site, patience: float) -> None:
    """Returns when nothing is wanted and nothing is there."""
    async with (
        asyncio.timeout(patience),
        aclosing(site.world.watch(DEPLOYMENT, site.namespace, EVERYTHING)) as seen,
    ):
        async for thing in seen:
            if thing["metadata"]["name"] == _FLEET and not thing["spec"].get("replicas"):
                break
    await site.empty(_FLEET, patience)
    await asyncio.sleep(random.uniform(0.5, 1.5))  # no run is in step with what looks each second


async def _claim_and_ack(site: Site) -> float:
    """Seconds that one Claim of an item that is ready and its Ack take, median, as their caller sees it."""
    queue, took = f"{site.namespace}/{_FLEET}-probe", []
    for _ in range(_PROBES):
        await site.client.submit(queue, Work(b"-"))
        began = time.monotonic()
        request = pb.ClaimRequest(queues=[queue], request_id=new_id())
        [grant] = (await site.client.stub.Claim(request)).grants
        ack = pb.Ack(item_id=grant.item_id, token=grant.token)
        await site.client.stub.Ack(pb.AckRequest(acks=[ack]))
        took.append(time.monotonic() - began)
    return statistics.median(took)


async def _run(site: Site, plan: Plan, queue: str) -> Wake:
    wake, work = Wake(_FLEET), Work(_DOCUMENT, content_type="text/plain")
    begun = 0.0
    streams = {"queue": asyncio.Event(), "scaler": asyncio.Event()}  # set when they have said how it was

    def reached(moment: str) -> None:
        if begun:
            wake.at.setdefault(moment, time.monotonic() - begun)

    async def objects(kind: Kind, revision: str) -> None:
        async for thing in site.world.watch(kind, site.namespace, revision):
            if begun:
                wake.see(kind.name, thing, time.monotonic() - begun)

    async def push() -> None:
        async for message in site.scaler.StreamIsActive(site.trigger(_FLEET)):
            streams["scaler"].set()
            if message.result:
                reached("active")

    async def poll(seconds: float) -> None:
        await asyncio.sleep(random.uniform(0, seconds))
        while not (await site.scaler.IsActive(site.trigger(_FLEET))).result:
            streams["scaler"].set()
            await asyncio.sleep(seconds)
        reached("active")
        await _by_hand(site, 1)

    async def claims() -> None:
        request = pb.WatchQueuesRequest(queues=[queue], min_interval=Duration(nanos=1_000_000))
        before: int | None = None
        async for message in site.client.stub.WatchQueues(request):
            for numbers in message.queues:
                before = numbers.granted_total if before is None else before
                if numbers.granted_total > before:
                    reached("claimed")
            before = before or 0  # of a queue that is not there yet
            streams["queue"].set()

    watched = [(kind, await site.world.revision(kind, site.namespace)) for kind in (DEPLOYMENT, POD)]
    followed = [*(objects(*each) for each in watched), claims()]
    followed.append(push() if plan.poll is None else poll(plan.poll))
    try:
        async with _following(followed), asyncio.timeout(plan.patience):
            for stream in streams.values():
                await stream.wait()
            if plan.poll is not None:
                await asyncio.sleep(random.uniform(0, plan.poll))  # work comes when it comes
            begun, wall = time.monotonic(), time.time()
            await site.client.submit(queue, work)
            reached("accepted")
            async for item in site.client.results(ids=[work.id]):
                reached("acked")
                assert item.attempt == 1, f"attempt {item.attempt}"
            wake.at["certified"] = certified_at(await site.world.logs(site.namespace, wake.pod)) - wall
            while wake.missing:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"not within {plan.patience:g} s: {', '.join(wake.missing)}") from error
    if plan.poll is not None:
        await _by_hand(site, 0)
    return wake


async def _by_hand(site: Site, replicas: int) -> None:
    await site.declare(_FLEET, 1, slots=4, cooldown=_COOLDOWN_SECONDS, replicas=replicas)


@asynccontextmanager
async def _following(followed: Sequence[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """They run while the block does; if one fails, the block does."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in followed]
        yield
        for task in running:
            task.cancel()
