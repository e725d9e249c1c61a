"""A real MCP server, of either revision, that can be stopped and started again on its port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError

Do = Callable[[dict[str, Any]], Awaitable[types.CallToolResult]]
NEW, OLD = "2026-07-28", "2025-11-25"


def said(text: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], **more)


@dataclass
class ToolServer:
    """What it offers, and what it was asked. Everything may be changed while it runs."""

    revision: str = NEW
    tools: dict[str, Do] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    calls: list[types.CallToolRequestParams] = field(default_factory=list)
    lists: int = 0
    cancelled: int = 0
    subscribed: list[str] = field(default_factory=list)
    tls: tuple[str, str, str] | None = None
    """Certificate, key, and authority of clients, as paths."""
    port: int = 0
    sessions: list[Any] = field(default_factory=list)
    is_json: bool = False
    """Whether replies are JSON instead of streams."""
    tells: bool = True
    """Of changes of resources."""
    _server: Any = None
    _uvicorn: Any = None
    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://localhost:{self.port}/mcp"

    async def change(self, uri: str, text: str) -> None:
        """Another content, told to whoever wants to know."""
        self.resources[uri] = text
        await self.bus.publish(ResourceUpdated(uri=uri))
        for session in self.sessions:
            await session.send_resource_updated(uri)

    async def offer(self, **tools: Do) -> None:
        """Another list of tools, told likewise."""
        self.tools = tools
        await self.bus.publish(ToolsListChanged())
        for session in self.sessions:
            await session.send_tool_list_changed()

    async def cut(self, method: str = "") -> None:
        """All connections, or those with such a request on them, in the middle of whatever that is."""
        for connection in list(self._uvicorn.server_state.connections):
            if not method or connection.scope["method"] == method:
                connection.transport.abort()

    async def forget(self) -> None:
        """All sessions, as a server does that was started again."""
        for transport in list(self._server.session_manager._server_instances.values()):
            await transport.terminate()

    async def _list(self, ctx: Any, params: Any) -> types.ListToolsResult:
        self.lists += 1
        self._know(ctx)
        schema = {"type": "object", "properties": {"x": {"type": "string"}}}
        tools = [
            types.Tool(name=name, description=f"does {name}", input_schema=schema) for name in self.tools
        ]
        return types.ListToolsResult(tools=tools)

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.calls.append(params)
        try:
            return await self.tools[params.name](dict(params.arguments or {}))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _list_resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[types.Resource(name=uri, uri=uri) for uri in self.resources]
        )

    async def _read(self, ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        if uri not in self.resources:
            raise MCPError(types.INVALID_PARAMS, "no such resource")
        text = types.TextResourceContents(uri=uri, mime_type="text/plain", text=self.resources[uri])
        return types.ReadResourceResult(contents=[text])

    async def _subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._know(ctx)
        self.subscribed.append(str(params.uri))
        return types.EmptyResult()

    def _know(self, ctx: Any) -> None:
        if self.revision == OLD:
            self.sessions = [ctx.session]  # one client is all that a test has

    def _app(self) -> Any:
        old: dict[str, Any] = {"on_subscribe_resource": self._subscribe}
        new: dict[str, Any] = {"on_subscriptions_listen": ListenHandler(self.bus)}
        self._server = server = Server(
            "toolserver",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_list_resources=self._list_resources,
            on_read_resource=self._read,
            get_tool_input_schema=lambda name: None,
            **(old if self.revision == OLD else new) if self.tells else {},
        )
        app = server.streamable_http_app(json_response=self.is_json)
        return _old_only(app) if self.revision == OLD else app

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ToolServer]:
        """Runs while the block does; its port stays the same from then on."""
        self.sessions.clear()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        tls: dict[str, Any] = {}
        if self.tls:
            certificate, key, authority = self.tls
            tls = {
                "ssl_certfile": certificate,
                "ssl_keyfile": key,
                "ssl_ca_certs": authority,
                "ssl_cert_reqs": 2,
            }
        self._uvicorn = server = _Uvicorn(
            uvicorn.Config(self._app(), log_config=None, ws="none", timeout_graceful_shutdown=0, **tls)
        )
        task = asyncio.create_task(server.serve([listener]))
        try:
            await server.up.wait()
            yield self
        finally:
            server.should_exit = True
            await task
            listener.close()


class _Uvicorn(uvicorn.Server):
    """One of many things in its process: it says when it is up, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _old_only(app: Any) -> Any:
    """A server that does not know `server/discover`, as those of 2025 did not."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version", b"").decode() == NEW:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return guarded
