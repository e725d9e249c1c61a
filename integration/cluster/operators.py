"""The operator as a process of the test's own, outside the cluster: for what is done to it only here.

It acts on one namespace and keeps its Lease and authority in another, so that it meets no other operator.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
from prometheus_client.parser import text_string_to_metric_families

from .kubectl import ROOT

LEASE_SECONDS = 3
_START_SECONDS = 60


@dataclass(frozen=True)
class Post:
    """Where an operator works."""

    kubeconfig: Path
    system: str
    namespace: str
    folder: Path
    """For certificates and logs."""


class Operator:
    """A replica. It can be started again after it ended, and is then the same one to the Lease."""

    def __init__(self, post: Post, replica: str) -> None:
        self._post = post
        self._replica = replica
        self._folder = post.folder / replica
        self._process: Process | None = None
        self._port = 0
        self._folder.mkdir()

    async def start(self) -> None:
        """Returns when it is ready."""
        self._port = _free_port()
        environment = {
            "PATH": "/usr/bin:/bin",
            "AGENTCTL_TLS_DIR": str(self._folder / "tls"),
            "AGENTCTL_TRUST_DOMAIN": "test.agentctl",
            "OPERATOR_KUBECONFIG": str(self._post.kubeconfig),
            "OPERATOR_NAMESPACE": self._post.system,
            "OPERATOR_ONLY_NAMESPACE": self._post.namespace,
            "OPERATOR_REPLICA": self._replica,
            "OPERATOR_LEASE": f"{LEASE_SECONDS}s",
            "OPERATOR_AGENT_IMAGE": "agentctl:dev",
            "OPERATOR_PORT": "0",
            "OPERATOR_IDENTITY_PORT": "0",
            "OPERATOR_METRICS_PORT": str(self._port),
        }
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.operator", env=environment, cwd=ROOT, stderr=log, stdout=log
            )
        with anyio.fail_after(_START_SECONDS):
            while not await self._ready():
                assert self._process.returncode is None, (self._folder / "log").read_text()
                await anyio.sleep(0.05)

    async def kill(self) -> None:
        """SIGKILL; returns when it has ended."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM; its exit code when it has ended."""
        return await self._end(signal.SIGTERM)

    def pause(self) -> None:
        """It stands still, as it does when its machine sleeps."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        self._running().send_signal(signal.SIGCONT)

    async def leads(self) -> bool:
        """Whether it says that it leads."""
        return (await self._sum("agentctl_operator_leading")) == 1

    async def writes(self) -> float:
        """How much it has written since it started."""
        return await self._sum("agentctl_operator_writes_total")

    async def passes(self) -> float:
        """How many objects it has looked at since it started."""
        return await self._sum("agentctl_operator_reconcile_seconds_count")

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    def _running(self) -> Process:
        assert self._process is not None
        assert self._process.returncode is None
        return self._process

    async def _end(self, how: signal.Signals) -> int:
        process = self._running()
        process.send_signal(how)
        with anyio.fail_after(30):
            return await process.wait()

    async def _ready(self) -> bool:
        try:
            await self._read("readyz")
        except aiohttp.ClientError:
            return False
        return True

    async def _sum(self, name: str) -> float:
        families = text_string_to_metric_families(await self._read("metrics"))
        return sum(each.value for family in families for each in family.samples if each.name == name)

    async def _read(self, page: str) -> str:
        address = f"http://127.0.0.1:{self._port}/{page}"
        timeout = aiohttp.ClientTimeout(total=10)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.get(address) as answer,
        ):
            return await answer.text()


@asynccontextmanager
async def operator(post: Post, replica: str = "first") -> AsyncIterator[Operator]:
    """A replica at work; whatever happened to it, it is gone after the block."""
    one = Operator(post, replica)
    try:
        await one.start()
        yield one
    finally:
        with anyio.CancelScope(shield=True):
            if one.running:
                await one.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
