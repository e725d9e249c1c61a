"""The tools that the model may call: MCP servers over streamable HTTP, and the resources they tell about.

A server that fails is told to the model in the results of its tools and harms no other. The `mcp` SDK, which
costs 50 MiB and half a second, is imported only if there are servers.
"""

from __future__ import annotations

from .errors import ServerAwayError, SubscriptionError
from .tool import Result, Server, Tool
from .toolbox import Changed, Toolbox, connect

__all__ = [
    "Changed", "Result", "Server", "ServerAwayError", "SubscriptionError", "Tool", "Toolbox", "connect",
]  # fmt: skip
