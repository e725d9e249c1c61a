"""Tools by gRPC."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from prometheus_client import REGISTRY

from agentctl.mcpgateway.v1 import mcpgateway_service_pb2 as pb
from libs.errors import DeadlineError, DeniedError, InvalidError, NotFoundError

from .upstream_servers import ToolServer
from .world import OTHER, Reached, World

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["to-modern", "to-legacy"])
async def server(request: pytest.FixtureRequest, world: World) -> ToolServer:
    return await world.server("box", is_legacy=request.param)


@pytest.fixture
async def gateway(world: World, server: ToolServer) -> Reached:
    await world.servers(
        {
            "name": "box",
            "endpoint": server.url,
            "tools": {"deny": ["delete_*"]},
            "arguments": {"steps": {"properties": {"count": {"type": "integer"}}}},
        },
        {"name": "gone", "endpoint": "http://127.0.0.1:9/mcp"},
    )
    return await world.gateway()


def _call(tool: str, server: str = "box", **arguments: object) -> pb.CallToolRequest:
    return pb.CallToolRequest(server=server, tool=tool, arguments=ParseDict(arguments, Struct()))


async def test_tools_are_listed_and_servers_that_do_not_say_are_named(gateway: Reached) -> None:
    stub = await gateway.stub()
    listed = await stub.ListTools(pb.ListToolsRequest())
    assert [(tool.server, tool.name) for tool in listed.tools] == [
        ("box", name) for name in ("broken", "echo", "hang", "large", "marked", "steps", "ticks")
    ]
    assert listed.tools[1].description == "echo."
    assert MessageToDict(listed.tools[1].input_schema)["type"] == "object"
    assert [trouble.server for trouble in listed.troubles] == ["gone"]
    only = await stub.ListTools(pb.ListToolsRequest(server="gone"))
    assert (len(only.tools), len(only.troubles)) == (0, 1)


async def test_a_tool_is_called(gateway: Reached) -> None:
    stub = await gateway.stub()
    said = await stub.CallTool(_call("echo", text="nine"))
    assert MessageToDict(said.content[0])["text"] == "box: nine"
    assert (MessageToDict(said.structured_content), said.is_error) == ({"length": 9}, False)
    assert (await stub.CallTool(_call("broken"))).is_error
    await stub.CallTool(_call("steps", count=3))


async def test_what_may_not_be_is_refused(gateway: Reached) -> None:
    stub = await gateway.stub()
    with pytest.raises(DeniedError):
        await stub.CallTool(_call("delete_all"))
    with pytest.raises(InvalidError, match="count"):
        await stub.CallTool(_call("steps", count=1.5))
    with pytest.raises(NotFoundError):
        await stub.CallTool(_call("echo", server="nowhere"))
    with pytest.raises(DeniedError):  # it has no object
        await (await gateway.stub("agent/stranger")).CallTool(_call("echo"))
    with pytest.raises(DeniedError):
        await (await gateway.stub(namespace=OTHER)).CallTool(_call("echo"))
    with pytest.raises(NotFoundError):
        await (await gateway.stub("user/eve", OTHER)).CallTool(_call("echo"))
    with pytest.raises(DeniedError):
        await (await gateway.stub("producer")).CallTool(_call("echo"))


async def test_a_call_has_only_so_much_time(gateway: Reached) -> None:
    stub = await gateway.stub()
    request = _call("hang")
    request.timeout.CopyFrom(Duration(nanos=300_000_000))
    with pytest.raises(DeadlineError, match="box did not answer in time"):
        await stub.CallTool(request)
    request.timeout.CopyFrom(Duration(seconds=601))
    with pytest.raises(InvalidError):
        await stub.CallTool(request)


async def test_calls_are_counted_by_names_that_the_server_lists(gateway: Reached) -> None:
    stub = await gateway.stub()

    def count(tool: str, result: str) -> float:
        labels = {"namespace": "demo", "server": "box", "tool": tool, "result": result}
        return REGISTRY.get_sample_value("agentctl_mcpgateway_calls_total", labels) or 0

    before = count("echo", "ok"), count("other", "refused"), count("other", "error")
    await stub.CallTool(_call("echo"))
    with pytest.raises(DeniedError):
        await stub.CallTool(_call("delete_all"))
    assert (await stub.CallTool(_call("made-up"))).is_error
    after = count("echo", "ok"), count("other", "refused"), count("other", "error")
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]
