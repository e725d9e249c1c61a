"""The servicer: tools by gRPC, under the servers' own names."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Struct

from agentctl.mcpgateway.v1 import mcpgateway_service_pb2 as pb
from agentctl.mcpgateway.v1 import mcpgateway_service_pb2_grpc as pb_grpc
from libs.errors import InvalidError, PreconditionError, UnavailableError
from libs.rpc.call import Call

from .objects import SET_HEADER, Objects
from .upstreams import Upstreams
from .view import Caller, View
from .wire import Json, RpcError

_MOST_SECONDS = 600.0
_MARGIN_SECONDS = 0.05  # so that the caller hears why


class McpGateway(pb_grpc.McpGatewayServiceServicer):
    """McpGatewayService, over the servers that the caller may use."""

    def __init__(self, objects: Objects, upstreams: Upstreams) -> None:
        self._objects = objects
        self._upstreams = upstreams

    async def ListTools(self, request: pb.ListToolsRequest, context: object) -> pb.ListToolsResponse:
        call = Call.of(context)
        tools, troubles = await self._view(call, request.server).tools()
        return pb.ListToolsResponse(
            tools=[
                pb.Tool(
                    server=server,
                    name=str(each.get("name")),
                    description=str(each.get("description") or each.get("title") or ""),
                    input_schema=_struct(each.get("inputSchema")),
                )
                for server, found in tools.items()
                for each in sorted(found, key=lambda each: str(each.get("name")))
            ],
            troubles=[pb.ServerTrouble(server=server, message=why) for server, why in troubles.items()],
        )

    async def CallTool(self, request: pb.CallToolRequest, context: object) -> pb.CallToolResponse:
        call = Call.of(context)
        if not request.server or not request.tool:
            raise InvalidError(violations={"server, tool": "both are needed"})
        view = self._view(call, request.server)
        wanted = request.timeout.ToTimedelta().total_seconds() or _MOST_SECONDS
        if not 0 < wanted <= _MOST_SECONDS:
            raise InvalidError(violations={"timeout": f"at most {_MOST_SECONDS:g} s"})
        seconds = min(wanted, max(0.0, call.time_remaining() - _MARGIN_SECONDS))
        params = {"name": request.tool, "arguments": _plain(MessageToDict(request.arguments))}
        try:
            result = await view.call_tool(params, Caller(call.caller.id, seconds=seconds))
        except RpcError as error:  # in the answer, since what servers say is for nobody's log
            return pb.CallToolResponse(content=[_text(error.message)], is_error=True)
        if result.get("resultType", "complete") != "complete":
            raise PreconditionError(f"{request.server} asks for input, which only MCP carries")
        content = result.get("content")
        return pb.CallToolResponse(
            content=[each for each in map(_struct, content if isinstance(content, list) else ()) if each],
            structured_content=_struct(result.get("structuredContent")),
            is_error=result.get("isError") is True,
        )

    def _view(self, call: Call, server: str) -> View:
        asked = call.metadata.get(SET_HEADER, "")
        grant = self._objects.grant(call.caller, asked if isinstance(asked, str) else "")
        if server:
            grant = self._objects.only(grant, call.caller, server)
        return View(self._upstreams.of(grant), is_merged=not server)


def _text(words: str) -> Struct:
    return ParseDict({"type": "text", "text": words}, Struct())


def _struct(value: object) -> Struct | None:
    """UnavailableError if a server gave what a Struct cannot hold."""
    if not isinstance(value, dict):
        return None
    try:
        return ParseDict(value, Struct())
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise UnavailableError("the server answered with what gRPC cannot carry") from error


def _plain(value: Any) -> Json:
    """A Struct has doubles only; whole numbers are whole again, as JSON Schema's integers want them."""
    return {name: _whole(each) for name, each in value.items()}


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return _plain(value)
        case list():
            return [_whole(each) for each in value]
        case _:
            return value
