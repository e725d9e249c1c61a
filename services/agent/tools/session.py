"""One connection to an MCP server, from its beginning to its end, as the SDK's client makes it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskStatus
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ..tls import Believed
from .tool import Server, Tool
from .transport import Transport, http_client

CONNECT_SECONDS = 10.0
_STREAM_SECONDS = 1.0
_MOST_PAGES = 100
_MOST_TOOLS = 1024
_MOST_DESCRIBED = 1024 * 1024  # characters on a server's tools; each turn with the model has them
_MOST_WORDS = 500
FAULTS = (MCPError, ValidationError, RuntimeError, OSError)
"""What a server can make the client raise. RuntimeError is the SDK's for answers against the protocol, and
the base of httpx2's for replies that break off."""

_log = logging.getLogger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # below it is a line for every request
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its errors quote content; what it raises is told here


class Session:
    """A connection, and who is using it. It is `lost` when a stream of its has ended, which loses what was
    told meanwhile; who has a call under way then still gets the answer."""

    client: Client
    tools: Sequence[Tool] = ()
    """As last listed; `is_stale` if they are not that any more."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.lost = anyio.Event()
        self.ended = anyio.Event()
        self.streaming = anyio.Event()
        self.is_stale = True
        self.told: list[Callable[[str], None]] = []
        """Takes the URIs of resources that change; on 2025-11-25, where they are told to all."""
        self._users = 0
        self._left = anyio.Event()

    async def live(self, believed: Believed | None, *, task_status: TaskStatus[None]) -> str:
        """Connects, lists the tools, is started, and stays until it is lost and unused. Beginning and end are
        in one task because the SDK wants that. Why it ended; one of FAULTS, in groups, if it never began."""
        transport, reason, is_begun = Transport(believed, self.streaming.set, self.lost.set), "", False
        try:
            async with http_client(transport) as http, self._made(http) as self.client:
                self.client.session.validate_tool_result = _believe  # type: ignore[method-assign]
                async with anyio.create_task_group() as streams:
                    await streams.start(self._follow_tools)
                    await self.list_tools()
                    is_begun = True
                    task_status.started()
                    await self.lost.wait()
                    streams.cancel_scope.cancel()
                await self._unused()  # calls under way end well, on the connection that they began on
        except* FAULTS as errors:
            if not is_begun:
                raise
            reason = words(errors)
        finally:
            self.lost.set()
            self.ended.set()
        return reason or "the connection has ended"

    @property
    def is_modern(self) -> bool:
        """Whether it is one of 2026-07-28."""
        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keeps it while somebody waits for an answer."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._left.set()

    async def _unused(self) -> None:
        """Returns when nobody does."""
        while self._users:
            self._left = anyio.Event()
            await self._left.wait()

    async def list_tools(self) -> None:
        """All tools, as many as are taken. The SDK needs to have seen them too: else it lists them all again
        in every call."""
        self.is_stale = False  # before: the list may change while it is read
        tools: list[Tool] = []
        left = _MOST_DESCRIBED
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                async for tool in self._listed():
                    left -= len(tool.description) + len(json.dumps(tool.schema))
                    if left < 0 or len(tools) == _MOST_TOOLS:
                        taken = {"server": self.server.name, "taken": len(tools)}
                        _log.warning("too many tools", extra=taken)
                        break
                    tools.append(tool)
            self.tools = tools
        except FAULTS:
            self.is_stale = True
            raise

    async def _listed(self) -> AsyncIterator[Tool]:
        if self.client.server_capabilities.tools is None:
            return
        cursor = None
        for _ in range(_MOST_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            for it in page.tools:
                yield Tool(
                    it.name, self.server.name, it.name, it.description or it.title or "", it.input_schema
                )
            if (cursor := page.next_cursor) is None:
                return

    def _made(self, http: Any) -> Client:
        async def hear(message: object) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                self.is_stale = True
            elif isinstance(message, types.ResourceUpdatedNotification):
                for told in self.told:
                    told(str(message.params.uri))

        transport = streamable_http_client(self.server.endpoint, http_client=http)
        us = types.Implementation(name="agentctl-agent", version="1.0")
        return Client(
            transport, read_timeout_seconds=CONNECT_SECONDS, message_handler=hear, client_info=us, cache=None
        )

    async def _follow_tools(self, *, task_status: TaskStatus[None]) -> None:
        """Has changes of the list told, which `hear` gets; started when none can be missed any more."""
        tools = self.client.server_capabilities.tools
        if tools and tools.list_changed and self.is_modern:
            try:
                async with self.client.listen(tools_list_changed=True) as events:
                    task_status.started()
                    async for _ in events:
                        self.is_stale = True
                self.lost.set()
            except SubscriptionLost:
                self.lost.set()
            except FAULTS as error:
                _log.info("no news of tools", extra={"server": self.server.name, "reason": words(error)})
                task_status.started()
            return
        if tools and tools.list_changed:
            with anyio.move_on_after(_STREAM_SECONDS):  # there are servers without one
                await self.streaming.wait()
        task_status.started()


async def _believe(name: str, result: types.CallToolResult) -> None:
    """A result is the model's to judge. Held against the schema that its server gives it, one pattern could
    take the process for ever."""


def words(error: BaseException) -> str:
    """What an error says, on one short line; of a group the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return next(iter(str(error)[:_MOST_WORDS].splitlines()), "") or type(error).__name__
