"""A real MCP server of the newest revision, by the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated, ServerEvent

from .foreign import WAIT


class Bus(InMemorySubscriptionBus):
    """Knows when somebody listens."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        self.heard.set()
        return super().subscribe(listener)

    async def update(self, uri: str) -> None:
        """Tells of a change as soon as somebody listens."""
        await asyncio.wait_for(self.heard.wait(), WAIT)
        await self.publish(ResourceUpdated(uri=uri))


@asynccontextmanager
async def modern_server() -> AsyncIterator[tuple[str, Bus]]:
    """Its URL, and where changes are told."""
    bus = Bus()
    offers = MCPServer("notes", subscriptions=bus)

    @offers.tool(name="notes.add")
    def add(text: str) -> str:
        return f"added {text}"

    @offers.resource("notes://today")
    def today() -> str:
        return "empty"

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        offers.streamable_http_app(), log_config=None, ws="none", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", bus
    finally:
        server.should_exit = server.force_exit = True
        await serving
        listener.close()
