"""Stock clients of both revisions, through the edge, to servers of both revisions."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from .upstream_servers import NOTE, ToolServer
from .world import Reached, World, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["to-modern", "to-legacy"])
async def server(request: pytest.FixtureRequest, world: World) -> ToolServer:
    return await world.server("box", is_legacy=request.param)


@pytest.fixture
async def gateway(world: World, server: ToolServer) -> Reached:
    await world.servers({"name": "box", "endpoint": server.url, "tools": {"deny": ["delete_*"]}})
    return await world.gateway()


async def test_a_server_is_as_it_is(gateway: Reached, era: str) -> None:
    async with gateway.client("box", era) as client:
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("box", "7.1")
        assert client.instructions == "Use box well."
        assert client.server_capabilities.tools is not None
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["echo", "steps", "hang", "broken", "large", "marked", "ticks"]
        result = await client.call_tool("echo", {"text": "nine"})
        assert text_of(result) == "box: nine"
        assert result.structured_content == {"length": 9}


async def test_a_tool_that_fails_is_an_answer(gateway: Reached, era: str) -> None:
    async with gateway.client("box", era) as client:
        result = await client.call_tool("broken", {})
        assert (result.is_error, text_of(result)) == (True, "out of order")


async def test_resources_prompts_and_completion_pass(gateway: Reached, era: str) -> None:
    async with gateway.client("box", era) as client:
        assert [each.uri for each in (await client.list_resources()).resources] == [NOTE]
        read = await client.read_resource(NOTE)
        assert read.contents[0].text == "box: nothing yet"  # type: ignore[union-attr]
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["box://page/{number}"]
        assert [each.name for each in (await client.list_prompts()).prompts] == ["greet"]
        prompt = await client.get_prompt("greet", {"who": "Ada"})
        assert prompt.messages[0].content.text == "Greet Ada."  # type: ignore[union-attr]
        ref = types.PromptReference(type="ref/prompt", name="greet")
        completed = await client.complete(ref, {"name": "who", "value": "A"})
        assert completed.completion.values == ["Ada"]


async def test_progress_is_told(gateway: Reached, era: str) -> None:
    heard: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with gateway.client("box", era) as client:
        result = await client.call_tool("steps", {}, progress_callback=on_progress)
    assert text_of(result) == "done"
    assert heard == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


@pytest.mark.parametrize(("level", "lines"), [(None, 0), ("error", 0), ("info", 1)])
async def test_lines_of_the_servers_log_are_told_to_who_asks(
    gateway: Reached, level: str | None, lines: int
) -> None:
    params: dict[str, Any] = {"name": "steps"}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params["_meta"] = meta | ({"io.modelcontextprotocol/logLevel": level} if level else {})
    response = await gateway.post("tools/call", params, path="/servers/box/mcp")
    assert response.text.count("notifications/message") == lines
    assert '"text":"done"' in response.text


async def test_trace_context_passes(gateway: Reached, server: ToolServer, era: str) -> None:
    trace: Any = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with gateway.client("box", era) as client:
        await client.call_tool("echo", {}, meta=trace)
    assert server.metas[-1]["traceparent"] == trace["traceparent"]


async def test_a_call_of_2025_that_is_cancelled_is_cancelled_at_the_server(
    gateway: Reached, server: ToolServer
) -> None:
    async with gateway.client("box", "legacy") as client:
        call = asyncio.create_task(client.call_tool("hang", {}))
        await server.hanging.wait()
        call.cancel()
        async with asyncio.timeout(10):
            await server.given_up.wait()


async def test_a_caller_of_2026_who_leaves_has_its_call_cancelled(
    gateway: Reached, server: ToolServer
) -> None:
    """In HTTP/1.1 it is found gone when it is told something; here progress."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": "p",
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "ticks",
    }
    params = {"name": "ticks", "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with (
        gateway.http() as http,
        http.stream("POST", "/servers/box/mcp", json=body, headers=headers) as response,
    ):
        assert '"progressToken":"p"' in await anext(response.aiter_text())
    async with asyncio.timeout(10):
        await server.given_up.wait()


async def test_a_call_that_is_out_of_time_is_cancelled_at_the_server(
    gateway: Reached, server: ToolServer
) -> None:
    world = gateway.world
    hasty = await world.gateway(call_timeout=timedelta(milliseconds=500))
    async with hasty.client("box") as client:
        with pytest.raises(MCPError, match="box did not answer in time"):
            await client.call_tool("hang", {})
    async with asyncio.timeout(10):
        await server.given_up.wait()


async def test_a_denied_tool_is_hidden_and_refused(gateway: Reached, server: ToolServer, era: str) -> None:
    async with gateway.client("box", era) as client:
        assert "delete_all" not in [tool.name for tool in (await client.list_tools()).tools]
        with pytest.raises(MCPError, match="no tool of that name that this agent may use") as caught:
            await client.call_tool("delete_all", {})
    assert caught.value.error.code == types.INVALID_PARAMS
    assert caught.value.error.data["reason"] == "TOOL_DENIED"
    assert server.metas == []


