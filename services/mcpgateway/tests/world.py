"""A cluster with server sets and agents, a gateway over real TLS, and who calls it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentctl.mcpgateway.v1 import mcpgateway_service_pb2_grpc as pb_grpc
from libs.cluster import Object
from libs.cluster.kinds import AGENT, MCP_SERVER_SET, Kind
from libs.cluster.local import LocalCluster
from libs.identity import Identity
from libs.mesh import MCP_GATEWAY
from libs.rpc.client import dial
from libs.testing import ca
from libs.testing.mesh import NAMESPACE, Mesh

from ..composition import McpServing, mcp_serving
from ..settings import Settings
from .upstream_servers import ToolServer

OTHER = "other"
SECRET = "the-secret-of-the-server-0123456789"
MODES = {"modern": "auto", "legacy": "legacy"}


def thing(kind: Kind, name: str, spec: dict[str, Any], namespace: str = NAMESPACE) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}


def template_of(*sets: str) -> dict[str, Any]:
    """What an agent with these server sets is."""
    return {"image": "example.com/a:1", "instruction": "Work.", "mcpServers": list(sets)}


@dataclass
class World:
    """What a test plays with."""

    cluster: LocalCluster
    mesh: Mesh
    stack: AsyncExitStack

    async def put(self, kind: Kind, name: str, spec: dict[str, Any], namespace: str = NAMESPACE) -> None:
        await self.cluster.apply(thing(kind, name, spec, namespace), "test")

    async def servers(
        self, *servers: dict[str, Any], name: str = "tools", agent: str = "writer", namespace: str = NAMESPACE
    ) -> None:
        """A set, and an agent that names it."""
        await self.put(MCP_SERVER_SET, name, {"servers": list(servers)}, namespace)
        await self.put(AGENT, agent, {"mode": "once", **template_of(name)}, namespace)

    async def secret(self, value: str = SECRET, namespace: str = NAMESPACE) -> dict[str, str]:
        """A reference to one."""
        data = {"token": base64.b64encode(value.encode()).decode()}
        metadata = {"name": "key", "namespace": namespace}
        made = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        await self.cluster.apply(made, "test")
        return {"name": "key", "key": "token"}

    async def server(self, name: str, **options: Any) -> ToolServer:
        return await self.stack.enter_async_context(ToolServer(name, **options).serving())

    async def gateway(self, **settings: Any) -> Reached:
        return await self.stack.enter_async_context(self.opened(**settings))

    @asynccontextmanager
    async def opened(self, resolve: Any = None, **settings: Any) -> AsyncIterator[Reached]:
        identity = ca.identity(
            self.mesh.authority, self.mesh.folder, "/cp/mcpgateway", dns_names=["localhost"]
        )
        usual = {
            "tls_dir": identity.folder,
            "port": 0,
            "edge_port": 0,
            "allow_loopback": True,
            "drain": timedelta(milliseconds=100),
        }
        more = {"resolve": resolve} if resolve else {}
        chosen = Settings(**{**usual, **settings})
        async with mcp_serving(chosen, self.cluster, **more) as serves, AsyncExitStack() as stack:
            reached = Reached(self, serves, identity, stack)
            await reached.ready()
            yield reached


@dataclass
class Reached:
    """A gateway, and clients of it."""

    world: World
    serves: McpServing
    identity: Identity
    stack: AsyncExitStack
    told: list[Any] = field(default_factory=list)
    """Notifications to clients of ours."""

    @property
    def url(self) -> str:
        return f"https://localhost:{self.serves.edge.rpartition(':')[2]}"

    async def ready(self) -> None:
        async with asyncio.timeout(10), self.http(None) as client:
            while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def http(
        self, role: str | None = "agent/writer", namespace: str = NAMESPACE, **options: Any
    ) -> httpx2.AsyncClient:
        """None shows no certificate."""
        context = ssl.create_default_context(cafile=self.identity.root)
        if role is not None:
            identity = self.world.mesh.identity(role, namespace)
            context.load_cert_chain(identity.certificate, identity.key)
        return httpx2.AsyncClient(verify=context, base_url=self.url, timeout=20, **options)

    @asynccontextmanager
    async def client(
        self,
        server: str = "",
        era: str = "modern",
        role: str = "agent/writer",
        namespace: str = NAMESPACE,
    ) -> AsyncIterator[Client]:
        """A stock client, of one server or of all."""

        async def hear(message: object) -> None:
            self.told.append(message)

        path = f"/servers/{server}/mcp" if server else "/mcp"
        async with self.http(role, namespace) as http:
            transport = streamable_http_client(f"{self.url}{path}", http_client=http)
            async with Client(transport, mode=MODES[era], message_handler=hear, cache=None) as client:
                yield client

    async def post(
        self,
        method: str,
        params: dict[str, Any],
        *,
        path: str = "/mcp",
        role: str | None = "agent/writer",
        namespace: str = NAMESPACE,
        **headers: str,
    ) -> httpx2.Response:
        """A request of 2026-07-28, made by hand; names of headers with _ for -."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta, **params}}
        usual = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": method,
        }
        if "name" in params:
            usual["mcp-name"] = params["name"]
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http(role, namespace) as client:
            return await client.post(path, content=json.dumps(body), headers=usual | told)

    async def stub(self, role: str = "agent/writer", namespace: str = NAMESPACE) -> Any:
        identity = self.world.mesh.identity(role, namespace)
        channel = await self.stack.enter_async_context(dial(MCP_GATEWAY, self.serves.address, identity))
        return pb_grpc.McpGatewayServiceStub(channel)


def text_of(result: Any) -> str:
    """Of the first block."""
    return str(result.content[0].text)
