"""A tool server (MCP, by its official SDK) in a thread: one that counts, can be held, and has a resource.

It can be stopped and started again on its port. It keeps what it was asked meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError

from .scripted import loop_beside, wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RESOURCE = "note://box"
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the tool `count`, as it came."""

    run_id: str
    text: str


class ToolServer:
    """Its tool `count` writes a call down and answers how many there were; `hang` answers never."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.calls: list[Call] = []
        self.held = 0
        """Calls that wait now."""
        self.given_up = 0
        """Calls whose caller went away, or took them back."""
        self.listening = 0
        """Subscriptions that there are now."""
        self._loop = loop
        self._content = "nothing yet"
        self._port = 0
        self._open = asyncio.Event()
        self._open.set()
        self._bus: Any = None
        self._up = AsyncExitStack()

    @property
    def endpoint(self) -> str:
        """Its URL, the same from its first start on."""
        return f"http://127.0.0.1:{self._port}/mcp"

    def start(self) -> None:
        """Answers from now on."""
        wait_for(self._loop, lambda: self._up.enter_async_context(self._serving()))

    def stop(self) -> None:
        """Breaks everything off, and answers nobody any more."""
        wait_for(self._loop, self._up.aclose)

    def hold(self) -> None:
        """Answers no call of a tool from now on."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        """Answers the calls that wait, and those to come."""
        self._loop.call_soon_threadsafe(self._open.set)

    def change(self, content: str) -> None:
        """Another content of the resource; told to whoever is subscribed."""

        async def do() -> None:
            self._content = content
            if self._bus is not None:
                await self._bus.publish(ResourceUpdated(uri=RESOURCE))

        wait_for(self._loop, do)

    def texts(self) -> list[str]:
        """What the calls of `count` said."""
        return [call.text for call in self.calls]

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        self._bus = InMemorySubscriptionBus()
        listen = ListenHandler(self._bus)

        async def on_listen(context: Any, params: Any) -> Any:
            self.listening += 1
            try:
                return await listen(context, params)
            finally:
                self.listening -= 1

        server: Any = Server(
            "scripted",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=on_listen,
        )
        config = uvicorn.Config(server.streamable_http_app(), log_config=None, timeout_graceful_shutdown=0)
        for name in ("uvicorn", "mcp"):  # connections that are broken off on purpose are no news
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        with socket.create_server(("127.0.0.1", self._port)) as listening:
            self._port = listening.getsockname()[1]
            web = _Quiet(config)
            task = asyncio.create_task(web.serve(sockets=[listening]))
            try:
                yield  # who connects before it accepts is in the backlog
            finally:
                self._bus = None
                web.should_exit = web.force_exit = True
                await task

    async def _list_tools(self, _: Any, __: Any) -> types.ListToolsResult:
        tools = {"count": "Counts.", "hang": "Never answers."}
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=text, input_schema=_SCHEMA) for name, text in tools.items()
            ]
        )

    async def _call_tool(self, _: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "count":
            meta: Any = params.meta or {}
            text = str((params.arguments or {}).get("text", ""))
            self.calls.append(Call(meta.get("agentctl.dev/run-id", ""), text))
        self.held += 1
        try:
            await (self._open if params.name == "count" else asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.held -= 1
        return types.CallToolResult(content=[types.TextContent(type="text", text=str(len(self.calls)))])

    async def _list_resources(self, _: Any, __: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(name="box", uri=RESOURCE)])

    async def _read_resource(
        self, _: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        if str(params.uri) != RESOURCE:
            raise MCPError(types.INVALID_PARAMS, "no such resource")
        text = types.TextResourceContents(uri=RESOURCE, mime_type="text/plain", text=self._content)
        return types.ReadResourceResult(contents=[text])


class _Quiet(uvicorn.Server):
    """Without handlers of signals: those are the test's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def toolserver() -> Iterator[ToolServer]:
    """A tool server that answers, while the block runs."""
    with loop_beside() as loop:
        server = ToolServer(loop)
        server.start()
        try:
            yield server
        finally:
            server.stop()
