"""What `POST /mcp` answers: MCP for its tools and resources, the operator's verbs, A2A."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator

from . import a2a, push, verbs
from .exits import Json
from .resources import Resources
from .rpc import INTERNAL, INVALID_PARAMS, UNKNOWN_METHOD, Request, RpcError, text
from .served import Served
from .supervisor import Supervisor

VERSIONS = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
_CAPABILITIES: Json = {"tools": {}, "resources": {"subscribe": True}}
_TOOLS: dict[str, Json] = {
    "status": {},
    "subagent.spawn": {
        "instruction": {"type": "string"},
        "output_contract": {"type": "string"},
        "tool_scope": {"type": "array", "items": {"type": "string"}},
        "async": {"type": "boolean"},
        "warm": {"type": "boolean"},
    },
    "subagent.send": {"handle": {"type": "string"}, "message": {"type": "string"}},
    "subagent.status": {"handle": {"type": "string"}},
    "subagent.cancel": {"handle": {"type": "string"}},
}


class Management:
    """One request in, one result out, or a stream of frames. Every refusal is an RpcError."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.session_id = secrets.token_hex(16)
        served = Served(supervisor)
        self._served = served
        self._resources = Resources(supervisor, served)
        self._verbs = verbs.Verbs(supervisor, served)
        self._a2a = a2a.A2a(served)

    def stream(self, request: Request) -> AsyncIterator[Json] | None:
        """The frames, when the method is one that streams."""
        if request.method == push.METHOD:
            return push.listen(self.supervisor.journal, request)
        method = a2a.method_of(request.method)
        return self._a2a.open(request, method) if method in a2a.STREAMING else None

    async def call(self, request: Request) -> Json:
        """The result of every other method."""
        method, params = request.method, request.params
        if method in verbs.METHODS:
            return self._verbs.call(method, params)
        if bare := a2a.method_of(method):
            return await self._a2a.call(bare, params)
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                version = asked if asked in VERSIONS[1:] else VERSIONS[1]
                return {
                    "protocolVersion": version,
                    "capabilities": _CAPABILITIES,
                    "serverInfo": self._about(),
                }
            case "server/discover":
                return {
                    "resultType": "complete",
                    "supportedVersions": VERSIONS,
                    "capabilities": _CAPABILITIES,
                    "serverInfo": self._about(),
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [_tool(name, properties) for name, properties in _TOOLS.items()]}
            case "tools/call":
                arguments = params.get("arguments")
                return await self._tool(
                    text(params, "name"), arguments if isinstance(arguments, dict) else {}
                )
            case "resources/list":
                return self._resources.listing()
            case "resources/read":
                return await self._resources.read(text(params, "uri"))
        raise RpcError(UNKNOWN_METHOD, f"unknown method {method}")

    async def _tool(self, name: str, arguments: Json) -> Json:
        if name == "status":
            return _answer(self._resources.status())
        if name == "subagent.spawn":
            return await self._spawn(arguments)
        if name == "subagent.status":
            return _answer(self._resources.subagent(text(arguments, "handle")))
        if name == "subagent.cancel":
            handle = text(arguments, "handle")
            return _answer({"handle": handle, "cancelled": self._served.cancel(handle) > 0})
        if name == "subagent.send":
            return _answer({"error": "the stand-in has no warm sessions"}, is_error=True)
        raise RpcError(INVALID_PARAMS, f"unknown tool {name}")

    async def _spawn(self, arguments: Json) -> Json:
        instruction = text(arguments, "instruction")
        if arguments.get("warm"):
            return _answer({"error": "the stand-in has no warm sessions"}, is_error=True)
        waited = not arguments.get("async")
        run = self._served.begin(instruction, reachable=not waited)
        if run is None:
            raise RpcError(INTERNAL, "spawn refused")
        if waited:
            await run.ended.wait()
        return _answer(self._resources.subagent(run.task.handle), is_error=run.status not in _FINE)

    def _about(self) -> Json:
        return {"name": "agentd", "version": self.supervisor.options.agent_version}


_FINE = ("running", "completed")


def _tool(name: str, properties: Json) -> Json:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def _answer(body: Json, *, is_error: bool = False) -> Json:
    content = [{"type": "text", "text": json.dumps(body)}]
    return {"content": content, "structuredContent": body, "isError": is_error}
