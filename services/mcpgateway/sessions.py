"""MCP as callers speak it: the SDK's server, which knows both revisions, around `View`.

The SDK checks envelopes, headers against bodies, and sessions; a middleware answers in place of handlers, so
that results go through as the servers gave them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp import MCPError
from mcp.server.connection import allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from libs.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    MeshError,
    NotFoundError,
    UnimplementedError,
)

from .upstream import CHANGES, UPDATED
from .upstreams import Upstreams
from .view import Caller, View
from .wire import Json, RpcError

MOST_BYTES = 4 * 1024 * 1024
"""Of a request."""
SCOPE_KEY = "agentctl.mcp"
_MOST_SESSIONS, _MOST_OF_ONE = 4096, 64
_MOST_URIS = 64
_IDLE_SECONDS = 600.0
_CHECK_SECONDS = 30.0
_AGAIN_SECONDS = 5.0
_CODES = {InvalidError: -32602, NotFoundError: -32602, DeniedError: -32602, UnimplementedError: -32601}
_FAILED = -32603

logging.getLogger("mcp").setLevel(logging.ERROR)  # below it are ids of sessions


@dataclass(frozen=True)
class Asked:
    """What an HTTP request brings with it."""

    view: View
    caller: str
    check: Callable[[], None]
    """MeshError if the caller may not any more what it could when it asked."""


@dataclass
class _Session:
    """A caller's, on 2025-11-25."""

    caller: str
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class Pending:
    """Changes that are to be told; of one kind once, however often they came."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], Json] = {}
        self._some = asyncio.Event()
        self.is_closed = False

    def close(self) -> None:
        """There will be no more."""
        self.is_closed = True
        self._some.set()

    def put(self, method: str, params: Json | None = None) -> None:
        """To be told next."""
        params = params or {}
        self._waiting[method, str(params.get("uri", ""))] = params
        self._some.set()

    async def get(self, seconds: float) -> list[tuple[str, Json]]:
        """What there is; nothing after so many seconds, or when it is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._some.wait()
        except TimeoutError:
            return []
        self._some.clear()
        found = [(method, params) for (method, _), params in self._waiting.items()]
        self._waiting.clear()
        return found


class Sessions:
    """The server that callers talk to."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._sessions: dict[str, _Session] = {}
        self._of_one: Counter[str] = Counter()
        self._listens: set[Pending] = set()
        server: Server[Any] = Server("agentctl", version="1.0")
        server.middleware[:] = [self._serve]
        self._manager = StreamableHTTPSessionManager(
            server,
            max_request_body_size=MOST_BYTES,
            max_sessions=_MOST_SESSIONS,
            session_idle_timeout=_IDLE_SECONDS,
        )
        self.handle = self._manager.handle_request
        """ASGI. The scope has `Asked` at SCOPE_KEY, and who owns the session as `user`."""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serves while the block runs."""
        async with self._manager.run():
            yield

    def drain(self) -> None:
        """Ends subscriptions of 2026-07-28, well: their callers subscribe again, with somebody else."""
        for each in self._listens:
            each.close()

    async def _serve(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        assert ctx.request is not None  # it came by HTTP
        asked: Asked = ctx.request.scope[SCOPE_KEY]
        if ctx.request_id is None:
            await call_next(ctx)
            if ctx.method == "notifications/initialized":
                self._follow_lists(ctx, asked)
            return None
        if ctx.method == "ping":
            return await call_next(ctx)
        try:
            if ctx.method == "initialize":
                return await self._begun(ctx, asked, call_next)
            _validate(ctx)
            return await self._answer(ctx, asked, dict(ctx.params or {}))
        except RpcError as error:
            raise MCPError(error.code, error.message, error.data) from error
        except MeshError as error:
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), _FAILED)
            raise MCPError(code, str(error), {"reason": error.reason, **error.facts}) from error

    async def _answer(self, ctx: ServerRequestContext[Any, Any], asked: Asked, params: Json) -> Json:
        if ctx.method == "subscriptions/listen":
            return await self._listen(ctx, asked, params)
        if ctx.method in ("resources/subscribe", "resources/unsubscribe"):
            subscribe = ctx.method == "resources/subscribe"
            await self._subscribe(ctx, asked, str(params.get("uri")), subscribe)
            return {}
        request_channel = ctx.session._request_outbound  # it has no other way to tell what it does not know

        levels = allowed_log_levels(ctx.protocol_version, ctx.meta)

        async def hear(method: str, told: Json) -> None:
            if method == "notifications/message" and told.get("level") not in levels:
                return
            await request_channel.notify(method, told)

        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        caller = Caller(asked.caller, is_modern, _session_id(ctx), hear)
        return await asked.view.answer(ctx.method, params, caller)

    # --- 2026-07-28 ---

    async def _listen(self, ctx: ServerRequestContext[Any, Any], asked: Asked, params: Json) -> Json:
        wanted = params["notifications"]
        if len(wanted.get("resourceSubscriptions") or ()) > _MOST_URIS:
            raise InvalidError(violations={"resourceSubscriptions": f"at most {_MOST_URIS}"})
        honoured, owned = await asked.view.honoured(wanted)
        meta, pending = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}, Pending()
        channel = ctx.session._request_outbound
        async with AsyncExitStack() as stack:
            self._listens.add(pending)
            stack.callback(self._listens.discard, pending)
            await _listen_to_lists(stack, asked.view, honoured, pending)
            following = [
                await stack.enter_async_context(_following(asked.view, name, uris, pending))
                for name, uris in owned.items()
            ]
            ack = {"notifications": honoured, "_meta": meta}
            await channel.notify("notifications/subscriptions/acknowledged", ack)
            for task in following:
                _ends_with(pending, task)
            while not pending.is_closed:
                for method, told in await pending.get(_CHECK_SECONDS):
                    await channel.notify(method, {**told, "_meta": meta})
                asked.check()
        return {"resultType": "complete", "_meta": meta}

    # --- 2025-11-25 ---

    async def _begun(
        self, ctx: ServerRequestContext[Any, Any], asked: Asked, call_next: CallNext
    ) -> HandlerResult:
        if self._of_one[asked.caller] >= _MOST_OF_ONE:
            raise ExhaustedError(f"{_MOST_OF_ONE} sessions are open, which is the most")
        result = await call_next(ctx)
        assert isinstance(result, dict)  # the SDK serialises before it returns
        result |= await asked.view.introduction(is_modern=False)
        identity = _session_id(ctx)
        if identity not in self._sessions:
            self._sessions[identity] = _Session(asked.caller)
            self._of_one[asked.caller] += 1
            ctx.session._connection.exit_stack.push_async_callback(self._ended, identity)
        return result

    async def _ended(self, identity: str) -> None:
        session = self._sessions.pop(identity)
        self._of_one[session.caller] -= 1
        self._of_one += Counter()  # forgets who has none
        for task in session.tasks.values():
            task.cancel()
        if session.tasks:
            await asyncio.wait(session.tasks.values())
        self._upstreams.forget(identity)

    def _follow_lists(self, ctx: ServerRequestContext[Any, Any], asked: Asked) -> None:
        session = self._sessions.get(_session_id(ctx))
        if session is None or "lists" in session.tasks:
            return

        async def follow() -> None:
            honoured, _ = await asked.view.honoured({flag: True for flag, _ in CHANGES.values()})
            if not honoured:
                return
            async with AsyncExitStack() as stack:
                pending = Pending()
                await _listen_to_lists(stack, asked.view, honoured, pending)
                await _tell(ctx, asked, pending)

        session.tasks["lists"] = asyncio.create_task(_quietly(follow()))

    async def _subscribe(
        self, ctx: ServerRequestContext[Any, Any], asked: Asked, uri: str, subscribe: bool
    ) -> None:
        session = self._sessions[_session_id(ctx)]
        if (old := session.tasks.pop(uri, None)) is not None:
            old.cancel()
            await asyncio.wait({old})
        if not subscribe:
            return
        if len(session.tasks) > _MOST_URIS:
            raise ExhaustedError(f"at most {_MOST_URIS} resources can be subscribed to")
        _, owned = await asked.view.honoured({"resourceSubscriptions": [uri]})
        if not owned:
            raise UnimplementedError("the server does not tell of changes of resources")
        (name,) = owned
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def follow() -> None:
            while True:
                pending = Pending()
                try:
                    async with _following(asked.view, name, (uri,), pending) as task:
                        if begun.done():
                            pending.put(UPDATED, {"uri": uri})  # it may have changed meanwhile
                        else:
                            begun.set_result(None)
                        _ends_with(pending, task)
                        await _tell(ctx, asked, pending)
                except (MeshError, RpcError) as error:
                    if not begun.done():
                        begun.set_exception(error)
                        return
                asked.check()
                await asyncio.sleep(_AGAIN_SECONDS)

        session.tasks[uri] = asyncio.create_task(_quietly(follow()))
        await asyncio.shield(begun)


