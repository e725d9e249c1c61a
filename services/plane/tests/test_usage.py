"""What pods use, out of real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.cluster.local import LocalCluster, open_local

from ..usage import Usage

BUSY = "x = bytearray(32 << 20)\nprint(flush=True)\nwhile True: pass"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with open_local(tmp_path / "objects") as opened:
        yield opened


def pod(name: str, container_id: str, state: str = "running") -> dict:
    status = {"name": "agent", "containerID": container_id, "state": {state: {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"containers": [{"name": "agent"}]},
        "status": {"containerStatuses": [status]},
    }


async def running(cluster: LocalCluster, thing: dict) -> None:
    await cluster.create(thing)
    await cluster.apply(thing, "runner", subresource="status")


async def test_a_busy_process_uses_cpu_and_memory(cluster):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        await running(cluster, pod("busy", f"process://{process.pid}"))
        [found] = await Usage(cluster).of("default", "")
    finally:
        process.kill()
        await process.wait()
    assert (found["apiVersion"], found["kind"]) == ("metrics.k8s.io/v1beta1", "PodMetrics")
    assert found["metadata"] == {"name": "busy", "namespace": "default", "labels": {"app": "busy"}}
    [container] = found["containers"]
    assert container["name"] == "agent"
    assert int(container["usage"]["cpu"].removesuffix("n")) > 1_000_000
    assert int(container["usage"]["memory"].removesuffix("Ki")) > 32 * 1024


async def test_only_what_runs_is_there(cluster):
    await running(cluster, pod("ended", f"process://{os.getpid()}", "terminated"))
    await running(cluster, pod("foreign", "containerd://abc"))
    assert await Usage(cluster).of("default", "") == []


async def test_a_process_that_just_ended_uses_nothing(cluster):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    await running(cluster, pod("gone", f"process://{process.pid}"))
    [found] = await Usage(cluster).of("default", "")
    assert found["containers"][0]["usage"] == {"cpu": "0n", "memory": "0Ki"}


async def test_labels_select(cluster):
    await running(cluster, pod("a", f"process://{os.getpid()}"))
    await running(cluster, pod("b", f"process://{os.getpid()}"))
    assert [each["metadata"]["name"] for each in await Usage(cluster).of("", "app=b")] == ["b"]
