"""A fleet under a burst: from nobody to as many as there may be, and back to nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.cluster.kinds import DEPLOYMENT
from libs.work import Work

from ..provision.world import EVERYTHING
from .site import Cluster, Site, at

_FLEET = "scaling-burst"
_SAMPLE_SECONDS = 1.0
_IDS_AT_ONCE = 1000
_DOCUMENT = b"So it was. So it is. So it will be."


@dataclass(frozen=True)
class Plan:
    """`cooldown` and `patience`, until it has failed, are seconds."""

    namespace: str
    items: int
    most: int
    slots: int
    cooldown: int
    patience: float


@dataclass(frozen=True)
class Point:
    """How it was, so many seconds after the first submit."""

    seconds: float
    ready: int
    leased: int
    replicas: int
    """That are wanted."""
    pods: int
    """That are there, ending ones included."""


@dataclass
class Books:
    """What became of the items."""

    submitted: int
    done: int = 0
    twice: int = 0
    """Told of more than once."""
    failed: int = 0
    """Settled, and not as done."""
    retried: int = 0
    """Done or failed in another attempt than the first."""
    _seen: set[str] = field(default_factory=set)

    def note(self, item: work_pb2.Item) -> None:
        """One that is settled."""
        if item.id in self._seen:
            self.twice += 1
            return
        self._seen.add(item.id)
        self.done += item.state == work_pb2.WORK_STATE_SUCCEEDED
        self.failed += item.state != work_pb2.WORK_STATE_SUCCEEDED
        self.retried += item.attempt > 1

    @property
    def lost(self) -> int:
        """Accepted, and never settled."""
        return self.submitted - self.done - self.failed

    @property
    def balanced(self) -> bool:
        """Whether each was done once, in its first attempt."""
        return self.done == self.submitted and not (self.twice or self.retried)


@dataclass(frozen=True)
class Found:
    """The curve and the books; seconds are since the first submit."""

    points: Sequence[Point]
    books: Books
    submitted_seconds: float
    drained_seconds: float
    """Until the last item was settled."""
    gone_seconds: float
    """Until the last pod was gone."""

    @property
    def peak(self) -> Point:
        """The first moment with the most pods."""
        return max(self.points, key=lambda point: point.pods)


async def measure(plan: Plan, where: Cluster | Mapping[str, str], say: Callable[[str], None]) -> Found:
    """One burst. TimeoutError if it takes longer than the patience."""
    async with (
        at(where, plan.namespace) as site,
        site.fleet(_FLEET, plan.most, slots=plan.slots, cooldown=plan.cooldown) as queue,
    ):
        wanted = _Wanted(site)
        async with asyncio.timeout(plan.patience), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(wanted.follow())
            await wanted.known.wait()
            found = await _burst(site, plan, queue, wanted, tasks, say)
            following.cancel()
    return found


@dataclass
class _Wanted:
    """The replicas that the Deployment is to have."""

    site: Site
    replicas: int = 0
    known: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        async for thing in self.site.world.watch(DEPLOYMENT, self.site.namespace, EVERYTHING):
            if thing["metadata"]["name"] == _FLEET:
                self.replicas = thing["spec"].get("replicas") or 0
                self.known.set()


async def _burst(
    site: Site, plan: Plan, queue: str, wanted: _Wanted, tasks: asyncio.TaskGroup, say: Callable[[str], None]
) -> Found:
    begun = time.monotonic()
    points: list[Point] = []

    async def sample() -> None:
        while True:
            point = await _point(site, queue, wanted, begun)
            points.append(point)
            say(
                f"{point.seconds:6.1f} s: {point.ready} ready, {point.leased} leased,"
                f" {point.replicas} replicas, {point.pods} pods"
            )
            await asyncio.sleep(_SAMPLE_SECONDS)

    sampling = tasks.create_task(sample())
    works = [Work(_DOCUMENT, content_type="text/plain") for _ in range(plan.items)]
    for verdict in await site.client.submit_all(queue, works):
        if isinstance(verdict, Exception):
            raise verdict
    submitted = time.monotonic() - begun
    books = Books(plan.items)
    for start in range(0, plan.items, _IDS_AT_ONCE):
        async for item in site.client.results(ids=[each.id for each in works[start : start + _IDS_AT_ONCE]]):
            books.note(item)
    drained = time.monotonic() - begun
    while wanted.replicas or await site.pods(_FLEET):  # noqa: ASYNC110
        await asyncio.sleep(_SAMPLE_SECONDS / 4)
    gone = time.monotonic() - begun
    sampling.cancel()
    return Found(points, books, submitted, drained, gone)


async def _point(site: Site, queue: str, wanted: _Wanted, begun: float) -> Point:
    answer = await site.client.stub.GetQueues(pb.GetQueuesRequest(queues=[queue]))
    numbers = answer.queues[0] if answer.queues else work_pb2.Queue()
    pods = await site.pods(_FLEET)
    seconds = round(time.monotonic() - begun, 3)
    return Point(seconds, numbers.ready_count, numbers.leased_count, wanted.replicas, pods)