async def _listen_to_lists(stack: AsyncExitStack, view: View, honoured: Json, pending: Pending) -> None:
    """Has changes of lists put, of the kinds that are honoured. A server that fails has none."""
    kinds = {method for method, (flag, _) in CHANGES.items() if honoured.get(flag)}
    if not kinds:
        return

    def changed(method: str) -> None:
        if method in kinds:
            pending.put(method)

    for upstream in view.upstreams.values():
        await stack.enter_async_context(upstream.listening(changed))


@asynccontextmanager
async def _following(
    view: View, name: str, uris: tuple[str, ...], pending: Pending
) -> AsyncIterator[asyncio.Task[None]]:
    """Has changes of these resources put; the task is done when the server ends it. MeshError or RpcError if
    it does not begin."""
    begun = asyncio.Event()

    async def follow() -> None:
        async with aclosing(view.upstreams[name].follow(uris)) as changes:
            async for method, params in changes:
                begun.set()
                if method == UPDATED and params.get("uri") in uris:
                    kept = {key: each for key, each in params.items() if key != "_meta"}
                    pending.put(method, kept)

    task = asyncio.create_task(follow())
    waiting = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            raise UnimplementedError(f"{name} does not tell of changes")
        yield task
    finally:
        for each in (task, waiting):
            each.cancel()
        await asyncio.wait({task, waiting})
        if not task.cancelled():
            task.exception()  # why a server ends a stream is in our log, if anywhere


def _ends_with(pending: Pending, task: asyncio.Task[None]) -> None:
    task.add_done_callback(lambda _: pending.close())


async def _tell(ctx: ServerRequestContext[Any, Any], asked: Asked, pending: Pending) -> None:
    """Tells on the session's own stream what is pending, until there will be no more."""
    channel = ctx.session._connection
    while not pending.is_closed:
        for method, told in await pending.get(_CHECK_SECONDS):
            asked.check()
            await channel.notify(method, told or None)


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """What cannot be told any more has nobody to hear why."""
    try:
        await work
    except (MeshError, RpcError):
        return


def _session_id(ctx: ServerRequestContext[Any, Any]) -> str:
    return ctx.session._connection.session_id or ""


def _validate(ctx: ServerRequestContext[Any, Any]) -> None:
    """As the SDK does it for its handlers: RpcError for what the revision does not know; what is malformed is
    a ValidationError, which it has words for."""
    try:
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
    except KeyError:
        raise RpcError(-32601, "Method not found", ctx.method[:128]) from None
