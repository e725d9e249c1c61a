"""How long a reconcile takes, and what it costs: `python -m services.operator.bench --kubeconfig FILE`.

Starts the operator as a process of its own, makes Agents on the API server (suspended schedules: nothing
runs), changes them one after the other, spread over all, and reads the operator's own histogram before and
after; then leaves everything alone and counts writes and CPU. Two namespaces are made for it and deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import psutil  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from libs.cluster import Cluster, Object
from libs.cluster.informer import Informer
from libs.cluster.kinds import AGENT, NAMESPACE
from libs.cluster.kubernetes import connect
from libs.errors import UnavailableError

_SECONDS = "agentctl_operator_reconcile_seconds_bucket"
_WRITES = "agentctl_operator_writes_total"
_AT_ONCE = 8
_START_SECONDS = 60.0
_QUIET_SECONDS = 3.0


@dataclass(frozen=True)
class Sample:
    """The operator's numbers at one moment."""

    buckets: dict[float, float]  # upper bound → passes over Agents that wrote, cumulative
    passes: float
    writes: float  # without events
    events: float
    cpu_seconds: float
    resident: int


class Subject:
    """The operator under test."""

    def __init__(self, process: psutil.Process, port: int, session: aiohttp.ClientSession) -> None:
        self._process = process
        self._port = port
        self._session = session

    async def ready(self) -> bool:
        """Whether it says so."""
        try:
            async with self._session.get(f"http://127.0.0.1:{self._port}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def sample(self) -> Sample:
        """Its numbers now."""
        async with self._session.get(f"http://127.0.0.1:{self._port}/metrics") as answer:
            text = await answer.text()
        buckets: dict[float, float] = {}
        passes = writes = events = 0.0
        for family in text_string_to_metric_families(text):
            for each in family.samples:
                if each.name == _SECONDS and each.labels["kind"] == "Agent":
                    bound = float(each.labels["le"])
                    if each.labels["result"] == "written":
                        buckets[bound] = each.value
                    passes += each.value if bound == float("inf") else 0
                elif each.name == _WRITES and each.labels["kind"] == "Event":
                    events += each.value
                elif each.name == _WRITES:
                    writes += each.value
        times = self._process.cpu_times()
        cpu = times.user + times.system
        return Sample(buckets, passes, writes, events, cpu, self._process.memory_info().rss)

    async def settled(self) -> Sample:
        """Its numbers once it has written nothing for a while: events follow what they tell of."""
        last = await self.sample()
        while True:
            await asyncio.sleep(_QUIET_SECONDS)
            sample = await self.sample()
            if (sample.writes, sample.events) == (last.writes, last.events):
                return sample
            last = sample


def quantile(before: Sample, after: Sample, part: float) -> float:
    """Milliseconds, as histogram_quantile has it."""
    counts = {bound: count - before.buckets.get(bound, 0) for bound, count in sorted(after.buckets.items())}
    rank = part * max(counts.values(), default=0)
    lower = below = 0.0
    for bound, count in counts.items():
        if count >= rank and count > below:
            return 1000 * (lower + (bound - lower) * (rank - below) / (count - below))
        lower, below = bound, count
    return float("nan")


class Agents:
    """The Agents that the bench makes and changes."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._applied: dict[str, tuple[int, asyncio.Event]] = {}
        self._revision = itertools.count()
        self.informer = Informer(cluster, AGENT, namespace)
        self.informer.subscribe(self._seen)
        self.count = 0

    async def grow(self, count: int) -> None:
        """Until there are so many, and all are applied."""
        limit = anyio.CapacityLimiter(_AT_ONCE)

        async def one(number: int) -> None:
            async with limit:
                await self.change(number)

        async with anyio.create_task_group() as group:
            for number in range(self.count, count):
                group.start_soon(one, number)
        self.count = count

    async def change(self, number: int) -> tuple[float, float]:
        """Applies something new; seconds that the API server took for it, and until status says that it is
        applied."""
        name = f"agent-{number}"
        began = time.perf_counter()
        made = await self._cluster.apply(self._manifest(name), "bench")
        answered = time.perf_counter()
        applied = asyncio.Event()
        self._applied[name] = made["metadata"]["generation"], applied
        self._seen(None, self.informer.get(self._namespace, name))
        with anyio.fail_after(60):
            await applied.wait()
        return answered - began, time.perf_counter() - began

    def _seen(self, old: Object | None, new: Object | None) -> None:
        if new is None or (entry := self._applied.get(new["metadata"]["name"])) is None:
            return
        if (new.get("status") or {}).get("observedGeneration", 0) >= entry[0]:
            entry[1].set()

    def _manifest(self, name: str) -> Object:
        schedule = {"cron": "0 0 1 1 *", "suspend": True}
        instruction = f"revision {next(self._revision)}"
        return {
            "apiVersion": AGENT.api_version,
            "kind": AGENT.name,
            "metadata": {"name": name, "namespace": self._namespace},
            "spec": {
                "mode": "schedule", "image": "bench.invalid/agent", "instruction": instruction,
                "schedule": schedule,
            },
        }  # fmt: skip


async def measure(agents: Agents, subject: Subject, count: int, changes: int, rest: float) -> str:
    """A row of the table."""
    await agents.grow(count)
    order = [number % count for number in range(changes)]
    random.Random(1).shuffle(order)
    before = await subject.settled()
    times = []
    for number in order:
        times.append(await agents.change(number))
        await asyncio.sleep(rest)  # what a change sets off elsewhere in the cluster is over before the next
    after = await subject.sample()
    applied = statistics.quantiles((took for _, took in times), n=20)
    bare = statistics.median(answered for answered, _ in times)
    cpu = (after.cpu_seconds - before.cpu_seconds) / max(1.0, after.passes - before.passes)
    return (
        f"{count:>7} {1000 * bare:>10.1f} {quantile(before, after, 0.5):>9.1f}"
        f" {quantile(before, after, 0.95):>9.1f} {1000 * applied[9]:>11.1f} {1000 * applied[-1]:>11.1f}"
        f" {(after.writes - before.writes) / changes:>9.2f} {(after.passes - before.passes) / changes:>9.2f}"
        f" {1000 * cpu:>9.2f} {after.resident / 2**20:>8.0f}"
    )


async def idle(subject: Subject, seconds: float) -> str:
    """What it does when nothing happens."""
    before = await subject.settled()
    await asyncio.sleep(seconds)
    after = await subject.sample()
    milli = 1000 * (after.cpu_seconds - before.cpu_seconds) / seconds
    return (
        f"idle for {seconds:.0f} s: {after.writes - before.writes:.0f} writes,"
        f" {after.events - before.events:.0f} events,"
        f" {after.passes - before.passes:.0f} passes, {milli:.2f} m CPU, {after.resident / 2**20:.0f} MiB"
    )


@asynccontextmanager
async def _operator(kubeconfig: Path, system: str, namespace: str, folder: Path) -> AsyncIterator[Subject]:
    port = _free_port()
    environment = {
        "PATH": "/usr/bin:/bin",
        "AGENTCTL_TLS_DIR": str(folder / "tls"),
        "OPERATOR_KUBECONFIG": str(kubeconfig),
        "OPERATOR_NAMESPACE": system,
        "OPERATOR_ONLY_NAMESPACE": namespace,
        "OPERATOR_PORT": "0",
        "OPERATOR_IDENTITY_PORT": "0",
        "OPERATOR_METRICS_PORT": str(port),
        "AGENTCTL_LOG_LEVEL": "WARNING",
    }
    (folder / "tls").mkdir(mode=0o700)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.operator", env=environment)
    try:
        async with aiohttp.ClientSession() as session:
            subject = Subject(psutil.Process(process.pid), port, session)
            for _ in range(int(_START_SECONDS / 0.1)):
                if await subject.ready():
                    break
                await asyncio.sleep(0.1)
            else:
                raise UnavailableError("the operator is not ready in time")
            yield subject
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(
    kubeconfig: Path, counts: Sequence[int], changes: int, rest: float, idle_seconds: float
) -> None:
    names = [f"op-bench-{uuid.uuid4().hex[:6]}-{part}" for part in ("system", "agents")]
    async with connect(kubeconfig) as cluster, anyio.create_task_group() as group:
        try:
            for name in names:
                metadata = {"name": name}
                await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            agents = Agents(cluster, names[1])
            group.start_soon(agents.informer.run)
            with tempfile.TemporaryDirectory() as folder:
                async with _operator(kubeconfig, names[0], names[1], Path(folder)) as subject:
                    _say(
                        f"{await cluster.version()}; {changes} changes a row, {rest:g} s apart; milliseconds"
                    )
                    _say(
                        "objects one apply  pass p50  pass p95 applied p50 applied p95"
                        " writes/ch passes/ch  CPU/pass RSS, MiB"
                    )
                    for count in counts:
                        _say(await measure(agents, subject, count, changes, rest))
                    if idle_seconds:
                        _say(await idle(subject, idle_seconds))
        finally:
            with anyio.CancelScope(shield=True):
                for name in names:
                    await cluster.delete(NAMESPACE, "", name)
            group.cancel_scope.cancel()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="services.operator.bench", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--objects", default="1,10,100,1000", help="how many Agents there are, row by row")
    parser.add_argument("--changes", type=int, default=200, help="of each row")
    parser.add_argument("--rest", type=float, default=0.1, help="seconds between two changes")
    parser.add_argument("--idle", type=float, default=60, help="seconds; 0: not measured")
    given = parser.parse_args()
    counts = [int(count) for count in given.objects.split(",")]
    asyncio.run(run(given.kubeconfig, counts, given.changes, given.rest, given.idle))


if __name__ == "__main__":
    main()
