"""One scaler with many ScaledObjects: what it takes, and how soon it tells of a change. Real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceStub
from externalscaler import externalscaler_pb2
from libs.ids import new_id
from libs.mesh import SCALER
from libs.pki import Authority

from .. import processes
from ..channel import connected
from ..child import await_ready, child, free_port
from ..latency import Histogram
from ..server import Engine
from ..states.footprint import memory
from ..sweep import own_server
from .keda import Keda, connection

if TYPE_CHECKING:
    from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceAsyncStub

_OF_A_NAMESPACE = 500  # queues; coordination allows twice as many
_AT_ONCE = 50  # queues that are made at the same time
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True)
class Plan:
    """What to measure; seconds are of one step."""

    objects: int
    changes: Sequence[float]
    """A second; a queue that turns active, and one that turns inactive, is a change."""
    seconds: float
    environment: Mapping[str, str]
    """Of the processes; SCALER_MIN_INTERVAL for instance."""
    folder: Path | None = None


@dataclass(frozen=True)
class Step:
    """A line of the table. Milliseconds; None where there was nothing of it."""

    load: str
    scaler_millicores: float
    coordination_millicores: float
    rss_mib: float
    pushes_per_second: float
    """Heartbeats included."""
    changes_per_second: float
    push_p50_ms: float | None
    push_p99_ms: float | None
    ask_p50_ms: float | None
    ask_p99_ms: float | None


@dataclass(frozen=True)
class Found:
    """All of it."""

    connect_seconds: float
    """Until all streams have said their first word."""
    steps: Sequence[Step]


@dataclass
class Changer:
    """Turns queues active by an item each, and inactive by settling it; nobody else works on them."""

    stub: CoordinationServiceAsyncStub
    keda: Keda
    queues: Sequence[str]
    pushed: Histogram = field(default_factory=Histogram)
    """Seconds from the answer of the Submit or Ack to the stream's word; 0 where that was first."""
    changes: int = 0

    async def run(self, rate: float, seconds: float) -> None:
        """So many changes a second for so long, evenly, one queue after the other."""
        if not rate:
            await asyncio.sleep(seconds)
            return
        begun, step = time.monotonic(), 2 / rate  # a cycle is two changes
        under_way: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(seconds / step)):
                await asyncio.sleep(max(0.0, begun + number * step - time.monotonic()))
                which = number % len(self.queues)
                if which in under_way:
                    await under_way[which]
                under_way[which] = tasks.create_task(self._cycle(which))

    async def _cycle(self, which: int) -> None:
        queue, item = self.queues[which], new_id()
        heard = self.keda.turn(which, active=True)
        work = work_pb2.WorkItem(id=item, payload=b"-")
        [verdict] = (await self.stub.Submit(pb.SubmitRequest(queue=queue, items=[work]))).verdicts
        assert verdict.status == pb.SUBMIT_STATUS_ACCEPTED
        self._record(time.monotonic(), await heard)
        [grant] = (await self.stub.Claim(pb.ClaimRequest(queues=[queue], request_id=item))).grants
        heard = self.keda.turn(which, active=False)
        ack = pb.Ack(item_id=grant.item_id, token=grant.token)
        [settled] = (await self.stub.Ack(pb.AckRequest(acks=[ack]))).verdicts
        assert settled.status == pb.LEASE_STATUS_OK
        self._record(time.monotonic(), await heard)

    def _record(self, answered: float, heard: float) -> None:
        self.pushed.record(max(0.0, heard - answered))
        self.changes += 1


def names(objects: int) -> Sequence[str]:
    """A queue for each, namespace/name."""
    return [f"load-{each // _OF_A_NAMESPACE}/queue-{each}" for each in range(objects)]


def refs(queues: Sequence[str]) -> Sequence[externalscaler_pb2.ScaledObjectRef]:
    """The trigger of a ScaledObject for each, as KEDA sends it."""
    metadata = {"scalerAddress": "scaler.agentctl-system.svc:7417", "target": "5"}
    return [
        externalscaler_pb2.ScaledObjectRef(name=name, namespace=namespace, scalerMetadata=metadata)
        for namespace, _, name in (queue.partition("/") for queue in queues)
    ]


