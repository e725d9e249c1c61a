"""Who may use what through the edge, and what is refused there."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import MCPError

from libs.cluster.kinds import AGENT, AGENT_FLEET, MCP_SERVER_SET
from libs.testing.mesh import NAMESPACE

from .upstream_servers import ToolServer
from .world import OTHER, SECRET, Reached, World, template_of, text_of

pytestmark = pytest.mark.anyio

ECHO = {"name": "echo", "arguments": {"text": "x"}}


@pytest.fixture
async def server(world: World) -> ToolServer:
    return await world.server("box")


@pytest.fixture
async def gateway(world: World, server: ToolServer) -> Reached:
    await world.servers({"name": "box", "endpoint": server.url})
    return await world.gateway()


class TestCallers:
    async def test_nobody_without_a_certificate(self, gateway: Reached) -> None:
        response = await gateway.post("tools/list", {}, role=None)
        assert response.status_code == 401
        assert response.json()["error"]["data"]["reason"] == "UNAUTHENTICATED"

    async def test_a_proxy_with_the_token_speaks_for_an_agent(
        self, world: World, gateway: Reached, tmp_path: Path
    ) -> None:
        (tmp_path / "token").write_text("open-sesame\n")
        proxied = await world.gateway(bearer_file=tmp_path / "token")
        names = {"x_agentctl_namespace": NAMESPACE, "x_agentctl_agent": "writer"}
        good = await proxied.post("tools/list", {}, role=None, authorization="Bearer open-sesame", **names)
        assert good.status_code == 200
        bad = await proxied.post("tools/list", {}, role=None, authorization="Bearer open", **names)
        assert bad.status_code == 401
        without = await gateway.post("tools/list", {}, role=None, authorization="Bearer open-sesame", **names)
        assert without.status_code == 401

    async def test_two_of_two_namespaces_have_their_own_servers(self, world: World) -> None:
        one, two = await world.server("one"), await world.server("two")
        await world.servers({"name": "box", "endpoint": one.url})
        await world.servers({"name": "box", "endpoint": two.url}, namespace=OTHER)
        gateway = await world.gateway()
        async with gateway.client("box") as client:
            assert text_of(await client.call_tool("echo", {})) == "one: "
        async with gateway.client("box", namespace=OTHER) as client:
            assert text_of(await client.call_tool("echo", {})) == "two: "

    async def test_another_namespaces_server_is_not_there(self, world: World, gateway: Reached) -> None:
        await world.servers({"name": "theirs", "endpoint": "http://192.0.2.1/mcp"}, namespace=OTHER)
        for path in ("/servers/theirs/mcp", "/servers/nowhere/mcp"):
            response = await gateway.post("tools/list", {}, path=path)
            assert response.status_code == 404
        forged = await gateway.post(
            "tools/list",
            {},
            path="/servers/theirs/mcp",
            x_agentctl_namespace=OTHER,
            x_agentctl_agent="writer",
        )
        assert forged.status_code == 404
        asked = await gateway.post("tools/list", {}, x_agentctl_server_set=f"{OTHER}/tools")
        assert asked.status_code == 404

    async def test_a_set_that_the_agent_does_not_name_is_denied(self, world: World, gateway: Reached) -> None:
        await world.put(
            MCP_SERVER_SET, "spare", {"servers": [{"name": "z", "endpoint": "http://z.test/mcp"}]}
        )
        await _until(gateway, "/servers/z/mcp", 403)
        response = await gateway.post("tools/list", {}, path="/servers/z/mcp")
        assert "name the set in mcpServers" in response.json()["error"]["message"]
        asked = await gateway.post("tools/list", {}, x_agentctl_server_set="spare")
        assert asked.status_code == 403

    async def test_workers_and_coordinators_use_what_their_fleet_says(
        self, world: World, server: ToolServer
    ) -> None:
        here = {"servers": [{"name": "box", "endpoint": server.url}]}
        await world.put(MCP_SERVER_SET, "workers", here)
        await world.put(MCP_SERVER_SET, "coordinators", here)
        await world.put(
            AGENT_FLEET,
            "crew",
            {
                "template": template_of("workers"),
                "coordinator": {"template": template_of("coordinators")},
            },
        )
        gateway = await world.gateway()
        for role, mine, others in (
            ("agent/crew", "workers", "coordinators"),
            ("agent/crew-coordinator", "coordinators", "workers"),
        ):
            good = await gateway.post("tools/list", {}, role=role, x_agentctl_server_set=mine)
            assert good.status_code == 200
            bad = await gateway.post("tools/list", {}, role=role, x_agentctl_server_set=others)
            assert bad.status_code == 403

    async def test_people_use_the_sets_of_their_namespace(self, gateway: Reached) -> None:
        path = "/servers/box/mcp"
        assert (await gateway.post("tools/list", {}, role="user/ada", path=path)).status_code == 200
        other = await gateway.post("tools/list", {}, role="user/eve", namespace=OTHER, path=path)
        assert other.status_code == 404
        unsaid = await gateway.post("tools/list", {}, role="administrator", path=path)
        assert unsaid.status_code == 400
        said = await gateway.post(
            "tools/list", {}, role="administrator", path=path, x_agentctl_server_set=f"{NAMESPACE}/tools"
        )
        assert said.status_code == 200

    async def test_a_producer_may_not(self, gateway: Reached) -> None:
        assert (await gateway.post("tools/list", {}, role="producer/x")).status_code == 403

    async def test_a_session_is_its_callers_only(self, gateway: Reached) -> None:
        begin = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        opened = await _post_2025(gateway, "initialize", begin)
        session = opened.headers["mcp-session-id"]
        mine = await _post_2025(gateway, "tools/list", {}, session)
        assert mine.status_code == 200
        theirs = await _post_2025(gateway, "tools/list", {}, session, role="user/ada")
        assert theirs.status_code == 404
        elsewhere = await _post_2025(gateway, "tools/list", {}, session, path="/servers/box/mcp")
        assert elsewhere.status_code == 404

    async def test_what_an_agent_may_use_changes_under_it(self, world: World, gateway: Reached) -> None:
        async with gateway.client("box") as client, client.listen(tools_list_changed=True):
            await client.list_tools()
            await world.put(AGENT, "writer", {"mode": "once", **template_of()})
            await _until(gateway, "/servers/box/mcp", 403)
            with pytest.raises(MCPError):
                await client.call_tool("echo", {})


class TestRequests:
    @pytest.mark.parametrize(
        "headers",
        [{"mcp_name": "steps"}, {"mcp_method": "tools/list"}, {"mcp_name": "=?base64?c3RlcHM=?="}],
        ids=["name", "method", "encoded name"],
    )
    async def test_whose_headers_and_body_differ_are_refused(
        self, gateway: Reached, server: ToolServer, headers: dict[str, str]
    ) -> None:
        response = await gateway.post("tools/call", ECHO, path="/servers/box/mcp", **headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)
        assert server.metas == []

    async def test_of_an_unknown_revision_are_told_which_there_are(self, gateway: Reached) -> None:
        response = await gateway.post("tools/list", {}, mcp_protocol_version="2031-01-01")
        assert response.status_code == 400

    async def test_in_a_batch_are_refused(self, gateway: Reached) -> None:
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        batch = json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}])
        for version in ("2026-07-28", "2025-11-25"):
            async with gateway.http() as client:
                response = await client.post(
                    "/mcp", content=batch, headers=headers | {"mcp-protocol-version": version}
                )
            assert response.status_code == 400

    async def test_of_unknown_methods_are_refused(self, gateway: Reached) -> None:
        for method in ("tasks/get", "resources/subscribe", "no/such"):
            response = await gateway.post(method, {"taskId": "x", "uri": "x"}, path="/servers/box/mcp")
            assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)

    async def test_of_web_pages_are_refused(self, gateway: Reached) -> None:
        assert (await gateway.post("tools/list", {}, origin="https://evil.test")).status_code == 403

    async def test_that_are_too_large_are_refused(self, gateway: Reached) -> None:
        arguments = {"name": "echo", "arguments": {"text": "x" * (4 * 1024 * 1024)}}
        assert (await gateway.post("tools/call", arguments, path="/servers/box/mcp")).status_code == 413

    async def test_carry_marked_arguments_as_headers(self, gateway: Reached) -> None:
        async with gateway.client("box") as client:
            await client.list_tools()
            assert text_of(await client.call_tool("marked", {"region": "eu"})) == "eu"


class TestCredentials:
    @pytest.mark.parametrize("name", ["Authorization", "X-Api-Key"])
    async def test_reach_the_server_and_nobody_else(
        self, world: World, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        mine, other = await world.server("mine"), await world.server("other")
        auth = {"mode": "header", "name": name, "secretRef": await world.secret()}
        await world.servers(
            {"name": "mine", "endpoint": mine.url, "auth": auth}, {"name": "other", "endpoint": other.url}
        )
        gateway = await world.gateway()
        path = "/servers/mine/mcp"
        answers = [
            (
                await gateway.post("tools/call", ECHO, path=path, authorization="Bearer mine", cookie="a=b")
            ).text,
            (await gateway.post("tools/list", {})).text,
        ]
        expected = f"Bearer {SECRET}" if name == "Authorization" else SECRET
        assert {seen[name.lower()] for seen in mine.seen} == {expected}
        assert SECRET not in json.dumps([answers, other.seen]) + caplog.text
        assert "Bearer mine" not in json.dumps(mine.seen)
        assert not any("cookie" in seen or "x-agentctl-namespace" in seen for seen in mine.seen)

    async def test_that_are_missing_are_named(self, world: World) -> None:
        auth = {"mode": "header", "secretRef": {"name": "gone", "key": "token"}}
        await world.servers({"name": "mine", "endpoint": "http://127.0.0.1:9/mcp", "auth": auth})
        gateway = await world.gateway()
        response = await gateway.post("tools/call", ECHO, path="/servers/mine/mcp")
        assert "Secret demo/gone with key token is not there" in response.json()["error"]["message"]


class TestArguments:
    async def test_must_satisfy_the_sets_schema(self, world: World, era: str) -> None:
        server = await world.server("box")
        schema = {"type": "object", "properties": {"text": {"pattern": "^[a-z]+$"}}, "required": ["text"]}
        await world.servers({"name": "box", "endpoint": server.url, "arguments": {"echo": schema}})
        gateway = await world.gateway()
        async with gateway.client("box", era) as client:
            assert text_of(await client.call_tool("echo", {"text": "fine"})) == "box: fine"
            for arguments in ({"text": "; rm"}, {}):
                with pytest.raises(MCPError, match="of the server set") as caught:
                    await client.call_tool("echo", arguments)
                assert caught.value.error.data["reason"] == "ARGUMENTS"
        assert len(server.metas) == 1

    async def test_are_not_in_the_log(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        server = await world.server("box")
        await world.servers({"name": "box", "endpoint": server.url, "tools": {"allow": ["steps"]}})
        gateway = await world.gateway()
        await gateway.post("tools/call", {"name": "echo", "arguments": {"text": "confidential"}},
                           path="/servers/box/mcp")  # fmt: skip
        lines = [record for record in caplog.records if record.message == "refused a call of a tool"]
        assert [(line.tool, line.server, line.reason) for line in lines] == [("echo", "box", "TOOL_DENIED")]  # type: ignore[attr-defined]
        assert "confidential" not in caplog.text


async def _until(gateway: Reached, path: str, status: int) -> None:
    async with asyncio.timeout(10):
        while (await gateway.post("tools/list", {}, path=path)).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _post_2025(
    gateway: Reached,
    method: str,
    params: dict[str, Any],
    session: str = "",
    role: str = "agent/writer",
    path: str = "/mcp",
) -> httpx2.Response:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    if session:
        headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with gateway.http(role) as client:
        return await client.post(path, content=json.dumps(body), headers=headers)
