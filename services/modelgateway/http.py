"""The HTTPS edge: OpenAI's API, and Anthropic's Messages for pools of such providers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from libs import mesh
from libs.errors import (
    DeadlineError,
    DeniedError,
    InternalError,
    InvalidError,
    MeshError,
    UnavailableError,
    UnimplementedError,
)
from libs.places import Places
from libs.rpc.boundary import LeftError
from libs.rpc.callers import EdgeCaller, EdgeCallers
from libs.rpc.edge import explain, has_left, name_caller

from .asked import Operation
from .budgets import BudgetError
from .calls import Gateway
from .failures import anthropic_error, http_status, openai_error
from .objects import Objects
from .relay import FORWARDED, Answer, Events

MAX_BODY_BYTES = 16 * 1024 * 1024
AT_ONCE, SHARE = 1024, 256
POOL_HEADER = "x-agentctl-pool"
_METHOD = "/agentctl.modelgateway.v1.ModelGatewayService/Infer"
_READING_SECONDS = 30.0
_LEFT = 499
_MESSAGES = "/v1/messages"

_log = logging.getLogger(__name__)

_Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes."""

    def __init__(self, gateway: Gateway, objects: Objects, callers: EdgeCallers) -> None:
        self._gateway = gateway
        self._objects = objects
        self._callers = callers
        self._places = Places(AT_ONCE, SHARE)

    def app(self) -> Starlette:
        """The application."""
        posts = {
            "/v1/chat/completions": Operation.CHAT,
            "/v1/responses": Operation.RESPONSES,
            "/v1/embeddings": Operation.EMBEDDINGS,
            _MESSAGES: Operation.MESSAGES,
        }
        routes = [_route(path, partial(self._post, operation), "POST") for path, operation in posts.items()]
        app = Starlette(
            routes=[
                *routes,
                _route("/v1/models", self._models),
                _route("/v1/models/{model:path}", self._model),
                _route("/healthz", _alive),
                _route("/livez", _alive),
                _route("/readyz", self._ready),
            ],
            exception_handlers={
                LeftError: _unheard,
                MeshError: _refused,
                HTTPException: _refused_by_starlette,
            },
            middleware=[Middleware(ExceptionMiddleware, handlers={Exception: _failed})],
        )
        app.router.redirect_slashes = False
        return app

    async def _post(self, operation: Operation, request: Request) -> Response:
        caller = self._who(request)
        with ExitStack() as place:
            place.enter_context(self._places.taken(caller.principal.id))
            body = await _body(request)
            headers = {name: value for name in FORWARDED if (value := request.headers.get(name)) is not None}
            async with _while_there(request):
                answer = await self._gateway.call(
                    caller.principal,
                    operation,
                    body,
                    pool=request.headers.get(POOL_HEADER, ""),
                    headers=headers,
                )
            if answer.events is None:
                return Response(answer.body, answer.status, _headers(answer))
            check = partial(self._callers.check, caller)
            return _Streamed(request, answer, operation, check, place.pop_all())

    async def _models(self, request: Request) -> Response:
        pool = self._objects.grant(self._who(request).principal, request.headers.get(POOL_HEADER, "")).pool
        return _json({"object": "list", "data": [_card(model, pool.name) for model in pool.models]})

    async def _model(self, request: Request) -> Response:
        pool = self._objects.grant(self._who(request).principal, request.headers.get(POOL_HEADER, "")).pool
        model = request.path_params["model"]
        if model not in pool.models:
            raise HTTPException(404, f"ModelPool {pool.name} has no such model")
        return _json(_card(model, pool.name))

    async def _ready(self, _: Request) -> Response:
        try:
            self._objects.check()
        except UnavailableError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ok")

    def _who(self, request: Request) -> EdgeCaller:
        caller = self._callers.who(request.scope)
        name_caller(request.scope, caller.principal.id)
        if not mesh.may_call(caller.principal.role, _METHOD):
            raise DeniedError(f"{caller.principal.id} may not use models")
        return caller


