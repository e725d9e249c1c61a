"""A model and a tool server for agents in pods, and a plain port by which a test steers them. Runs in a pod.

The model has no mind. What it says is in what it is asked, after the word `script:`: a JSON list of turns,
of which each answer takes the next. A turn is {"say": text}, {"call": tool, "with": arguments},
{"refuse": text}, {"cut": text} or {"status": HTTP status}; one with {"wait": gate} besides is answered when
that gate is open.

The tool `work` answers `say`, when the gate `wait` is open. The resource `desk://top` is what it was told
to be. On 8443 by TLS: /v1 and /mcp. On 8080: GET /seen, POST
/open/<gate> and /change, and GET /relay/<host>/<port>, which says a port of its loopback that leads there: to
agents, which listen on their pods' addresses, where `kubectl port-forward` does not come.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from contextlib import closing, suppress
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_FILES = "/etc/double"
_DESK = "desk://top"
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


class Double:
    """Both servers, what they were asked, and the gates."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._asked = 0
        self._waiting: Counter[str] = Counter()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._desk = "nothing"
        self._relays: list[asyncio.Server] = []
        self._bus = InMemorySubscriptionBus()

    def inside(self) -> Starlette:
        """What agents call."""
        server = Server(
            "double",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", _models),
        ]
        return server.streamable_http_app(host="0.0.0.0", custom_starlette_routes=routes)

    def outside(self) -> Starlette:
        """What a test calls."""
        return Starlette(
            routes=[
                Route("/seen", self._seen),
                Route("/open/{gate}", self._open, methods=["POST"]),
                Route("/change", self._change, methods=["POST"]),
                Route("/relay/{host}/{port:int}", self._relay),
            ]
        )

    async def _seen(self, _: Request) -> Response:
        return JSONResponse({"calls": self._calls, "asked": self._asked, "waiting": dict(self._waiting)})

    async def _open(self, request: Request) -> Response:
        self._gates[request.path_params["gate"]].set()
        return JSONResponse({})

    async def _change(self, request: Request) -> Response:
        self._desk = (await request.json())["text"]
        await self._bus.publish(ResourceUpdated(uri=_DESK))
        return JSONResponse({})

    async def _relay(self, request: Request) -> Response:
        to = request.path_params

        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                further = await asyncio.open_connection(to["host"], to["port"])
            except OSError:
                writer.close()
                return
            await asyncio.gather(_pump(reader, further[1]), _pump(further[0], writer))

        server = await asyncio.start_server(lead, "127.0.0.1", 0)
        self._relays.append(server)
        return JSONResponse(server.sockets[0].getsockname()[1])

    async def _pass(self, gate: str) -> None:
        if gate and not self._gates[gate].is_set():
            self._waiting[gate] += 1
            try:
                await self._gates[gate].wait()
            finally:
                self._waiting[gate] -= 1

    async def _complete(self, request: Request) -> Response:
        self._asked += 1
        asked = await request.json()
        turn = _turn(asked["messages"])
        await self._pass(turn.get("wait", ""))
        if status := turn.get("status"):
            return JSONResponse({"error": {"message": "as the script says", "type": "error"}}, status)
        message: dict[str, Any] = {"role": "assistant", "content": turn.get("say") or turn.get("cut")}
        finish = "length" if "cut" in turn else "stop"
        if "refuse" in turn:
            message["refusal"] = turn["refuse"]
        if "call" in turn:
            message["tool_calls"], finish = [_tool_call(turn, asked.get("tools", ()))], "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return JSONResponse(
            {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": _USAGE}
        )

    async def _list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        text = {"type": "string"}
        schema = {"type": "object", "properties": {"say": text, "wait": text}}
        tool = types.Tool(name="work", description="does what the script says", input_schema=schema)
        return types.ListToolsResult(tools=[tool])

    async def _call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = dict(params.arguments or {})
        self._calls.append({"arguments": arguments, "meta": dict(params.meta or {})})
        await self._pass(arguments.get("wait", ""))
        return types.CallToolResult(content=[types.TextContent(type="text", text=arguments.get("say", ""))])

    async def _list_resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(name="desk", uri=_DESK)])

    async def _read_resource(
        self, ctx: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        text = types.TextResourceContents(uri=_DESK, mime_type="text/plain", text=self._desk)
        return types.ReadResourceResult(contents=[text])


def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The one that is due: of the last script that was told."""
    told = [str(each["content"]) for each in messages if each["role"] in ("system", "user")]
    script = next(text.partition("script:")[2] for text in reversed(told) if "script:" in text)
    turns = json.JSONDecoder().raw_decode(script.strip())[0]
    answered = sum(each["role"] == "assistant" for each in messages)
    turn: dict[str, Any] = turns[min(answered, len(turns) - 1)]
    return turn


def _tool_call(turn: dict[str, Any], tools: Any) -> dict[str, Any]:
    names = [each["function"]["name"] for each in tools]
    name = next(name for name in names if name.endswith(turn["call"]))
    return {
        "id": "call",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(turn.get("with", {}))},
    }


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer), suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": []})


async def main() -> None:
    """Serves until it is killed."""
    double = Double()
    tls: dict[str, Any] = {
        "ssl_certfile": f"{_FILES}/tls.crt",
        "ssl_keyfile": f"{_FILES}/tls.key",
    }
    inside = uvicorn.Config(double.inside(), host="0.0.0.0", port=8443, log_level="warning", **tls)
    outside = uvicorn.Config(double.outside(), host="0.0.0.0", port=8080, log_level="warning")
    await asyncio.gather(uvicorn.Server(inside).serve(), uvicorn.Server(outside).serve())


if __name__ == "__main__":
    asyncio.run(main())
