"""A scripted MCP tool server: tools that note, fail, hang and overflow, and resources that change.

The `mcp` SDK is loaded when it is served.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

NAME = "scripted"
LARGE = 300 * 1024
_TOOLS = {
    "note": "Writes a note down.",
    "fail": "Always fails.",
    "hang": "Never answers.",
    "large": f"Answers with {LARGE} bytes.",
}
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


class Tools:
    """One server on one port: it can go away and come back."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/mcp"
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.given_up = 0
        """Calls of `hang` that the agent did not wait for any longer."""
        self.contents: dict[str, str] = {}
        self.listeners: Counter[str] = Counter()
        """Subscriptions that are open, by URI."""
        self._port = port
        self._bus: Any = None
        self._sessions: list[tuple[str, Any]] = []
        self._up = AsyncExitStack()

    def texts(self, tool: str) -> list[str]:
        """What the calls of a tool said."""
        return [str(arguments.get("text", "")) for name, arguments in self.calls if name == tool]

    async def change(self, uri: str, content: str) -> None:
        """Changes a resource and tells whoever subscribed, in either revision of the protocol."""
        from mcp.shared.subscriptions import ResourceUpdated

        self.contents[uri] = content
        if self._bus is not None:
            await self._bus.publish(ResourceUpdated(uri=uri))
        for subscribed, session in list(self._sessions):
            if subscribed == uri:
                await session.send_resource_updated(uri)

    async def start(self) -> None:
        """Answers from now on."""
        await self._up.enter_async_context(self._serving())

    async def stop(self) -> None:
        """Breaks every connection off and answers nobody any more."""
        await self._up.aclose()
        self._sessions.clear()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        import uvicorn
        from mcp.server.lowlevel import Server
        from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

        self._bus = InMemorySubscriptionBus()
        listen = ListenHandler(self._bus)

        listeners = self.listeners = Counter()  # of this time: the last one's may end late

        async def on_listen(context: Any, params: Any) -> Any:
            uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
            listeners.update(uris)
            try:
                return await listen(context, params)
            finally:
                listeners.subtract(uris)

        server: Any = Server(
            NAME,
            version="1",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_subscriptions_listen=on_listen,
        )
        config = uvicorn.Config(
            server.streamable_http_app(), log_config=None, access_log=False, timeout_graceful_shutdown=0
        )
        # connections that are broken off on purpose are no news
        for name in ("uvicorn", "mcp"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        with socket.create_server(("127.0.0.1", self._port)) as listening:
            web = _quiet(uvicorn.Server)(config)
            task = asyncio.create_task(web.serve(sockets=[listening]))
            try:
                yield  # who connects before it accepts is in the backlog
            finally:
                web.should_exit = web.force_exit = True
                await task

    async def _list_tools(self, _: Any, __: Any) -> Any:
        from mcp import types

        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=text, input_schema=_SCHEMA) for name, text in _TOOLS.items()
            ]
        )

    async def _call_tool(self, _: Any, params: Any) -> Any:
        from mcp import types

        self.calls.append((params.name, dict(params.arguments or {})))
        text, failed = "noted", params.name not in _TOOLS
        if params.name == "fail":
            text, failed = "failure by the script", True
        elif params.name == "large":
            text = "x" * LARGE
        elif params.name == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up += 1
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    async def _list_resources(self, _: Any, __: Any) -> Any:
        from mcp import types

        return types.ListResourcesResult(
            resources=[types.Resource(uri=uri, name=uri.rpartition("/")[2]) for uri in self.contents]
        )

    async def _read_resource(self, _: Any, params: Any) -> Any:
        from mcp import types

        uri = str(params.uri)
        text = self.contents.get(uri, "")
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mime_type="text/plain", text=text)]
        )

    async def _subscribe(self, context: Any, params: Any) -> Any:
        from mcp import types

        self._sessions.append((str(params.uri), context.session))
        self.listeners[str(params.uri)] += 1
        return types.EmptyResult()


def _quiet(server: type[Any]) -> type[Any]:
    """The server without handlers of signals: those are the command's."""

    class Quiet(server):  # type: ignore[misc]
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Quiet
