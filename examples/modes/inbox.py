"""A tool server (MCP) whose resource mail://inbox is the text of a file: python inbox.py FILE [PORT]"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated

file, port = Path(sys.argv[1]), int(sys.argv[2] if len(sys.argv) > 2 else 8808)
changes = InMemorySubscriptionBus()
server = MCPServer("inbox", subscriptions=changes)


@server.resource("mail://inbox")
def inbox() -> str:
    return file.read_text() if file.exists() else ""


async def main() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(server.run_streamable_http_async, port=port))
        last = inbox()
        while True:
            await anyio.sleep(0.2)
            if (text := inbox()) != last:
                last = text
                await changes.publish(ResourceUpdated(uri="mail://inbox"))


with suppress(KeyboardInterrupt):
    anyio.run(main)
