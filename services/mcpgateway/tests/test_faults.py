"""One bad server harms no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from mcp import MCPError

from .upstream_servers import scripted
from .world import Reached, World, text_of

pytestmark = pytest.mark.anyio

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
METADATA = "http://169.254.169.254/latest/meta-data/"


def _answer(body: dict[str, Any], result: dict[str, Any]) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": body.get("id"), "result": result})


def _modern(on_call: Callable[..., Awaitable[web.StreamResponse]]) -> Handler:
    """A server of 2026-07-28 that is well until a tool is called."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        match body.get("method"):
            case "server/discover":
                discovered = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                return _answer(body, discovered)
            case "tools/list":
                return _answer(body, {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]})
            case _:
                return await on_call(request, body)

    return handle


async def _hangs(_: web.Request, __: Any = None) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def _huge(request: web.Request, _: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * 65536)


async def _endless(request: web.Request, _: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    said = {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"level": "info", "data": "x" * 9999},
    }
    while True:
        await response.write(b"data: %s\n\n" % json.dumps(said).encode())


async def _dies(request: web.Request, _: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"jsonrpc": "2.0", "id"')
    assert request.transport is not None
    request.transport.abort()
    return response


async def _redirects(_: web.Request, __: Any = None) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": METADATA})


async def _compressed(_: web.Request, __: Any) -> web.StreamResponse:
    return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})


async def _nonsense(_: web.Request, __: Any) -> web.StreamResponse:
    return web.Response(body=b"<html>", content_type="application/json")


async def _pages(_: web.Request, __: Any) -> web.StreamResponse:
    return web.Response(text="<html>", content_type="text/html")


async def _fails(_: web.Request, __: Any) -> web.StreamResponse:
    return web.Response(status=500, text="a trace with a password")


FAULTS: dict[str, tuple[Callable[..., Awaitable[web.StreamResponse]], str]] = {
    "hangs": (_hangs, "did not answer in time"),
    "huge": (_huge, "more than"),
    "endless": (_endless, "more than"),
    "dies": (_dies, "cannot be reached, or broke off"),
    "redirects": (_redirects, "a redirect, which is not followed"),
    "compressed": (_compressed, "a compressed body"),
    "nonsense": (_nonsense, "no JSON"),
    "pages": (_pages, "neither JSON nor"),
    "fails": (_fails, "HTTP status 500"),
}


async def _beside(world: World, url: str, **settings: Any) -> Reached:
    """A gateway to a good server and the one at that URL."""
    good = await world.server("good")
    await world.servers({"name": "good", "endpoint": good.url}, {"name": "bad", "endpoint": url})
    return await world.gateway(idle_timeout=timedelta(milliseconds=500), **settings)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_that_fails_in_a_call_harms_no_other(world: World, fault: str) -> None:
    on_call, words = FAULTS[fault]
    async with scripted(_modern(on_call)) as url:
        gateway = await _beside(world, f"{url}/mcp")
        async with gateway.client() as client:
            calls = [asyncio.create_task(client.call_tool("bad__go", {})) for _ in range(4)]
            assert text_of(await client.call_tool("good__echo", {"text": "x"})) == "good: x"
            for call in calls:
                with pytest.raises(MCPError, match=words) as caught:
                    await call
                assert "password" not in str(caught.value)
            assert text_of(await client.call_tool("good__echo", {"text": "y"})) == "good: y"


async def _hangs_always(request: web.Request) -> web.StreamResponse:
    return await _hangs(request)


async def _redirects_always(request: web.Request) -> web.StreamResponse:
    return await _redirects(request)


@pytest.mark.parametrize(
    "handler", [_hangs_always, _redirects_always, None], ids=["hangs", "redirects", "gone"]
)
async def test_the_others_are_listed_without_a_server_that_does_not_say(
    world: World, handler: Handler | None
) -> None:
    async with scripted(handler or _hangs_always) as url:
        gateway = await _beside(world, f"{url}/mcp" if handler else "http://127.0.0.1:9/mcp")
        async with gateway.client() as client:
            listed = await client.list_tools()
            assert {tool.name.partition("__")[0] for tool in listed.tools} == {"good"}
            assert listed.meta is not None
            assert list(listed.meta["agentctl.dev/troubles"]) == ["bad"]