async def test_changes_of_a_resource_are_told_in_2026(gateway: Reached, server: ToolServer) -> None:
    async with gateway.client("box") as client, client.listen(resource_subscriptions=[NOTE]) as events:
        assert events.honored.resource_subscriptions == [NOTE]
        await server.change("something")
        async with asyncio.timeout(10):
            assert await anext(aiter(events)) == ResourceUpdated(uri=NOTE)
        read = await client.read_resource(NOTE)
        assert read.contents[0].text == "box: something"  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:resources/:mcp.MCPDeprecationWarning")
async def test_changes_of_a_resource_are_told_in_2025(gateway: Reached, server: ToolServer) -> None:
    async with gateway.client("box", "legacy") as client:
        await client.subscribe_resource(NOTE)
        async with asyncio.timeout(10):
            while not any(isinstance(each, types.ResourceUpdatedNotification) for each in gateway.told):
                await server.change("something")  # again: it is told only to a stream that is open by now
                await asyncio.sleep(0.02)
        await client.unsubscribe_resource(NOTE)


async def test_a_server_of_2025_gives_each_caller_a_session_of_its_own(world: World) -> None:
    server = await world.server("box", is_legacy=True)
    await world.servers({"name": "box", "endpoint": server.url})
    gateway = await world.gateway()
    for name in ("agent/writer/one", "agent/writer/two"):
        async with gateway.client("box", role=name) as client:
            await client.call_tool("echo", {})
    calls = [seen for seen in server.seen if "mcp-session-id" in seen]
    assert len({seen["mcp-session-id"] for seen in calls}) >= 3  # the gateway's for lists, and two


class TestLists:
    async def test_are_kept_until_they_change(self, world: World) -> None:
        server = await world.server("box")
        await world.servers({"name": "box", "endpoint": server.url})
        gateway = await world.gateway()
        async with gateway.client("box") as client, client.listen(tools_list_changed=True) as events:
            await client.list_tools()
            asked = server.lists
            await client.list_tools()
            assert server.lists == asked
            await server.rename("echo", "other")
            async with asyncio.timeout(10):
                assert await anext(aiter(events)) == ToolsListChanged()
            assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "other"]

    async def test_changes_are_told_in_2025(self, world: World) -> None:
        server = await world.server("box")
        await world.servers({"name": "box", "endpoint": server.url})
        gateway = await world.gateway()
        async with gateway.client("box", "legacy") as client:
            assert client.server_capabilities.tools is not None
            assert client.server_capabilities.tools.list_changed
            async with asyncio.timeout(10):
                while not any(isinstance(it, types.ToolListChangedNotification) for it in gateway.told):
                    await server.rename("echo", "other")  # again: it tells only who listens by now
                    await asyncio.sleep(0.02)

    async def test_are_followed_through_all_pages(self, world: World) -> None:
        names = [f"tool{number:04}" for number in range(1203)]
        server = await world.server("box", tools=names, page=50)
        await world.servers({"name": "box", "endpoint": server.url})
        gateway = await world.gateway()
        async with gateway.client("box") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == names

    async def test_without_an_end_are_an_error(self, world: World) -> None:
        server = await world.server("box", tools=[f"tool{number}" for number in range(300)])
        await world.servers({"name": "box", "endpoint": server.url})
        gateway = await world.gateway()
        async with gateway.client("box") as client:
            with pytest.raises(MCPError, match="lists without end"):
                await client.list_tools()


class TestTogether:
    async def test_all_servers_are_one(self, world: World, era: str) -> None:
        one, two = await world.server("one"), await world.server("two", is_legacy=True)
        await world.servers(
            {"name": "two", "endpoint": two.url, "tools": {"allow": ["echo"]}},
            {"name": "one", "endpoint": one.url, "tools": {"allow": ["steps", "echo"]}},
        )
        gateway = await world.gateway()
        async with gateway.client(era=era) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["one__echo", "one__steps", "two__echo"]
            assert text_of(await client.call_tool("two__echo", {"text": "x"})) == "two: x"
            assert text_of(await client.call_tool("one__echo", {"text": "x"})) == "one: x"
            with pytest.raises(MCPError, match="may use"):
                await client.call_tool("two__steps", {})
            with pytest.raises(MCPError, match="nothing of that name"):
                await client.call_tool("echo", {})
            prompt = await client.get_prompt("two__greet", {"who": "Ada"})
            assert prompt.messages[0].content.text == "Greet Ada."  # type: ignore[union-attr]
            read = await client.read_resource("two://page/3")
            assert read.contents[0].text == "two: nothing yet"  # type: ignore[union-attr]
            assert client.instructions == "one: Use one well.\n\ntwo: Use two well."
