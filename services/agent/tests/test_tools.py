"""Tools at real MCP servers of both revisions, which hang, fail, change and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest
from prometheus_client import REGISTRY

from libs.contract.run import Trigger
from libs.contract.statuses import Status
from libs.identity import Identity
from libs.pki import Authority
from libs.testing import ca
from services.agent import tools
from services.agent.order import Order
from services.agent.tools import Result, Server, ServerAwayError, Tool, Toolbox
from services.agent.tools.content import result_of
from services.agent.tools.tool import MAX_NAME, bounded, model_name, named

from .runs import Seen, engine
from .scripted import provider, says
from .toolserver import NEW, OLD, ToolServer, said

SOON = timedelta(seconds=5)


async def echo(arguments: dict[str, Any]) -> types.CallToolResult:
    return said(f"echo {arguments.get('x', '')}")


@pytest.fixture(params=[NEW, OLD])
def server(request) -> ToolServer:
    return ToolServer(request.param, {"echo": echo})


@asynccontextmanager
async def connected(
    *servers: ToolServer, events: list[str] | None = None, **tls: Any
) -> AsyncIterator[Toolbox]:
    def tell(name: str, run_id: str = "", **fields: object) -> None:
        if events is not None:
            events.append(f"{name} {fields['server']}")

    named_servers = [Server(f"s{number}", each.url) for number, each in enumerate(servers)]
    async with tools.connect(named_servers, tell, **tls) as box:
        await box.reach(SOON)
        yield box


async def call(box: Toolbox, name: str, within: timedelta = SOON, **arguments: Any) -> Result:
    (tool,) = [each for each in await box.tools() if each.name == name]
    return await box.call(tool, arguments, {"agentctl.dev/run-id": "r"}, within)


def failures(name: str) -> float:
    return REGISTRY.get_sample_value("agent_mcp_connect_failures_total", {"server": name}) or 0.0


async def until(true: Any) -> None:
    """Lets what is under way happen, up to five seconds of it."""
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110  (nothing tells what the other side has come to)
            await asyncio.sleep(0.001)


# Names


def tool(server: str, name: str) -> Tool:
    return Tool(name, server, name, "", {})


@pytest.mark.parametrize(
    ("server", "name", "expected"),
    [
        ("docs", "read", "docs_read"),
        ("docs", "read_all-now", "docs_read_all-now"),
        ("docs", "a.b", "docs_a_b_"),
        ("docs", "lies/été", "docs_lies__t__"),
        ("my_docs", "read", "my_docs_read_"),
        ("docs", "x" * 100, "docs_xxxx"),
    ],
)
def test_a_name_is_one_that_every_provider_takes(server, name, expected):
    found = model_name(server, name)
    assert found.startswith(expected)
    assert len(found) <= MAX_NAME
    assert found.replace("_", "").replace("-", "").isalnum()
    assert found.isascii()
    assert (found == expected) != expected.endswith(("_", "xxxx"))


def test_names_never_collide_and_do_not_depend_on_what_else_there_is():
    pairs = [("a", "b_c"), ("a_b", "c"), ("a", "b.c"), ("a", "b/c"), ("a", "x" * 99), ("a", "x" * 98)]
    all_of_them = named([tool(*pair) for pair in pairs])
    assert len({each.name for each in all_of_them}) == len(pairs)
    assert all_of_them == named([tool(*pair) for pair in reversed(pairs)])
    for each in all_of_them:
        assert named([tool(each.server, each.own_name)])[0].name == each.name


def test_a_tool_that_takes_the_name_of_another_does_not_get_it():
    stolen = model_name("a_b", "c").removeprefix("a_")
    both = named([tool("a", stolen), tool("a_b", "c")])
    assert len(both) == 2
    assert {(each.server, each.own_name) for each in both} == {("a", stolen), ("a_b", "c")}


def test_a_tool_that_is_listed_twice_is_one():
    assert len(named([tool("a", "b"), tool("a", "b")])) == 1


# Content


def test_what_is_no_text_is_named():
    blocks: list[types.ContentBlock] = [
        types.TextContent(type="text", text="See:"),
        types.ImageContent(type="image", data="AAAA", mime_type="image/png"),
        types.ResourceLink(type="resource_link", uri="mem://a", name="a"),
        types.EmbeddedResource(
            type="resource", resource=types.TextResourceContents(uri="mem://b", text="inside")
        ),
        types.EmbeddedResource(
            type="resource", resource=types.BlobResourceContents(uri="mem://c", blob="AAAA")
        ),
    ]
    assert result_of(types.CallToolResult(content=blocks)).text.splitlines() == [
        "See:",
        "[image image/png, 4 characters of base64, not shown]",
        "[link to mem://a: a]",
        "[mem://b]",
        "inside",
        "[mem://c]",
        "[binary, 4 characters of base64, not shown]",
    ]


def test_structured_content_speaks_where_there_is_no_text():
    assert result_of(types.CallToolResult(content=[], structured_content={"n": 1})).text == '{"n": 1}'
    assert result_of(said("one", structured_content={"n": 1})).text == "one"
    assert result_of(types.CallToolResult(content=[])).text == "(no content)"


def test_a_result_fits_or_says_by_how_much_it_does_not():
    assert bounded(Result("abc"), 3) == Result("abc")
    assert bounded(Result("abcd"), 3).outcome == "error"


# Servers


async def test_a_tool_is_called_with_its_arguments_and_who_asks(server):
    events: list[str] = []
    async with server.serving(), connected(server, events=events) as box:
        (offered,) = await box.tools()
        assert (offered.name, offered.own_name, offered.description) == ("s0_echo", "echo", "does echo")
        assert offered.schema["properties"] == {"x": {"type": "string"}}
        assert await call(box, "s0_echo", x="1") == Result("echo 1")
        assert await call(box, "s0_echo", x="2") == Result("echo 2")
    assert server.calls[0].arguments == {"x": "1"}
    assert server.calls[0].meta["agentctl.dev/run-id"] == "r"
    assert server.lists == 1  # not once for each call
    assert events == ["server.connected s0"]


async def test_a_changed_list_is_read_again(server):
    async with server.serving(), connected(server) as box:
        assert [each.name for each in await box.tools()] == ["s0_echo"]
        await server.offer(other=echo, more=echo)
        async with asyncio.timeout(5):
            while [each.name for each in await box.tools()] != ["s0_more", "s0_other"]:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_tool_that_fails_says_so(server):
    async def fail(_: dict[str, Any]) -> types.CallToolResult:
        return said("disk on fire", is_error=True)

    async def crash(_: dict[str, Any]) -> types.CallToolResult:
        raise ValueError("a bug")

    server.tools |= {"fail": fail, "crash": crash}
    async with server.serving(), connected(server) as box:
        assert await call(box, "s0_fail") == Result("error: disk on fire", "error")
        crashed = await call(box, "s0_crash")
        assert (crashed.outcome, crashed.is_away) == ("error", False)
        assert await call(box, "s0_echo", x="1") == Result("echo 1")


async def test_a_tool_that_hangs_is_given_up_and_told_so(server):
    async def hang(_: dict[str, Any]) -> types.CallToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    server.tools["hang"] = hang
    async with server.serving(), connected(server) as box:
        hung = await call(box, "s0_hang", timedelta(seconds=0.2))
        assert hung.outcome == "timeout"
        assert "no answer within 0.2 s" in hung.text
        await until(lambda: server.cancelled == 1)
        assert await call(box, "s0_echo", x="1") == Result("echo 1")


async def test_a_run_that_is_cancelled_inside_a_tool_leaves_no_task_behind(server):
    begun = asyncio.Event()

    async def hang(_: dict[str, Any]) -> types.CallToolResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    server.tools["hang"] = hang
    asks = says("", ("s0_hang", {}))
    async with server.serving(), connected(server) as box, provider(asks) as it:
        await call(box, "s0_echo")
        async with engine(it, box) as doer:
            before = {each for each in asyncio.all_tasks() if "mcp" in repr(each.get_coro())}
            running = asyncio.create_task(doer.run(Order("r", Trigger.ONCE, "Do."), Seen()))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await until(lambda: server.cancelled == 1)
            await until(
                lambda: not [each for each in asyncio.all_tasks() - before if "mcp" in repr(each.get_coro())]
            )


async def test_a_run_calls_real_tools(server):
    asks = says("", ("s0_echo", {"x": "1"}), ("s0_echo", {"x": "2"}))
    async with (
        server.serving(),
        connected(server) as box,
        provider(asks, says("Done.")) as it,
        engine(it, box) as doer,
    ):
        end = await doer.run(Order("run-7", Trigger.ONCE, "Do.", depth=2), Seen())
    assert end.status is Status.COMPLETED
    assert it.heard == ["echo 1", "echo 2"]
    assert server.calls[0].meta["agentctl.dev/run-id"] == "run-7"
    assert server.calls[0].meta["agentctl.dev/depth"] == 3


@pytest.mark.parametrize("is_json", [False, True])
async def test_a_reply_that_is_far_too_large_is_not_read_to_its_end(server, is_json):
    async def huge(_: dict[str, Any]) -> types.CallToolResult:
        return said("x" * (9 * 1024 * 1024))

    server.tools["huge"], server.is_json = huge, is_json
    async with server.serving(), connected(server) as box:
        result = await call(box, "s0_huge")
        assert result.outcome == "error"
        assert len(result.text) < 1000
        assert await call(box, "s0_echo", x="1") == Result("echo 1")


async def test_a_call_that_broke_off_is_not_made_twice(server):
    async def breaks(_: dict[str, Any]) -> types.CallToolResult:
        await server.cut("POST")
        return said("nobody hears this")

    server.tools["breaks"] = breaks
    async with server.serving(), connected(server) as box:
        broken = await call(box, "s0_breaks")
        assert (broken.outcome, broken.is_away) == ("error", False)
        assert len(server.calls) == 1
        assert await call(box, "s0_echo", x="1") == Result("echo 1")


async def test_a_call_under_way_outlives_the_stream_of_its_session():
    async def slow(_: dict[str, Any]) -> types.CallToolResult:
        await server.cut("GET")
        await until(lambda: "server.lost s0" in events or len(server.calls) == 2)
        return said("done")

    events: list[str] = []
    server = ToolServer(OLD, {"slow": slow, "echo": echo})
    async with server.serving(), connected(server, events=events) as box:
        async with asyncio.TaskGroup() as tasks:
            calling = tasks.create_task(call(box, "s0_slow"))
            await until(lambda: len(server.calls) == 1)
            async with asyncio.timeout(5):
                while events.count("server.connected s0") < 2:
                    assert await call(box, "s0_echo", x="1") == Result("echo 1")
        assert calling.result() == Result("done")


async def test_a_server_that_was_lost_is_connected_again_when_it_is_needed(server):
    events: list[str] = []
    async with server.serving():
        stack = connected(server, events=events)
        box = await stack.__aenter__()
        await call(box, "s0_echo")
    try:
        await until(lambda: "server.lost s0" in events)
        before = failures("s0")
        lost = await call(box, "s0_echo")
        assert (lost.outcome, lost.is_away) == ("error", True)
        assert failures("s0") == before + 1
        async with server.serving():
            assert await call(box, "s0_echo", x="1") == Result("echo 1")
            assert events.count("server.connected s0") == 2
    finally:
        await stack.__aexit__(None, None, None)


async def test_a_server_that_is_away_harms_no_other(unused_port):
    one, two = ToolServer(tools={"echo": echo}), ToolServer(tools={"echo": echo})
    async with two.serving():
        async with one.serving():
            stack = connected(one, two)
            box = await stack.__aenter__()
        try:
            assert (await call(box, "s0_echo")).is_away
            assert await call(box, "s1_echo", x="1") == Result("echo 1")
        finally:
            await stack.__aexit__(None, None, None)


async def test_a_server_that_forgot_the_session_gets_a_new_one():
    server = ToolServer(OLD, {"echo": echo})
    async with server.serving(), connected(server) as box:
        await call(box, "s0_echo")
        await server.forget()
        assert await call(box, "s0_echo", x="1") == Result("echo 1")


async def test_a_server_that_stays_away_is_named(unused_port):
    away = [Server("gone", f"http://127.0.0.1:{unused_port}/mcp")]
    async with tools.connect(away, lambda *_, **__: None) as box:
        with pytest.raises(ServerAwayError, match="gone: "):
            await box.reach(timedelta(seconds=0.1))
        with pytest.raises(ServerAwayError, match="gone: "):
            await box.tools()


async def test_a_server_that_comes_late_is_waited_for():
    server = ToolServer(tools={"echo": echo})
    async with server.serving():
        pass  # it has a port now
    async with tools.connect([Server("late", server.url)], lambda *_, **__: None) as box:
        reaching = asyncio.create_task(box.reach(SOON))
        await until(lambda: failures("late") > 0)
        async with server.serving():
            await reaching
            assert [each.name for each in await box.tools()] == ["late_echo"]


async def test_without_servers_there_is_nothing():
    async with tools.connect([], lambda *_, **__: None) as box:
        await box.reach(SOON)
        assert await box.tools() == []


# TLS


@pytest.fixture
def ours(tmp_path) -> Identity:
    return ca.identity(ca.authority(), tmp_path, "/ns/a/agent/x/pod/x-0/u1")


@pytest.fixture
def secure(tmp_path) -> ToolServer:
    its = ca.identity(ca.authority(), tmp_path, "/cp/tools", dns_names=["localhost"])
    tls = (str(its.certificate), str(its.key), str(its.root))
    return ToolServer(tools={"echo": echo}, tls=tls)


def lone(
    server: ToolServer, *, is_shown_ours: bool = True, **tls: Any
) -> AbstractAsyncContextManager[Toolbox]:
    found = Server("s", server.url, is_shown_ours=is_shown_ours)
    return tools.connect([found], lambda *_, **__: None, **tls)


async def test_our_certificate_is_shown_and_the_mesh_believed(secure, ours):
    async with secure.serving(), lone(secure, identity=ours) as box:
        await box.reach(SOON)
        assert await call(box, "s_echo", x="1") == Result("echo 1")


async def test_a_server_that_is_not_said_to_be_shown_our_certificate_does_without_it(secure, ours):
    async with secure.serving(), lone(secure, is_shown_ours=False, ca_file=ours.root, identity=ours) as box:
        with pytest.raises(ServerAwayError):
            await box.reach(timedelta(seconds=0.1))


async def test_a_server_that_nobody_vouches_for_is_not_believed(secure, ours, tmp_path):
    ours.root.write_text(Authority.create(tmp_path / "strange", "mesh.test").bundle.root)
    async with secure.serving(), lone(secure, identity=ours) as box:
        with pytest.raises(ServerAwayError, match=r"(?i)certificate"):
            await box.reach(timedelta(seconds=0.1))


async def test_a_certificate_that_was_renewed_counts_from_the_next_connection_on(secure, ours, tmp_path):
    strange = Authority.create(tmp_path / "strange", "mesh.test")
    good = {each: each.read_bytes() for each in (ours.key, ours.certificate)}
    strange.issue("spiffe://mesh.test/ns/a/agent/x/pod/x-0/u1", ours.folder)
    root = tmp_path / "root.crt"
    root.write_text(ca.authority().bundle.root)
    async with secure.serving(), lone(secure, ca_file=root, identity=ours) as box:
        with pytest.raises(ServerAwayError):
            await box.reach(timedelta(seconds=0.1))
        for path, content in good.items():
            path.write_bytes(content)
        await box.reach(SOON)
        assert await call(box, "s_echo", x="1") == Result("echo 1")
