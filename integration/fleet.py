"""A provider, coordination and agents as real processes on loopback, for tests that kill them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.pki import Authority
from libs.work import Client, Work, connect

DOMAIN = "local.test"
QUEUE = "demo/docs"
WAIT_SECONDS = 20.0
_PATIENCE_SECONDS = 10.0


@dataclass
class Process:
    """A process of ours and its log."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    port: int  # of its plain HTTP

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def exit_code(self, within: float = 15.0) -> int:
        """How it ended; negative: by which signal."""
        async with asyncio.timeout(within):
            return await self.process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        """What its plain port answers; (0, "") when nobody does."""
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{self.port}{path}") as reply,
            ):
                return reply.status, await reply.text()
        except aiohttp.ClientError:
            return 0, ""

    async def answers(self, path: str, status: int = 200) -> None:
        """Returns when its plain port answers that status there."""

        async def look() -> bool:
            assert self.process.returncode is None, self.log.read_text()
            return (await self.get(path))[0] == status

        await until(look)

    async def metric(self, sample: str) -> float:
        """The value of a line of /metrics, 0 when it is not there."""
        _, text = await self.get("/metrics")
        values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{sample} ")]
        return float(values[0]) if values else 0.0

    async def reports(self, sample: str, least: float) -> None:
        """Returns when a line of /metrics has come to this value."""

        async def look() -> bool:
            return await self.metric(sample) >= least

        await until(look)


@dataclass
class Fleet:
    """What runs, and a client that may do everything in its namespace."""

    folder: Path
    authority: Authority
    client: Client
    coordination: Process
    coordination_address: str
    _stack: AsyncExitStack = field(repr=False)

    async def provider(self, **settings: str) -> Process:
        """A stand-in provider; settings are PROVIDER_*."""
        port = free_port()
        started = await spawn(
            self._stack, self.folder, "provider", port, settings | {"PROVIDER_LISTEN": f"127.0.0.1:{port}"}
        )
        await started.answers("/v1/models", 401 if "PROVIDER_API_KEY" in settings else 200)
        return started

    async def agent(
        self, name: str, provider: Process | None, *, ready: bool = True, **settings: str
    ) -> Process:
        """An agent; settings are AGENT_* and others, beside good ones."""
        port = free_port()
        identity = self.authority.issue(
            f"spiffe://{DOMAIN}/ns/demo/agent/docs/pod/{name}/uid-{name}", self.folder / name
        )
        good = {
            "AGENT_QUEUE": QUEUE,
            "AGENT_MODEL": "agentctl-extractive",
            "AGENT_INSTRUCTION": "Summarize.",
            "AGENT_PORT": "0",
            "AGENT_METRICS_PORT": str(port),
            "AGENT_START_TIMEOUT": "1s",
            "AGENT_DRAIN_TIMEOUT": "2s",
            "AGENTCTL_COORDINATION_ADDRESS": self.coordination_address,
            "AGENTCTL_TLS_DIR": str(identity.folder),
            "OPENAI_BASE_URL": f"http://127.0.0.1:{provider.port if provider else free_port()}/v1",
        }
        started = await spawn(self._stack, self.folder, "agent", port, good | settings)
        if ready:
            await started.answers("/readyz")
        return started

    async def submit(self, payloads: Mapping[str, bytes]) -> dict[str, str]:
        """Submits documents by name; their ids by name."""
        works = [
            Work(payload, content_type="text/plain", labels={"file": name})
            for name, payload in payloads.items()
        ]
        for verdict in await self.client.submit_all(QUEUE, works):
            if isinstance(verdict, Exception):
                raise verdict
        return {work.labels["file"]: work.id for work in works}

    async def results(self, ids: Mapping[str, str], within: float = 60.0) -> dict[str, work_pb2.Item]:
        """What became of each of these, by name, each seen exactly once."""
        names = {id: name for name, id in ids.items()}
        found: dict[str, work_pb2.Item] = {}
        async with asyncio.timeout(within):
            async for item in self.client.results(ids=list(names)):
                assert names[item.id] not in found
                found[names[item.id]] = item
        return found

    async def queue(self) -> work_pb2.Queue:
        """The queue's numbers."""
        return (await self.client.stub.GetQueues(pb.GetQueuesRequest(queues=[QUEUE]))).queues[0]


@asynccontextmanager
async def fleet(folder: Path, **settings: str) -> AsyncIterator[Fleet]:
    """Coordination on a memory store, or as COORDINATION_* settings say. Everything ends with the block."""
    authority = Authority.create(folder / "pki", DOMAIN)
    own = authority.issue(f"spiffe://{DOMAIN}/cp/coordination", folder / "coordination")
    user = authority.issue(f"spiffe://{DOMAIN}/ns/demo/user/tester", folder / "tester")
    port, plain = free_port(), free_port()
    environment = {
        "COORDINATION_STORE": "memory",
        "COORDINATION_PORT": str(port),
        "COORDINATION_METRICS_PORT": str(plain),
        "AGENTCTL_TLS_DIR": str(own.folder),
    }
    async with AsyncExitStack() as stack:
        coordination = await spawn(stack, folder, "coordination", plain, environment | settings)
        await coordination.answers("/readyz")
        address = f"127.0.0.1:{port}"
        client = await stack.enter_async_context(connect(address, user))
        yield Fleet(folder, authority, client, coordination, address, stack)


async def spawn(
    stack: AsyncExitStack, folder: Path, service: str, port: int, settings: Mapping[str, str]
) -> Process:
    """Starts a service with these settings and no others; it ends when the stack unwinds."""
    name = f"{service}-{port}"
    foreign = ("OTEL_", "OPENAI_", "AGENT", "COORDINATION_", "PROVIDER_")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"services.{service}",
            env={**inherited, **settings},
            stdout=file,
            stderr=file,
        )
    stack.push_async_callback(_end, process)
    return Process(name, process, log, port)


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Returns when another process has come to what we look for."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if await look():
                return
            await asyncio.sleep(0.02)


def free_port() -> int:
    """A port on which nobody listened a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    """A service with a database of its own has to stop it; what does not stop is killed."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