@dataclass(frozen=True)
class _Site:
    keda: Keda
    coordination: CoordinationServiceAsyncStub
    queues: Sequence[str]
    scaler_pid: int
    coordination_pid: int


async def measure(plan: Plan, say: Callable[[str], None]) -> Found:
    """The steps one after the other: connected, with HPAs, and with each rate of changes too."""
    async with _site(plan, say) as site, asyncio.TaskGroup() as tasks:
        say(f"opening {2 * plan.objects} streams")
        connect_seconds = await site.keda.connect(tasks)
        await asyncio.sleep(_SETTLE_SECONDS)
        steps = [await _step(site, "streams", plan.seconds, asks=False, rate=0, say=say)]
        for rate in (0.0, *plan.changes):
            load = f"{rate:g} changes/s" if rate else "HPAs ask"
            steps.append(await _step(site, load, plan.seconds, asks=True, rate=rate, say=say))
        site.keda.close()
    return Found(connect_seconds, steps)


async def _step(
    site: _Site, load: str, seconds: float, *, asks: bool, rate: float, say: Callable[[str], None]
) -> Step:
    say(f"{load}, for {seconds:g} s")
    keda = site.keda
    keda.asks, pushes = Histogram(), keda.pushes
    changer = Changer(site.coordination, keda, site.queues)
    pids = (site.scaler_pid, site.coordination_pid)
    began, before = time.monotonic(), [processes.activity([pid]).milliseconds for pid in pids]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(changer.run(rate, seconds))
        if asks:
            tasks.create_task(keda.ask(seconds))
    elapsed = time.monotonic() - began
    after = [processes.activity([pid]).milliseconds for pid in pids]
    scaler, coordination = ((late - early) / elapsed for early, late in zip(before, after, strict=True))
    return Step(
        load,
        scaler,
        coordination,
        memory(processes.tree(site.scaler_pid)).resident,
        (keda.pushes - pushes) / elapsed,
        changer.changes / elapsed,
        _ms(changer.pushed, 50),
        _ms(changer.pushed, 99),
        _ms(keda.asks, 50),
        _ms(keda.asks, 99),
    )


@asynccontextmanager
async def _site(plan: Plan, say: Callable[[str], None]) -> AsyncIterator[_Site]:
    queues = names(plan.objects)
    with own_server(Engine.MEMORY, plan.folder, plan.environment) as (target, server):
        root = server.data.parent
        authority = Authority.load(root / "pki")
        async with connected(target) as channel:
            coordination = CoordinationServiceStub(channel)
            say(f"making {plan.objects} queues")
            await _make(coordination, queues)
            with _scaler(authority, root, server.address, plan.environment) as (address, pid):
                keda = authority.issue(f"spiffe://{authority.domain}/cp/keda", root / "keda")
                async with connection(address, keda) as stub:
                    yield _Site(Keda(stub, refs(queues)), coordination, queues, pid, server.pid)


async def _make(coordination: CoordinationServiceAsyncStub, queues: Sequence[str]) -> None:
    for start in range(0, len(queues), _AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for queue in queues[start : start + _AT_ONCE]:
                tasks.create_task(_configure(coordination, queue))


async def _configure(coordination: CoordinationServiceAsyncStub, queue: str) -> None:
    await coordination.ConfigureQueue(pb.ConfigureQueueRequest(queue=queue))


@contextmanager
def _scaler(
    authority: Authority, root: Path, coordination: str, environment: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    spiffe_id = f"spiffe://{authority.domain}/cp/scaler"
    identity = authority.issue(spiffe_id, root / "scaler", dns_names=("localhost",))
    port, plain, log = free_port(), free_port(), root / "scaler.log"
    told = {
        "SCALER_PORT": str(port),
        "SCALER_METRICS_PORT": str(plain),
        "AGENTCTL_COORDINATION_ADDRESS": coordination,
        "AGENTCTL_TLS_DIR": str(identity.folder),
    }
    with child(f"services.{SCALER.name}", (), {**environment, **told}, log) as process:
        await_ready(process, plain, log)
        yield f"localhost:{port}", process.pid


def _ms(times: Histogram, percent: float) -> float | None:
    seconds = times.percentile(percent)
    return None if seconds is None else seconds * 1000
