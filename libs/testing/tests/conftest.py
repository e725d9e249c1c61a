"""An `agentd` stand-in as a real process, with a throw-away authority, a scripted model and a tool server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from .foreign import Model, ToolServer, serving
from .lab import Lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    model, tools = Model(), ToolServer()
    model.going.set()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    app.router.add_get("/v1/models", model.models)
    app.router.add_post("/mcp", tools.post)
    app.router.add_get("/mcp", tools.get)
    async with serving(app) as url, AsyncExitStack() as stack:
        model.url, tools.url = f"{url}/", f"{url}/mcp"
        yield Lab(tmp_path, model, tools, stack)
        model.going.set()
        tools.pushes.put_nowait("")
