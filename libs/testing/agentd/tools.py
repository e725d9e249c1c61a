"""agentd's MCP client: Streamable HTTP, one POST a connection; the modern protocol is tried first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count

import aiohttp

from .exits import Json
from .options import McpServer

MODERN, LEGACY = "2026-07-28", "2025-11-25"
_PROBE_TIMEOUT = 5.0
_CALL_TIMEOUT = 60.0
_META = "io.modelcontextprotocol/"
_NAMED = {"tools/call": "name", "resources/read": "uri"}


class McpError(Exception):
    """The server is away, or answered with an error."""


class ToolServer:
    """One connected server. Without `connect` its lists are empty."""

    def __init__(self, server: McpServer, http: aiohttp.ClientSession, client_version: str) -> None:
        self.name = server.name
        self.tools: list[Json] = []
        self.resources: list[Json] = []
        self.capabilities: Json = {}
        self._url = server.endpoint
        self._http = http
        self._client = {"name": "agentd", "version": client_version}
        self._modern = True
        self._session: str | None = None
        self._ids = count(1)

    @property
    def can_subscribe(self) -> bool:
        """Whether it says that it pushes changes of resources."""
        return bool((self.capabilities.get("resources") or {}).get("subscribe"))

    async def connect(self) -> None:
        """Handshake, tools and resources. Raises McpError."""
        try:
            found = await self._request("server/discover", {}, _PROBE_TIMEOUT)
        except McpError:
            found = await self._initialize()
        self.capabilities = found.get("capabilities") or {}
        if "tools" in self.capabilities:
            self.tools = await self._pages("tools/list", "tools")
        if "resources" in self.capabilities:
            with suppress(McpError):  # resources can be read without being listed
                self.resources = await self._pages("resources/list", "resources")

    async def call(self, tool: str, arguments: Json, meta: Json) -> tuple[str, bool]:
        """A tool's answer as text, and whether it is an error. Raises McpError."""
        result = await self._request("tools/call", {"name": tool, "arguments": arguments, "_meta": meta})
        texts = [str(part["text"]) for part in result.get("content") or [] if "text" in part]
        if not texts and "structuredContent" in result:
            texts = [json.dumps(result["structuredContent"])]
        return "\n".join(texts), bool(result.get("isError"))

    async def read(self, uri: str, within: float = _CALL_TIMEOUT) -> str:
        """A resource's text. Raises McpError."""
        result = await self._request("resources/read", {"uri": uri}, within)
        return "\n".join(str(part["text"]) for part in result.get("contents") or [] if "text" in part)

    async def subscribe(self, uri: str) -> None:
        """Raises McpError. The modern protocol subscribes by listening."""
        if not self._modern:
            await self._request("resources/subscribe", {"uri": uri}, 2.0)

    async def unsubscribe(self, uri: str) -> None:
        """Raises McpError."""
        if not self._modern:
            await self._request("resources/unsubscribe", {"uri": uri}, 2.0)

    async def updates(self, uris: list[str], changed: Callable[[str], None]) -> None:
        """Tells of changes until the stream ends. Raises McpError when the server does not stream."""
        message, headers = None, {"Accept": "text/event-stream", **self._headers("subscriptions/listen", {})}
        if self._modern:
            wanted = {"notifications": {"resourceSubscriptions": uris}}
            message = self._message("subscriptions/listen", wanted, next(self._ids))
            headers["Accept"] = "application/json, text/event-stream"
        endless = aiohttp.ClientTimeout(total=None, sock_connect=_PROBE_TIMEOUT)
        verb = "POST" if self._modern else "GET"
        try:
            async with self._http.request(
                verb, self._url, json=message, headers=headers, timeout=endless
            ) as answer:
                if not answer.ok or answer.content_type != "text/event-stream":
                    raise McpError(f"{self.name}: no stream of updates: HTTP {answer.status}")
                async for event in _events(answer):
                    if event.get("method") == "notifications/resources/updated":
                        changed(str((event.get("params") or {}).get("uri")))
        except (aiohttp.ClientError, TimeoutError):
            return  # it ended; whoever listens opens another

    async def _initialize(self) -> Json:
        self._modern = False
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": self._client}
        result = await self._request("initialize", hello)
        await self._post(self._message("notifications/initialized", {}, None), _CALL_TIMEOUT)
        return result

    async def _pages(self, method: str, key: str) -> list[Json]:
        found: list[Json] = []
        params: Json = {}
        while True:
            page = await self._request(method, params)
            found.extend(page.get(key) or [])
            if not (cursor := page.get("nextCursor")):
                return found
            params = {"cursor": cursor}

    async def _request(self, method: str, params: Json, within: float = _CALL_TIMEOUT) -> Json:
        answer = await self._post(self._message(method, params, next(self._ids)), within)
        if answer is None or not isinstance(answer.get("result"), dict):
            raise McpError(f"{self.name}: {method}: {(answer or {}).get('error', 'no result')}")
        result: Json = answer["result"]
        return result

    async def _post(self, message: Json, within: float) -> Json | None:
        method = message["method"]
        headers = {
            "Accept": "application/json, text/event-stream",
            **self._headers(method, message.get("params", {})),
        }
        try:
            async with (
                asyncio.timeout(within),
                self._http.post(self._url, json=message, headers=headers) as answer,
            ):
                self._session = answer.headers.get("Mcp-Session-Id", self._session)
                if "id" not in message:
                    return None
                if answer.content_type == "text/event-stream":
                    async for event in _events(answer):
                        if event.get("id") == message["id"]:
                            return event
                    raise McpError(f"{self.name}: {method}: the stream ended without an answer")
                body = json.loads(await answer.text())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise McpError(f"{self.name}: {method}: {error or type(error).__name__}") from error
        if not isinstance(body, dict):
            raise McpError(f"{self.name}: {method}: not a JSON-RPC answer")
        return body

    def _headers(self, method: str, params: Json) -> dict[str, str]:
        headers = {"MCP-Protocol-Version": MODERN if self._modern else LEGACY}
        if self._modern:
            headers["Mcp-Method"] = method
            if method in _NAMED:
                headers["Mcp-Name"] = str(params[_NAMED[method]])
        elif self._session:
            headers["Mcp-Session-Id"] = self._session
        return headers

    def _message(self, method: str, params: Json, ident: int | None) -> Json:
        if self._modern:
            about: Json = {
                f"{_META}protocolVersion": MODERN,
                f"{_META}clientInfo": self._client,
                f"{_META}clientCapabilities": {},
            }
            params = {**params, "_meta": {**about, **params.get("_meta", {})}}
        message: Json = {"jsonrpc": "2.0", "method": method, "params": params}
        return message if ident is None else {**message, "id": ident}


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    """The JSON objects of a server-sent event stream; comments and other text pass."""
    data: list[str] = []
    async for line in _lines(answer):
        if line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            with suppress(ValueError):
                event = json.loads("\n".join(data))
                if isinstance(event, dict):
                    yield event
            data = []


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Of any length, unlike those of aiohttp's own reader."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode().rstrip("\r")
