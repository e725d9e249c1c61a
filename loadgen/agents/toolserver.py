"""An MCP server with one resource that never changes, for reactive agents that have nothing to do.

`python -m loadgen.agents.toolserver PORT`. It counts requests: GET /count says how many there were.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

URI = "load://idle"


class Counting:
    """The server's application, and how often it was asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counts a request, or says how many there were."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["path"] != "/count":
            self._count += 1
            return await self._app(scope, receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(self._count).encode()})


def main() -> None:
    """Serves until it is stopped."""
    import uvicorn  # the whole command knows our URI; only this process serves, and these are slow to load
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("idle", log_level="WARNING")
    server.resource(URI, name="idle")(lambda: "nothing happens here")
    app = Counting(server.streamable_http_app())
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
