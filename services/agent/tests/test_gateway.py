"""The agent before a gateway of the mesh: an HTTPS edge that believes callers by their certificates."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs.errors import UnauthenticatedError
from libs.rpc.callers import EdgeCallers
from libs.rpc.edge import edge
from libs.testing import ca
from libs.testing.mesh import Mesh
from services.agent import tools

from .coordination import Coordination, queue
from .scripted import Reply, fails, says

OUR_ID = "spiffe://mesh.test/ns/demo/agent/worker/pod/worker-0/uid-worker"
REFUSED = {"message": "ModelPool main: the budget of the pool is spent", "type": "insufficient_quota"}
SPENT = Reply({"error": REFUSED | {"code": "insufficient_quota"}}, 429, {"Retry-After": "3600"})


@dataclass
class Gateway:
    """What it answers, of which the last is repeated, and the serial numbers of who asked."""

    callers: EdgeCallers
    replies: list[Reply]
    url: str = ""
    serials: list[int] = field(default_factory=list)
    """Of each completion."""
    nobody: int = 0
    """Requests that were refused."""
    headers: list[dict[str, str]] = field(default_factory=list)

    async def models(self, request: Request) -> Response:
        return self._unless_nobody(request) or JSONResponse({"object": "list", "data": []})

    async def complete(self, request: Request) -> Response:
        if refusal := self._unless_nobody(request):
            return refusal
        self.headers.append(dict(request.headers))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return JSONResponse(reply.body, reply.status, reply.headers)

    def _unless_nobody(self, request: Request) -> Response | None:
        try:
            peer = self.callers.who(request.scope).peer
        except UnauthenticatedError as error:
            self.nobody += 1
            return JSONResponse({"error": {"message": str(error), "code": "invalid_api_key"}}, 401)
        assert peer is not None
        assert peer.principal.id == OUR_ID
        if request.method == "POST":
            self.serials.append(peer.serial)
        return None


@asynccontextmanager
async def gateway(mesh: Mesh, *replies: Reply) -> AsyncIterator[Gateway]:
    identity = ca.identity(mesh.authority, mesh.folder, "/cp/modelgateway", dns_names=["localhost"])
    it = Gateway(EdgeCallers(identity), list(replies))
    app = Starlette(
        routes=[
            Route("/v1/models", it.models),
            Route("/v1/chat/completions", it.complete, methods=["POST"]),
        ]
    )
    async with edge(app, identity, client_ca=it.callers.client_ca) as opened:
        it.url = f"https://localhost:{opened.port}/v1"
        yield it


@dataclass
class World:
    """An agent's process in mode claim, between a gateway and a queue. It has no key."""

    mesh: Mesh
    gateway: Gateway
    queue: Coordination
    process: asyncio.subprocess.Process

    async def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said."""
        async with asyncio.timeout(30):
            _, said = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, said.decode()


@asynccontextmanager
async def world(folder: Path, items: Coordination, *replies: Reply, **environ: str) -> AsyncIterator[World]:
    mesh = Mesh(folder)

    def register(server: Any) -> None:
        pb_grpc.add_CoordinationServiceServicer_to_server(items, server)

    async with AsyncExitStack() as stack:
        it = await stack.enter_async_context(gateway(mesh, *replies))
        served = await stack.enter_async_context(mesh.serve(register))
        told = {
            "AGENTCTL_TLS_DIR": str(mesh.identity("agent").folder),
            "AGENTCTL_COORDINATION_ADDRESS": served.address,
            "AGENT_QUEUE": "demo/docs",
            "AGENT_SLOTS": "1",
            "AGENT_MODEL": "m",
            "AGENT_INSTRUCTION": "Summarize.",
            "AGENT_MODEL_IDENTITY": "true",
            "AGENT_START_TIMEOUT": "1s",
            "AGENT_PORT": "0",
            "AGENT_METRICS_PORT": "0",
            "OPENAI_BASE_URL": it.url,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.agent"),
            env=told | environ,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield World(mesh, it, items, process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_items_are_done_with_the_certificate_and_no_key(tmp_path):
    items = queue(b"one")
    async with world(tmp_path, items, says("Short.")) as it:
        await items.settled(1)
        assert items.acked["0"].result == b"Short."
        assert len(it.gateway.serials) == 1
        assert "authorization" not in it.gateway.headers[0]


async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path):
    items = queue(b"one")
    async with world(tmp_path, items, says("Short.")) as it:
        await items.settled(1)
        it.mesh.authority.issue(OUR_ID, it.mesh.identity("agent").folder)
        items.payloads.append(b"two")
        await items.settled(2)
        first, second = it.gateway.serials
        assert first != second
        assert second == serial_of(it.mesh)


def serial_of(mesh: Mesh) -> int:
    from cryptography import x509

    return x509.load_pem_x509_certificate(mesh.identity("agent").certificate.read_bytes()).serial_number


async def test_without_the_flag_no_certificate_is_shown(tmp_path):
    items = queue(b"one")
    ca_file = str(Mesh(tmp_path).identity("agent").root)
    async with world(
        tmp_path, items, says("Short."), AGENT_MODEL_IDENTITY="false", AGENT_MODEL_CA_FILE=ca_file
    ) as it:
        code, said = await it.ended()
        assert (code, it.gateway.serials) == (4, [])
        assert it.gateway.nobody > 0
        assert "model: HTTP 401: no client certificate" in said
    assert items.granted == 0


async def test_without_a_budget_the_item_waits_as_long_as_the_gateway_says(tmp_path):
    items = queue(b"one")
    async with world(tmp_path, items, SPENT, says("Short.")) as it:
        await items.settled(1)
        failure = items.failed["0"]
        assert failure.retryable
        assert failure.retry_after.ToSeconds() == 3600
        assert failure.error == "model: HTTP 429: ModelPool main: the budget of the pool is spent"
        items.payloads.append(b"two")  # the agent goes on
        await items.settled(2)
        assert items.acked["1"].result == b"Short."
        assert len(it.gateway.serials) == 2


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_gateway_that_cannot_costs_an_attempt_and_no_more(tmp_path, status):
    items = queue(b"one")
    async with world(tmp_path, items, fails(status, "unavailable")):
        await items.settled(1)
        assert items.failed["0"].retryable
        assert not items.failed["0"].HasField("retry_after")


@pytest.mark.parametrize(("status", "code"), [(403, "permission_denied"), (404, "model_not_found")])
async def test_a_pool_that_is_not_ours_costs_no_item_and_ends_the_agent(tmp_path, status, code):
    items = queue(b"one")
    async with world(tmp_path, items, fails(status, code)) as it:
        exit_code, said = await it.ended()
        assert exit_code == 4
        assert f"model: HTTP {status}: because" in said
    assert items.released == {"0"}
    assert not items.failed


async def test_a_set_that_is_not_ours_is_told_in_the_gateways_words(tmp_path):
    mesh = Mesh(tmp_path)
    identity = ca.identity(mesh.authority, mesh.folder, "/cp/mcpgateway", dns_names=["localhost"])
    callers = EdgeCallers(identity)

    async def refuse(request: Request) -> Response:
        assert callers.who(request.scope).principal.id == OUR_ID
        error = {"code": -32602, "message": "name the set in spec.mcpServers", "data": {"reason": "DENIED"}}
        return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 403)

    app = Starlette(routes=[Route("/servers/docs/mcp", refuse, methods=["GET", "POST", "DELETE"])])
    async with edge(app, identity, client_ca=callers.client_ca) as opened:
        url = f"https://localhost:{opened.port}/servers/docs/mcp"
        docs = tools.Server("docs", url, is_shown_ours=True)
        async with tools.connect([docs], lambda *_, **__: None, identity=mesh.identity("agent")) as box:
            with pytest.raises(tools.ServerAwayError, match=r"docs: name the set in spec\.mcpServers"):
                await box.reach(timedelta(seconds=0.1))