async def test_a_server_that_fails_again_and_again_is_left_alone(world: World) -> None:
    asked = 0

    async def fails(_: web.Request, __: Any) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=503)

    async with scripted(_modern(fails)) as url:
        gateway = await _beside(world, f"{url}/mcp")
        async with gateway.client() as client:
            for _ in range(8):
                with pytest.raises(MCPError):
                    await client.call_tool("bad__go", {})
            with pytest.raises(MCPError, match="times in a row: try again later"):
                await client.call_tool("bad__go", {})
    assert asked == 5


async def test_a_server_takes_no_more_calls_of_a_caller_than_its_share(world: World) -> None:
    begun = asyncio.Semaphore(0)

    async def waits(request: web.Request, _: Any) -> web.StreamResponse:
        begun.release()
        return await _hangs(request)

    async with scripted(_modern(waits)) as url:
        good = await world.server("good")
        await world.servers({"name": "good", "endpoint": good.url}, {"name": "bad", "endpoint": f"{url}/mcp"})
        gateway = await world.gateway(at_once=8)
        async with gateway.client() as client:
            calls = [asyncio.create_task(client.call_tool("bad__go", {})) for _ in range(4)]
            for _ in calls:
                await begun.acquire()
            with pytest.raises(MCPError, match="too many requests at once"):
                await client.call_tool("bad__go", {})
            assert text_of(await client.call_tool("good__echo", {})) == "good: "
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)


async def test_a_result_that_is_too_large_is_an_error(world: World, era: str) -> None:
    server = await world.server("box")
    await world.servers({"name": "box", "endpoint": server.url})
    gateway = await world.gateway()
    async with gateway.client("box", era) as client:
        with pytest.raises(MCPError, match="answered with more than 4194304 bytes"):
            await client.call_tool("large", {})
        assert text_of(await client.call_tool("echo", {})) == "box: "


class TestAddresses:
    async def test_a_name_that_leads_to_metadata_is_refused(self, world: World) -> None:
        async def resolve(_: str, __: int) -> list[str]:
            return ["169.254.169.254"]

        good = await world.server("good")
        await world.servers(
            {"name": "bad", "endpoint": "http://tools.test/mcp"}, {"name": "good", "endpoint": good.url}
        )
        gateway = await world.gateway(resolve=resolve)
        async with gateway.client() as client:
            with pytest.raises(MCPError, match=r"tools\.test is at an address that is not allowed"):
                await client.call_tool("bad__go", {})
            assert text_of(await client.call_tool("good__echo", {})) == "good: "

    async def test_our_own_host_is_refused_where_it_is_not_ours_alone(self, world: World) -> None:
        server = await world.server("box")
        await world.servers({"name": "box", "endpoint": server.url})
        gateway = await world.gateway(allow_loopback=False, allow_private=True)
        response = await gateway.post("tools/list", {}, path="/servers/box/mcp")
        assert "servers at 127.0.0.1 are not allowed" in response.json()["error"]["message"]
        assert server.seen == []

    async def test_a_name_is_connected_to_at_the_address_that_was_judged(self, world: World) -> None:
        server = await world.server("box")
        resolved: list[str] = []

        async def resolve(host: str, _: int) -> list[str]:
            """Good at first, bad after that."""
            resolved.append(host)
            return ["127.0.0.1"] if len(resolved) == 1 else ["169.254.169.254"]

        endpoint = server.url.replace("127.0.0.1", "localhost")  # whose Host the SDK's server takes
        await world.servers({"name": "box", "endpoint": endpoint})
        gateway = await world.gateway(resolve=resolve)
        response = await gateway.post("tools/call", {"name": "echo"}, path="/servers/box/mcp")
        assert "result" in response.json()
