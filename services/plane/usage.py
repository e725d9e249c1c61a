"""What the pods of the local home use, in the shape of metrics.k8s.io, out of the processes' own accounts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import psutil  # type: ignore[import-untyped]

from libs.cluster import Cluster, Object
from libs.cluster.kinds import POD, POD_METRICS

_WINDOW_SECONDS = 0.5
_PROCESS = "process://"  # how the runner writes containerID


class Usage:
    """CPU over a short window and memory now, by pod and container."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def of(self, namespace: str, labels: str) -> list[Object]:
        """A PodMetrics object for each pod that runs."""
        pods = (await self._cluster.list(POD, namespace, labels)).items
        before = {id: _seconds(id) for pod in pods for _, id in _containers(pod)}
        begun = time.monotonic()
        await asyncio.sleep(_WINDOW_SECONDS)
        window = time.monotonic() - begun
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = []
        for pod in pods:
            containers = [
                {
                    "name": name,
                    "usage": {
                        "cpu": f"{max(_seconds(id) - before[id], 0) / window * 1e9:.0f}n",
                        "memory": f"{_bytes(id) // 1024}Ki",
                    },
                }
                for name, id in _containers(pod)
            ]
            if containers:
                metadata = {key: pod["metadata"].get(key) for key in ("name", "namespace", "labels")}
                found.append(
                    {
                        "apiVersion": POD_METRICS.api_version,
                        "kind": POD_METRICS.name,
                        "metadata": metadata,
                        "timestamp": now,
                        "window": f"{window:.3f}s",
                        "containers": containers,
                    }
                )
        return found


def _containers(pod: Object) -> list[tuple[str, int]]:
    """Name and process id of each container that runs."""
    found = []
    for status in pod.get("status", {}).get("containerStatuses", ()):
        id = str(status.get("containerID", ""))
        if "running" in status.get("state", {}) and id.startswith(_PROCESS):
            found.append((status["name"], int(id.removeprefix(_PROCESS))))
    return found


def _family(pid: int) -> Iterable[psutil.Process]:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _seconds(pid: int) -> float:
    total = 0.0
    for process in _family(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _bytes(pid: int) -> int:
    total = 0
    for process in _family(pid):
        with suppress(psutil.Error):
            total += process.memory_full_info().uss if hasattr(process, "memory_full_info") else 0
    return total
