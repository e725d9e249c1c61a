"""One MCP server: connected when it is needed, given up when it is lost. Speaks 2026-07-28 and 2025-11-25.

On 2026-07-28 changes are told on streams of `subscriptions/listen`; on 2025-11-25 on the one stream of the
session (GET), for `resources/subscribe`. When a stream ends the connection is given up: what was told
meanwhile is lost, and a new connection lists and subscribes anew.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar, cast

import anyio
import mcp_types as types
from anyio.abc import TaskGroup, TaskStatus
from mcp import Client, MCPError
from mcp.client.subscriptions import ResourceUpdated

from libs.contract.metrics import SERVER_FAILURES

from ..tls import Believed
from .content import reading_of, result_of
from .errors import ServerAwayError, SubscriptionError
from .session import CONNECT_SECONDS, FAULTS, Session, words
from .tool import Result, Server, Tool
from .transport import was_not_sent

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Tell(Protocol):
    """Takes an event of the agent, as `libs.contract.events.Ring.tell`."""

    def __call__(self, name: str, run_id: str = "", **fields: object) -> object: ...


class Connection:
    """A server of tools. What is asked of it connects to it if need be; `tasks` holds the connections."""

    def __init__(self, server: Server, believed: Believed | None, tell: Tell, tasks: TaskGroup) -> None:
        self.server = server
        self._believed = believed
        self._tell = tell
        self._tasks = tasks
        self._connecting = anyio.Lock()
        self._session: Session | None = None
        """The last one, also if it is lost."""
        self._is_closed = False

    async def connect(self) -> None:
        """ServerAwayError if it cannot be reached now."""
        await self._connected()

    async def close(self) -> None:
        """Ends the session, so that its server need not keep it."""
        self._is_closed = True
        if session := self._session:
            session.lost.set()
            await session.ended.wait()

    async def tools(self) -> Sequence[Tool]:
        """What it offers, as last listed; a server that was lost is not asked before it is needed.
        ServerAwayError if it never said."""
        session = self._session
        if session is None or (session.is_stale and not session.lost.is_set()):
            session = await self._connected()
            try:
                if session.is_stale:
                    await session.list_tools()
            except FAULTS as error:
                _log.warning(
                    "cannot list tools, going on with what there was",
                    extra={"server": self.server.name, "reason": words(error)},
                )
        return session.tools

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], meta: Mapping[str, Any], seconds: float
    ) -> Result:
        """What the tool answers, or why it does not. `seconds` is when whoever waits gives up."""

        async def call(client: Client) -> types.CallToolResult:
            # Nobody is interested any more by the time this one ends; without it, the shorter default would.
            late = seconds + CONNECT_SECONDS
            sent = cast(types.RequestParamsMeta, dict(meta))
            return await client.call_tool(tool.own_name, dict(arguments), late, meta=sent)

        try:
            return result_of(await self._ask(call))
        except FAULTS as error:
            return Result(f"error: {words(error)}", "error", _was_not_sent(error))
        except ServerAwayError as error:
            return Result(f"error: {error}", "error", is_away=True)

    async def read(self, uri: str) -> tuple[str, str]:
        """A resource's text and digest. SubscriptionError if it does not give it, ServerAwayError."""
        try:
            return reading_of((await self._ask(lambda client: client.read_resource(uri))).contents)
        except MCPError as error:
            if error.error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
                raise ServerAwayError(f"{self.server.name}: {words(error)}") from error
            raise SubscriptionError(f"{uri}: {self.server.name}: {words(error)}") from error
        except FAULTS as error:
            raise SubscriptionError(f"{uri}: {self.server.name}: {words(error)}") from error

    async def tells(self) -> bool:
        """Whether it tells of changes of resources. ServerAwayError."""
        resources = (await self._connected()).client.server_capabilities.resources
        return bool(resources and resources.subscribe)

    async def follow(
        self, uris: Sequence[str], begun: Callable[[], None], told: Callable[[str], None]
    ) -> NoReturn:
        """Subscribes, says so, and tells what changes, until that is over. ServerAwayError."""
        session = await self._connected()

        def subscribed() -> None:
            for uri in uris:
                self._tell("resource.subscribed", server=self.server.name, uri=uri)
            begun()

        try:
            with session.used():
                if session.is_modern:
                    await self._listen(session, uris, subscribed, told)
                else:
                    await self._subscribe(session, uris, subscribed, told)
        except FAULTS as error:
            raise ServerAwayError(f"{self.server.name}: {words(error)}") from error
        raise ServerAwayError(f"{self.server.name}: the stream has ended")

    async def _listen(
        self, session: Session, uris: Sequence[str], begun: Callable[[], None], told: Callable[[str], None]
    ) -> None:
        async with session.client.listen(resource_subscriptions=uris) as events:
            if missing := set(uris) - set(events.honored.resource_subscriptions or ()):
                raise ServerAwayError(f"{self.server.name}: does not tell of {', '.join(sorted(missing))}")
            begun()
            async for event in events:
                if isinstance(event, ResourceUpdated):
                    told(event.uri)

    async def _subscribe(
        self, session: Session, uris: Sequence[str], begun: Callable[[], None], told: Callable[[str], None]
    ) -> None:
        with anyio.fail_after(CONNECT_SECONDS):
            await session.streaming.wait()  # what happens before the stream is open is not told
        session.told.append(told)
        try:
            for uri in uris:
                params = types.SubscribeRequestParams(uri=uri)
                await session.client.session.send_request(
                    types.SubscribeRequest(params=params), types.EmptyResult
                )
            begun()
            await session.lost.wait()
        finally:
            session.told.remove(told)

    async def _ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Asks, and once more on a new connection if the server certainly did not take the question."""
        is_second = False
        while True:
            session = await self._connected()
            try:
                with session.used():
                    return await question(session.client)
            except MCPError as error:
                if not _was_not_sent(error):
                    raise
                session.lost.set()
                if is_second:
                    raise
                is_second = True

    async def _connected(self) -> Session:
        async with self._connecting:
            if self._session is None or self._session.lost.is_set():
                session = Session(self.server)
                try:
                    with anyio.fail_after(CONNECT_SECONDS):
                        await self._tasks.start(self._hold, session)
                except TimeoutError:
                    raise self._away("no answer in time") from None
                self._session = session
                self._tell("server.connected", server=self.server.name)
            return self._session

    def _away(self, reason: str) -> ServerAwayError:
        SERVER_FAILURES.inc(self.server.name)
        return ServerAwayError(f"{self.server.name}: {reason}")

    async def _hold(self, session: Session, *, task_status: TaskStatus[None]) -> None:
        reason, is_away = "", False
        try:
            reason = await session.live(self._believed, task_status=task_status)
        except* FAULTS as errors:
            reason, is_away = words(errors), True
        if is_away:
            raise self._away(reason)
        if not self._is_closed:
            self._tell("server.lost", server=self.server.name, reason=reason)
            _log.warning("lost a tool server", extra={"server": self.server.name, "reason": reason})


def _was_not_sent(error: BaseException) -> bool:
    return isinstance(error, MCPError) and was_not_sent(error.error.data)
