"""MCP servers for tests: real ones by the SDK, of either revision, and some that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import uvicorn
from aiohttp import web
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError

NOTE = "note://box"
MODERN = b"2026-07-28"
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
_MARKED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
_SCHEMAS = {"marked": _MARKED}


@dataclass
class ToolServer:
    """By the SDK. A `legacy` one refuses 2026-07-28 as servers of before do."""

    name: str
    is_legacy: bool = False
    tools: list[str] = field(
        default_factory=lambda: ["echo", "steps", "hang", "broken", "large", "delete_all", "marked", "ticks"]
    )
    page: int = 2
    """Tools to a page."""
    content: str = "nothing yet"
    token: str = ""
    """What callers must show; empty: nothing. It tells of `metadata` then."""
    metadata: str = ""
    seen: list[dict[str, str]] = field(default_factory=list)
    """Headers of requests."""
    metas: list[dict[str, Any]] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    lists: int = 0
    url: str = ""
    _bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    _told: list[Any] = field(default_factory=list)

    async def change(self, content: str) -> None:
        self.content = content
        await self._bus.publish(ResourceUpdated(uri=NOTE))
        for session in self._told:
            await session.send_resource_updated(NOTE)

    async def rename(self, *tools: str) -> None:
        self.tools = list(tools)
        await self._bus.publish(ToolsListChanged())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ToolServer]:
        listen = ListenHandler(self._bus)
        only_legacy: dict[str, Any] = {"on_subscribe_resource": self._subscribe}
        only_modern: dict[str, Any] = {"on_subscriptions_listen": listen}
        server: Any = Server(
            self.name,
            version="7.1",
            instructions=f"Use {self.name} well.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
            **(only_legacy if self.is_legacy else only_modern),
        )
        app = server.streamable_http_app()
        config = uvicorn.Config(self._door(app), log_config=None, timeout_graceful_shutdown=0)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
            served = _Quiet(config)
            task = asyncio.create_task(served.serve(sockets=[listening]))
            try:
                yield self
            finally:
                listen.close()
                served.should_exit = served.force_exit = True
                await task

    def _door(self, app: Any) -> Any:
        async def door(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = dict(scope["headers"])
                self.seen.append({name.decode(): value.decode() for name, value in headers.items()})
                wants = f"Bearer {self.token}".encode() if self.token else None
                if wants and headers.get(b"authorization") != wants:
                    challenge = f'Bearer resource_metadata="{self.metadata}"'.encode()
                    await _said(send, 401, b"{}", [(b"www-authenticate", challenge)])
                    return
                if self.is_legacy and headers.get(b"mcp-protocol-version") == MODERN:
                    await _said(send, 400, b"Bad Request: Unsupported protocol version")
                    return
            await app(scope, receive, send)

        return door

    async def _list_tools(self, _: Any, params: Any) -> types.ListToolsResult:
        self.lists += 1
        begin = int(params.cursor or 0) if params else 0
        end = begin + self.page
        tools = [
            types.Tool(name=name, description=f"{name}.", input_schema=_SCHEMAS.get(name, _SCHEMA))
            for name in self.tools[begin:end]
        ]
        return types.ListToolsResult(tools=tools, next_cursor=str(end) if end < len(self.tools) else None)

    async def _call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.metas.append(dict(params.meta or {}))
        arguments = params.arguments or {}
        match params.name:
            case "echo" | "delete_all":
                text = f"{self.name}: {arguments.get('text', '')}"
            case "marked":
                text = str(ctx.request.headers.get("mcp-param-region"))
            case "steps":
                await ctx.session._request_outbound.notify(
                    "notifications/message", {"level": "info", "data": "begun"}
                )
                for step in (1, 2, 3):
                    await ctx.session.report_progress(step, 3, f"step {step}")
                text = "done"
            case "hang":
                self.hanging.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.given_up.set()
                    raise
                text = ""
            case "ticks":
                try:
                    while True:
                        await ctx.session.report_progress(1)
                        await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    self.given_up.set()
                    raise
            case "large":
                text = "x" * (5 * 1024 * 1024)
            case "broken":
                return types.CallToolResult(
                    content=[types.TextContent(type="text", text="out of order")], is_error=True
                )
            case _:
                raise MCPError(types.INVALID_PARAMS, "no such tool")
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content={"length": len(text)}
        )

    async def _list_resources(self, _: Any, __: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(name="box", uri=NOTE)])

    async def _list_templates(self, _: Any, __: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(name="page", uri_template=f"{self.name}://page/{{number}}")
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(
        self, _: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        text = types.TextResourceContents(uri=params.uri, text=f"{self.name}: {self.content}")
        return types.ReadResourceResult(contents=[text])

    async def _list_prompts(self, _: Any, __: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet")])

    async def _get_prompt(self, _: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        content = types.TextContent(type="text", text=f"Greet {(params.arguments or {})['who']}.")
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    async def _complete(self, _: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        return types.CompleteResult(completion=types.Completion(values=[f"{params.argument.value}da"]))

    async def _subscribe(self, ctx: Any, _: Any) -> types.EmptyResult:
        self._told.append(ctx.session)
        return types.EmptyResult()


class _Quiet(uvicorn.Server):
    """Without handlers of signals."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


async def _said(
    send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers or []})
    await send({"type": "http.response.body", "body": body})


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def scripted(handler: Handler) -> AsyncIterator[str]:
    """An HTTP server that answers as it is told; its URL."""
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
