"""All tools of an agent, whichever servers they are on, and the resources that it is told about."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from libs.contract.metrics import SUBSCRIPTIONS
from libs.identity import Identity

from ..backoff import Pauses
from ..tls import Believed
from .errors import ServerAwayError, SubscriptionError
from .tool import Result, Server, Tool, named

if TYPE_CHECKING:
    from .connection import Connection, Tell

_STEADY_SECONDS = 60.0  # a subscription that stood so long is no reason to wait before the next
_GOODBYE_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Changed:
    """A resource is, or may be, no longer what it was."""

    uri: str


@asynccontextmanager
async def connect(
    servers: Sequence[Server], tell: Tell, *, ca_file: Path | None = None, identity: Identity | None = None
) -> AsyncIterator[Toolbox]:
    """The tools of these servers, none of which is connected yet. https servers are believed by the system's
    authorities and those in `ca_file`. Those that are shown our certificate are shown that of `identity` if
    they ask for one, and its root is believed of them too."""
    async with anyio.create_task_group() as tasks:
        toolbox = Toolbox(tasks, [])
        if servers:
            from .connection import Connection  # costly

            believed = {False: Believed(ca_file), True: Believed(ca_file, identity)}

            def tls(server: Server) -> Believed | None:
                return believed[server.is_shown_ours] if server.endpoint.startswith("https:") else None

            toolbox = Toolbox(tasks, [Connection(each, tls(each), tell, tasks) for each in servers])
        try:
            yield toolbox
        finally:
            with anyio.move_on_after(_GOODBYE_SECONDS, shield=True):
                await toolbox.close()
            tasks.cancel_scope.cancel()


class Toolbox:
    """The tools that may be called. A server that is away harms only what is asked of it."""

    def __init__(self, tasks: TaskGroup, connections: Sequence[Connection]) -> None:
        self._tasks = tasks
        self._connections = {each.server.name: each for each in connections}
        self._subscribed: dict[str, int] = {}
        self._homes: dict[str, str] = {}
        self._watching: set[anyio.CancelScope] = set()

    async def reach(self, within: timedelta) -> None:
        """Connects to all servers, trying again for so long. ServerAwayError names one that stays away."""
        until = anyio.current_time() + within.total_seconds()
        async with asyncio.TaskGroup() as tasks:
            looking = [tasks.create_task(_reach(each, until)) for each in self._connections.values()]
        for each in looking:
            if error := each.result():
                raise error

    async def close(self) -> None:
        """Ends what is watched, and the sessions."""
        for scope in self._watching:
            scope.cancel()
        async with asyncio.TaskGroup() as tasks:
            for each in self._connections.values():
                tasks.create_task(each.close())

    async def tools(self) -> Sequence[Tool]:
        """What may be called now, in an order that does not change. ServerAwayError names one that never
        said what it offers; one that was lost still stands for what it did."""
        return named([tool for each in self._connections.values() for tool in await each.tools()])

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], meta: Mapping[str, Any], within: timedelta
    ) -> Result:
        """What the tool says, or in words for the model why it does not. Never repeated once its server may
        have begun it."""
        seconds = within.total_seconds()
        with anyio.move_on_after(seconds):
            return await self._connections[tool.server].call(tool, arguments, meta, seconds)
        return Result(f"error: no answer within {seconds:g} s; whether it was done is not known", "timeout")

    async def read(self, uri: str) -> tuple[str, str]:
        """A resource's text and a digest of all that it holds, from the server that it is watched at, else
        from the first that gives it. SubscriptionError or ServerAwayError if none does."""
        failed: ServerAwayError | SubscriptionError = SubscriptionError(f"{uri}: there are no servers")
        home = self._homes.get(uri)
        for name, each in self._connections.items():
            try:
                if home in (None, name):
                    return await each.read(uri)
            except (ServerAwayError, SubscriptionError) as error:
                failed = error
        raise failed

    async def watch(self, uris: Sequence[str]) -> AsyncIterator[Changed]:
        """The resources that change, each at the first server that gives it and tells of its changes. Each
        also once whenever it is subscribed, the first time included: it may have changed before. Those that
        change faster than they are taken come once. SubscriptionError names one that nobody serves."""
        homes: dict[str, list[str]] = {}
        for uri in uris:
            self._homes[uri] = home = await self._home(uri)
            homes.setdefault(home, []).append(uri)
        changes = Changes()
        scopes = {name: anyio.CancelScope() for name in homes}
        self._watching.update(scopes.values())
        for name, served in homes.items():
            self._tasks.start_soon(self._keep, self._connections[name], served, changes.put, scopes[name])
        try:
            while True:
                yield Changed(await changes.take())
        finally:
            self._watching.difference_update(scopes.values())
            for scope in scopes.values():
                scope.cancel()

    async def _home(self, uri: str) -> str:
        away: ServerAwayError | None = None
        for name, each in self._connections.items():
            try:
                if await each.tells():
                    await each.read(uri)
                    return name
            except SubscriptionError as error:
                _log.info("not there", extra={"uri": uri, "server": name, "reason": str(error)})
            except ServerAwayError as error:
                away = error
        raise away or SubscriptionError(f"{uri}: no server gives it and tells of its changes")

    async def _keep(
        self,
        connection: Connection,
        uris: Sequence[str],
        told: Callable[[str], None],
        scope: anyio.CancelScope,
    ) -> None:
        """Subscribed for ever, and again when that is lost."""

        def begun() -> None:
            self._count(connection.server.name, len(uris))
            for uri in uris:
                told(uri)

        def changed(uri: str) -> None:
            for each in uris:
                if uri == each or uri.startswith(
                    each.rstrip("/") + "/"
                ):  # MCP: may name a part of what one has
                    told(each)

        waits = Pauses(0.2, 30.0)
        with scope:
            while True:
                since = anyio.current_time()
                try:
                    await connection.follow(uris, begun, changed)
                except ServerAwayError as error:
                    _log.warning("subscription lost", extra={"uris": len(uris), "reason": str(error)})
                finally:
                    self._count(connection.server.name, 0)
                if anyio.current_time() - since > _STEADY_SECONDS:
                    waits = Pauses(0.2, 30.0)
                await anyio.sleep(next(waits))

    def _count(self, server: str, uris: int) -> None:
        self._subscribed[server] = uris
        SUBSCRIPTIONS.set(to=sum(self._subscribed.values()))


class Changes:
    """The URIs that have changed and nobody has looked at yet, each once."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._news = anyio.Event()

    def put(self, uri: str) -> None:
        self._waiting[uri] = None
        self._news.set()

    async def take(self) -> str:
        while not self._waiting:
            self._news = anyio.Event()
            await self._news.wait()
        uri = next(iter(self._waiting))
        del self._waiting[uri]
        return uri


async def _reach(connection: Connection, until: float) -> ServerAwayError | None:
    for pause in Pauses(0.2, 2.0):
        try:
            await connection.connect()
        except ServerAwayError as error:
            over = anyio.current_time() + pause > until
            _log.log(
                logging.ERROR if over else logging.WARNING,
                "a tool server is away",
                extra={"server": connection.server.name, "reason": str(error)},
            )
            if over:
                return error
            await anyio.sleep(pause)
        else:
            return None
    return None
