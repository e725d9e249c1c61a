"""A bridge with an agent beside it, as in a pod, between a model and a coordination service on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from agentctl.agent.v1 import agent_service_pb2_grpc as pb_grpc
from libs.identity import Identity
from libs.mesh import AGENT
from libs.rpc.client import dial
from libs.testing import ca
from libs.testing.mesh import Mesh
from libs.testing.ports import free_port
from services.bridge.bridging import Bridging, bridging
from services.bridge.settings import Settings

ROLE = "agent/worker/uid-1"
QUEUE = "demo/worker"
WITHIN = 20.0


async def until(look: Callable[[], Awaitable[Any]], within: float = WITHIN) -> Any:
    """What `look` answers once that is true."""
    async with asyncio.timeout(within):
        while not (seen := await look()):  # noqa: ASYNC110  # processes are looked at, not listened to
            await asyncio.sleep(0.02)
        return seen


@dataclass
class Model:
    """An endpoint over HTTPS that answers when it may. It records what it is asked, and by whom."""

    reply: str = "an answer"
    status: int = 200
    code: str | None = None
    """Of an error."""
    retry_after: str = ""
    choice: dict[str, Any] | None = None
    """What is said instead of the reply."""
    calls_tool_first: bool = False
    """Whether the first answer is a call of a tool, so that there is a second turn."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)
    url: str = ""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        self.asked.append(await request.json())
        self.headers.append(dict(request.headers))
        peer = request.transport.get_extra_info("peercert") if request.transport else None
        self.callers.append(dict(peer["subjectAltName"])["URI"] if peer else "")
        await self.may_answer.wait()
        if self.status != 200:
            error = {"error": {"message": "no", "code": self.code}}
            headers = {"Retry-After": self.retry_after} if self.retry_after else None
            return web.json_response(error, status=self.status, headers=headers)
        message: dict[str, Any] = {"role": "assistant", "content": self.reply}
        if self.calls_tool_first and len(self.asked) == 1:
            function = {"name": "resource.read", "arguments": "{}"}
            message |= {"tool_calls": [{"id": "1", "type": "function", "function": function}]}
        return web.json_response(
            {
                "choices": [{"message": message, "finish_reason": "stop"} | (self.choice or {})],
                "usage": {"prompt_tokens": 9, "completion_tokens": 3},
            }
        )


@asynccontextmanager
async def modelling(identity: Identity) -> AsyncIterator[Model]:
    """A model that answers at once."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(identity.root))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(identity.certificate, identity.key)
    model = Model()
    model.may_answer.set()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    model.url = f"https://localhost:{runner.addresses[0][1]}/v1"
    try:
        yield model
    finally:
        await runner.cleanup()


@asynccontextmanager
async def process(*words: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python module of ours as a process, killed at the end if it is still there."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *words, env=kept | environ, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        await started.wait()


@dataclass
class Lab:
    """What a test has in its hands."""

    mesh: Mesh
    model: Model
    settings: Settings
    bridge: Bridging
    stub: Any
    """Of AgentService, as the control plane calls it."""

    @asynccontextmanager
    async def agentd(self, *words: str, wait: bool = True) -> AsyncIterator[asyncio.subprocess.Process]:
        """The agent, started as an operator would, once the bridge knows that it is there."""
        folder, at = self.settings.shared_dir, self.settings.loopback
        mode = words or ("--mode", "reactive", "--subscribe", f"queue://{QUEUE}")
        async with process(
            "libs.testing.agentd",
            *mode,
            *("--instruction", "stand by"),
            *("--serve-mcp", f"https://{at}:{self.settings.agent_port}"),
            *("--serve-cert", f"{folder}/tls.crt", "--serve-key", f"{folder}/tls.key"),
            *("--serve-client-ca", f"{folder}/ca.crt"),
            *("--metrics-addr", f"{at}:{self.settings.agent_metrics_port}"),
            AGENT_INTELLIGENCE=f"http://{at}:{self.bridge.forward_port}/v1/chat/completions",
            AGENT_MODEL="m-1",
        ) as started:
            if wait:
                await self.here()
            yield started

    async def here(self, life: int = 1) -> None:
        """Returns when the bridge has met the agent, in so many-th life."""

        async def look() -> bool:
            return self.bridge.presence.is_here and self.bridge.presence.life >= life

        await until(look)

    async def asked(self, count: int = 1) -> None:
        """Returns when the model has been asked so often."""

        async def look() -> bool:
            return len(self.model.asked) >= count

        await until(look)


@asynccontextmanager
async def lab(folder: Path, **changes: Any) -> AsyncIterator[Lab]:
    """A bridge and its model; no agent yet. `changes` are settings."""
    mesh = Mesh(folder)
    identity = mesh.identity(ROLE)
    gateway = ca.identity(mesh.authority, folder, "/cp/modelgateway", dns_names=["localhost"])
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(modelling(gateway))
        settings = Settings(
            tls_dir=identity.folder,
            instruction="Summarize.",
            base_url=model.url,
            model_identity=True,
            port=0,
            metrics_port=0,
            forward_port=0,
            agent_port=free_port(),
            agent_metrics_port=free_port(),
            shared_dir=folder / "shared",
            drain_timeout=timedelta(seconds=10),
            lease=timedelta(seconds=2),
        )
        settings = replace(settings, **changes)
        bridge = await stack.enter_async_context(bridging(settings, settings.standing()))
        channel = await stack.enter_async_context(
            dial(AGENT, bridge.address, mesh.identity("cp/apiserver"), server=mesh.principal(ROLE))
        )
        yield Lab(mesh, model, settings, bridge, pb_grpc.AgentServiceStub(channel))


@asynccontextmanager
async def coordination(mesh_folder: Path, mesh: Mesh) -> AsyncIterator[str]:
    """A coordination service with its store in memory; its address."""
    port = free_port()
    async with process(
        "services.coordination",
        COORDINATION_STORE="memory",
        COORDINATION_PORT=str(port),
        COORDINATION_METRICS_PORT="0",
        AGENTCTL_TLS_DIR=str(mesh.identity("cp/coordination").folder),
    ):
        await until(partial(_listens, port))
        yield f"127.0.0.1:{port}"


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def kill(started: asyncio.subprocess.Process) -> None:
    """As the kernel does."""
    started.send_signal(signal.SIGKILL)
