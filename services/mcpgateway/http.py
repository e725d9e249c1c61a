"""The HTTPS edge: MCP's streamable HTTP, for one server or for all of a caller's servers together."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs import mesh
from libs.errors import (
    DeniedError,
    ExhaustedError,
    InternalError,
    InvalidError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)
from libs.places import Places
from libs.rpc.callers import EdgeCallers
from libs.rpc.edge import explain, has_left, name_caller

from .objects import SET_HEADER, Grant, Objects
from .sessions import SCOPE_KEY, Asked, Sessions
from .upstreams import Upstreams
from .view import View

AT_ONCE, SHARE = 2048, 128
MOST_UNDERWAY = 256 * 1024 * 1024
_METHOD = "/agentctl.mcpgateway.v1.McpGatewayService/CallTool"
_STATUS = {
    UnauthenticatedError: 401,
    DeniedError: 403,
    NotFoundError: 404,
    InvalidError: 400,
    PreconditionError: 409,
    ExhaustedError: 429,
    UnavailableError: 503,
}

_log = logging.getLogger(__name__)


class Api:
    """The routes."""

    def __init__(
        self, objects: Objects, upstreams: Upstreams, sessions: Sessions, callers: EdgeCallers
    ) -> None:
        self._objects = objects
        self._upstreams = upstreams
        self._sessions = sessions
        self._callers = callers
        self._places = Places(AT_ONCE, SHARE)
        self._underway = _Underway()

    def app(self) -> Starlette:
        """The application."""
        app = Starlette(
            routes=[
                _route("/mcp", self._serve),
                _route("/servers/{server}/mcp", self._serve),
                Route("/healthz", _alive, name="/healthz"),
                Route("/livez", _alive, name="/livez"),
                Route("/readyz", self._ready, name="/readyz"),
            ],
            exception_handlers={MeshError: _refused, HTTPException: _refused_by_starlette},
            middleware=[Middleware(ExceptionMiddleware, handlers={Exception: _failed})],
        )
        app.router.redirect_slashes = False
        return app

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._callers.who(scope)
        principal = caller.principal
        name_caller(scope, principal.id)
        if not mesh.may_call(principal.role, _METHOD):
            raise DeniedError(f"{principal.id} may not use tools")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if b"origin" in headers:
            raise DeniedError("no web page has business here")
        asked_set = headers.get(SET_HEADER.encode(), b"").decode("latin-1")
        server = scope["path_params"].get("server", "")

        def granted() -> Grant:
            grant = self._objects.grant(principal, asked_set)
            return self._objects.only(grant, principal, server) if server else grant

        grant = granted()

        def check() -> None:
            self._callers.check(caller)
            if granted() != grant:
                raise DeniedError("what the caller may use has changed: connect again")

        view = View(self._upstreams.of(grant), is_merged=not server)
        # The SDK holds a session to its user: here a caller, and the view that it has of its servers.
        token = AccessToken(token="", client_id=principal.id, scopes=[], subject=f"{server}:{asked_set}")
        scope["user"] = AuthenticatedUser(token)
        scope[SCOPE_KEY] = Asked(view, principal.id, check)
        hears = _Hears(scope, receive, send, self._underway)
        with self._places.taken(principal.id), hears:
            await self._sessions.handle(scope, hears.receive, hears.send)

    async def _ready(self, _: Request) -> Response:
        try:
            self._objects.check()
        except UnavailableError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ok")


@dataclass
class _Underway:
    """Bytes of all bodies of requests that are worked for."""

    size: int = 0


class _Hears:
    """A caller who was found gone when it was to be sent something has left: of HTTP/1.1 h2corn does not tell
    otherwise."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, underway: _Underway) -> None:
        self._underway = underway
        self._size = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_whole = False
        self._left = asyncio.Event()

    def __enter__(self) -> None:
        """Nothing is taken yet."""

    def __exit__(self, *_: object) -> None:
        self._underway.size -= self._size

    async def receive(self) -> Message:
        if not self._is_whole:
            message = await self._receive()
            self._is_whole = not message.get("more_body", False)
            size = len(message.get("body", b""))
            self._size += size
            self._underway.size += size
            if self._underway.size > MOST_UNDERWAY:
                raise ExhaustedError("too much is on its way at once: try again")
            return message
        tasks = {asyncio.create_task(self._gone()), asyncio.create_task(self._told())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return {"type": "http.disconnect"}

    async def _told(self) -> None:
        await self._left.wait()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        await self._send(message)
        if has_left(self._scope):
            self._left.set()


class _Endpoint:
    """An ASGI application that Starlette does not take for a function of a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _route(path: str, app: ASGIApp) -> Route:
    return Route(path, _Endpoint(app), methods=["GET", "POST", "DELETE"], name=path)


def _error(status: int, message: str, reason: str, headers: dict[str, str] | None = None) -> Response:
    code = -32602 if status in (403, 404) else -32600 if status < 500 else -32603
    error = {"code": code, "message": message, "data": {"reason": reason}}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    return Response(body, status, headers, "application/json")


async def _alive(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, MeshError)
    explain(request.scope, str(error))
    if isinstance(error, InternalError):
        _log.error("a request failed: %s", error, exc_info=error)
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return _error(status, str(error), error.reason, headers)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    explain(request.scope, error.detail)
    return _error(error.status_code, error.detail, "HTTP", dict(error.headers or {}))


async def _failed(_: Request, error: Exception) -> Response:
    """The one place where what nobody expected ends."""
    _log.error("a request failed", exc_info=error)
    return _error(500, "internal error", "INTERNAL")
