"""A tool server that means harm: what it says keeps to bounds, and stops nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from aiohttp import web

from services.agent import tools
from services.agent.tools import Result, Server, Toolbox

SOON = timedelta(seconds=5)
TOOL = {"name": "t", "inputSchema": {"type": "object"}}


@asynccontextmanager
async def facing(offers: list[dict[str, Any]], **answer: Any) -> AsyncIterator[Toolbox]:
    """Connected to a server of 2025-11-25 that offers this and answers each call so."""

    async def handle(http: web.Request) -> web.Response:
        if http.method != "POST":
            return web.Response(status=405)
        asked = await http.json()
        results = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "0"},
            },
            "tools/list": {"tools": offers},
        }
        if "id" not in asked:
            return web.Response(status=202)
        said: dict[str, Any] = {"error": {"code": -32601, "message": "no"}}
        if asked["method"] in results:
            said = {"result": results[asked["method"]]}
        elif asked["method"] == "tools/call":
            said = answer
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **said})

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = Server("s", f"http://127.0.0.1:{runner.addresses[0][1]}/mcp")
    try:
        async with tools.connect([server], lambda *_, **__: None) as box:
            await box.reach(SOON)
            yield box
    finally:
        await runner.cleanup()


async def called(offer: dict[str, Any], **answer: Any) -> Result:
    async with facing([offer], **answer) as box:
        (tool,) = await box.tools()
        return await box.call(tool, {}, {}, SOON)


async def test_a_schema_of_its_results_is_never_run():
    """A pattern like this one, on a longer text, would stop the whole process."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    result = {"content": [], "structuredContent": {"a": "a" * 8 + "!"}}
    assert await called(TOOL | {"outputSchema": schema}, result=result) == Result('{"a": "aaaaaaaa!"}')


async def test_only_so_many_tools_are_taken():
    offers = [TOOL | {"name": f"t{n}"} for n in range(2000)]
    async with facing(offers) as box:
        assert len(await box.tools()) == 1024


async def test_only_so_much_is_said_of_tools():
    offers = [TOOL | {"name": f"t{n}", "description": "x" * 400_000} for n in range(5)]
    async with facing(offers) as box:
        assert [tool.own_name for tool in await box.tools()] == ["t0", "t1"]


async def test_an_error_is_short():
    result = await called(TOOL, error={"code": -1, "message": "e" * 1_000_000})
    assert result.outcome == "error"
    assert len(result.text) < 600
