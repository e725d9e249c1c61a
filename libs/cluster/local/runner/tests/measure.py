"""How fast pods come and what idle ones cost: `python -m libs.cluster.local.runner.tests.measure`."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import uvloop

from libs.cluster import Object
from libs.cluster.kinds import DEPLOYMENT, POD
from libs.cluster.local import LocalCluster, open_local
from libs.cluster.local.runner import Runner
from libs.cluster.local.runner.tests.world import PYTHON, SERVE, deployment, is_ready, template

_ROUNDS = 10
_IDLE_SECONDS = 20.0
_TIMEOUT = 60.0


def served() -> Any:
    """A pod that is probed as agents are."""
    probe = {"httpGet": {"path": "/readyz", "port": 8080}}
    host = {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    probes = {"startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe}
    return template(SERVE, env=[host, {"name": "SICK", "value": "/nowhere"}], **probes)


async def come(cluster: LocalCluster, thing: Object, count: int = 1) -> tuple[float, float]:
    """Seconds from apply until the first of its pods is Running, and until all are Ready."""
    since = (await cluster.list(POD)).revision
    begin, running, ready = time.perf_counter(), 0.0, set()
    await cluster.apply(thing, "measure")
    changes: Any = cluster.watch(POD, since=since)
    async with asyncio.timeout(_TIMEOUT), aclosing(changes):
        async for change in changes:
            passed = time.perf_counter() - begin
            if change.object["status"]["phase"] == "Running":
                running = running or passed
            if is_ready(change.object):
                ready.add(change.object["metadata"]["uid"])
            if len(ready) == count:
                return running, passed
    raise RuntimeError("the watch has ended")


async def measure(folder: Path) -> None:
    """Says all of it."""
    async with open_local(folder) as cluster:
        environment = {"PATH": os.environ["PATH"]}
        runner = Runner(cluster, folder, commands={"python": PYTHON}, environment=environment)
        running = asyncio.create_task(runner.run())
        for name, pod in (("no probes", template()), ("probed", served())):
            rounds = []
            for _ in range(_ROUNDS):
                rounds.append(await come(cluster, deployment(pod=pod)))
                await cluster.delete(DEPLOYMENT, "default", "a")
                async with asyncio.timeout(_TIMEOUT):
                    while (await cluster.list(POD)).items:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
            first, all_ = (1000 * statistics.median(each) for each in zip(*rounds, strict=True))
            say(f"apply of a Deployment, {name}: Running after {first:.0f} ms, Ready after {all_:.0f} ms")
        _, seconds = await come(cluster, deployment(pod=served(), replicas=10), 10)
        say(f"10 probed pods are Ready after {seconds:.2f} s")
        process = psutil.Process()
        before, begin = sum(process.cpu_times()[:2]), time.perf_counter()
        await asyncio.sleep(_IDLE_SECONDS)
        cpu = (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - begin)
        say(f"they cost the runner {100 * cpu:.2f} % of a core while nothing happens")
        begin = time.perf_counter()
        running.cancel()
        await asyncio.wait([running])
        say(f"and are stopped after {time.perf_counter() - begin:.2f} s")


def say(line: str) -> None:
    """A line of the answer."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        uvloop.run(measure(Path(scratch)))