class _Streamed(Response):
    """Events, one by one; if they break off, one more that says so."""

    def __init__(
        self,
        request: Request,
        answer: Answer,
        operation: Operation,
        check: Callable[[], None],
        place: ExitStack,
    ) -> None:
        self._request = request
        self._answer = answer
        self._operation = operation
        self._check = check
        self._place = place
        self.background = None
        self.status_code = answer.status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._answer.events is not None  # whoever makes one has looked
        events: Events = self._answer.events
        headers = _headers(self._answer) | {"cache-control": "no-cache", "x-accel-buffering": "no"}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        with self._place:
            await self._send(scope, send, events, raw)

    async def _send(self, scope: Scope, send: Send, events: Events, raw: list[tuple[bytes, bytes]]) -> None:
        async with aclosing(events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": raw})
            try:
                async with _while_there(self._request):
                    async for event in events:
                        self._check()
                        await send({"type": "http.response.body", "body": event.raw, "more_body": True})
                        if has_left(scope):
                            raise LeftError("the caller left")
                last = b""
            except LeftError as error:
                explain(scope, str(error))
                return
            except MeshError as error:
                explain(scope, str(error))
                last = _error_event(self._operation, error)
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _error_event(operation: Operation, error: MeshError) -> bytes:
    match operation:
        case Operation.MESSAGES:
            return b"event: error\ndata: %s\n\n" % msgspec.json.encode(anthropic_error(error))
        case Operation.RESPONSES:
            told = openai_error(error)
            flat = {"type": "error", "code": told["error"]["code"], "message": str(error), "param": None}
            return b"event: error\ndata: %s\n\n" % msgspec.json.encode(flat | told)
        case _:
            return b"data: %s\n\n" % msgspec.json.encode(openai_error(error))


@asynccontextmanager
async def _while_there(request: Request) -> AsyncIterator[None]:
    """LeftError as soon as the caller is gone, where h2corn tells of it: in HTTP/2."""
    if request.scope["http_version"] != "2":
        yield
        return
    task, has_gone = asyncio.current_task(), False
    assert task is not None  # a coroutine that runs is one's

    def gone(watch: asyncio.Task[None]) -> None:
        nonlocal has_gone
        if not watch.cancelled():
            has_gone = True
            task.cancel()

    watch = asyncio.create_task(_left(request))
    watch.add_done_callback(gone)
    try:
        yield
    except asyncio.CancelledError:
        if has_gone and not task.uncancel():
            raise LeftError("the caller left") from None
        raise
    finally:
        watch.remove_done_callback(gone)
        watch.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    piece, has_more = await _piece(request)  # for which the edge itself does not wait long
    body = bytearray(piece)
    try:
        if has_more:
            async with asyncio.timeout(_READING_SECONDS):
                while has_more:
                    piece, has_more = await _piece(request)
                    body += piece
                    if len(body) > MAX_BODY_BYTES:
                        break
    except TimeoutError:
        raise DeadlineError("the body did not come in time") from None
    if len(body) > MAX_BODY_BYTES:
        raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def _piece(request: Request) -> tuple[bytes, bool]:
    """Of a body, and whether there is more."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise LeftError("the caller left")
    return message.get("body", b""), message.get("more_body", False)


def _headers(answer: Answer) -> dict[str, str]:
    return {**answer.headers, "x-agentctl-endpoint": answer.endpoint}


def _card(model: str, pool: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": pool}


def _route(path: str, endpoint: _Endpoint, method: str = "GET") -> Route:
    return Route(path, endpoint, methods=[method], name=path)


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _alive(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _unheard(request: Request, error: Exception) -> Response:
    explain(request.scope, str(error))
    return Response(status_code=_LEFT)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, MeshError)
    explain(request.scope, str(error))
    if isinstance(error, InternalError):
        _log.error("a request failed: %s", error, exc_info=error)
    headers = {}
    if isinstance(error, BudgetError):
        headers["x-should-retry"] = "false"
        if error.retry_after is not None:
            headers["retry-after"] = str(error.retry_after)
    shape = anthropic_error if request.url.path == _MESSAGES else openai_error
    return _json(shape(error), http_status(error), headers)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    explain(request.scope, error.detail)
    told = openai_error(
        UnimplementedError(error.detail) if error.status_code == 404 else InvalidError(error.detail)
    )
    return _json(told, error.status_code)


async def _failed(_: Request, error: Exception) -> Response:
    """The one place where what nobody expected ends."""
    _log.error("a request failed", exc_info=error)
    return _json(openai_error(InternalError("internal error")), 500)
