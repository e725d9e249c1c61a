"""The aggregated API `management.agentctl.dev`: what kubectl and an API server's aggregator ask.

What it says of itself is for anybody; verbs and statuses are for whom `Callers` knows, and end in the same
`Management` as RPCs do.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from libs.cluster import Bearer, Cluster
from libs.errors import (
    DeadlineError,
    InvalidError,
    MeshError,
    NotFoundError,
    UnavailableError,
)
from libs.identity import Identity
from libs.places import Places
from libs.rpc.boundary import LeftError
from libs.rpc.edge import Edge, edge, explain, leaf, name_caller

from . import discovery, openapi, statuses
from .management import PodStatus
from .proxying import Callers
from .settings import Settings
from .statuses import Answer
from .verbs import DEFAULT_DEADLINE, GROUP, STATUS, Kind, Order, Report, Stage, Target, Until, Verb
from .wire import statuses_to_pb

MAX_BODY_BYTES = 64 * 1024
_READING_SECONDS = 10.0
_WHO_SECONDS = 10.0
_LEFT = 499  # no server says it: for the line of the log
_MARGIN_SECONDS = 5.0  # for what is not the agents' time
_STATUS_SECONDS = 10.0
_BASE = f"/apis/{discovery.GROUP_VERSION}"
_QUERIES = {"dryRun", "timeout", "pretty", "fieldManager", "fieldValidation"}
_PIECE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_ANY = ("*/*", "application/*", "application/json")

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Manages(Protocol):
    """What `Management` does for an edge."""

    @property
    def places(self) -> Places:
        """Of whom it works for."""

    async def act(self, bearer: Bearer, order: Order, *, within: float = ...) -> Report:
        """Does it."""

    async def status(self, bearer: Bearer, target: Target, *, within: float = ...) -> Sequence[PodStatus]:
        """What the target's pods are doing."""


@asynccontextmanager
async def serve_edge(
    management: Manages, cluster: Cluster, identity: Identity, settings: Settings
) -> AsyncIterator[tuple[Edge, Callers]]:
    """Serves the aggregated API at settings.edge_port, to those callers, while the block runs."""
    assert settings.edge_port is not None  # whoever calls has looked
    looks: list[Edge] = []

    def changed() -> None:
        for each in looks:
            each.look()

    with tempfile.TemporaryDirectory(prefix="agentctl-edge-") as folder:
        callers = Callers(cluster, Path(folder), changed)
        following = asyncio.create_task(callers.run())
        try:
            async with edge(
                Api(management, callers).app(),
                identity,
                host=settings.host,
                port=settings.edge_port,
                client_ca=callers.client_ca,
                max_body=2 * MAX_BODY_BYTES,  # so that our own answer to a body over the cap is heard
                drain_seconds=settings.drain.total_seconds(),
            ) as serves:
                looks.append(serves)
                changed()  # it may have been read meanwhile
                yield serves, callers
        finally:
            following.cancel()
            await asyncio.wait({following})


class Terms(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a verb; all of it may be missing."""

    reason: str = ""
    deadline: str | None = None
    until: Until = "accepted"
    pod: str | None = None
    run: str | None = None
    undo: bool = False
    grace: str | None = None


class Api:
    """The routes. A request is worked for as long as its caller waits."""

    def __init__(self, management: Manages, callers: Callers) -> None:
        self._management = management
        self._callers = callers

    def app(self) -> Starlette:
        """The application."""
        v2, v3 = openapi.encoded(openapi.v2()), openapi.encoded(openapi.v3())
        index = openapi.encoded(openapi.v3_index(v3[1]))
        routes = [
            *(_route(path, _alive) for path in ("/healthz", "/livez")),
            _route("/readyz", self._ready),
            *_routes("/apis", _groups),
            *_routes(f"/apis/{GROUP}", _fixed(discovery.api_group())),
            *_routes(_BASE, _fixed(discovery.api_resource_list())),
            _route("/openapi/v2", _document(*v2)),
            _route("/openapi/v3", _document(*index)),
            _route(f"/openapi/v3/{openapi.PATH}", _document(*v3, hashed=True)),
        ]
        for kind in Kind:
            one = f"{_BASE}/namespaces/{{namespace}}/{kind}/{{name}}"
            routes += [_route(f"{one}/{verb}", self._verb(kind, verb), "POST") for verb in Verb]
            routes.append(_route(f"{one}/{STATUS}", self._status(kind)))
        app = Starlette(
            routes=routes,
            exception_handlers={
                LeftError: _unheard,
                MeshError: _refused,
                HTTPException: _refused_by_starlette,
            },
            middleware=[Middleware(ExceptionMiddleware, handlers={Exception: _failed})],
        )
        app.router.redirect_slashes = False
        return app

    async def _ready(self, _: Request) -> Response:
        try:
            self._callers.check()
        except UnavailableError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ok")

    def _verb(self, kind: Kind, verb: Verb) -> _Endpoint:
        async def act(request: Request) -> Response:
            bearer = await self._who(request)
            with self._management.places.taken(bearer.username):
                terms = await _terms(request)
                order = _order(verb, _target(request, kind, terms.pod), terms, request)
                within = _within(request)
                seconds = min(order.deadline.total_seconds(), within)
                work = self._management.act(bearer, order, within=within)
                report = await _until_left(request, work, seconds + _MARGIN_SECONDS)
            return _json(statuses.of_report(order, report))

        return act

    def _status(self, kind: Kind) -> _Endpoint:
        async def status(request: Request) -> Response:
            bearer = await self._who(request)
            with self._management.places.taken(bearer.username):
                _check_queries(request, "pod")
                await _body(request)
                target = _target(request, kind, request.query_params.get("pod"))
                within = min(_within(request), _STATUS_SECONDS)
                work = self._management.status(bearer, target, within=within)
                pods = await _until_left(request, work, within + _MARGIN_SECONDS)
            return JSONResponse(_statuses(target, pods))

        return status

    async def _who(self, request: Request) -> Bearer:
        work = self._callers.bearer(request.scope["headers"], leaf(request.scope))
        try:
            async with asyncio.timeout(_WHO_SECONDS):
                bearer = await work
        except TimeoutError:
            raise UnavailableError("Kubernetes did not say in time who this is") from None
        name_caller(request.scope, bearer.username)
        return bearer


class _Endpoint(Protocol):
    def __call__(self, request: Request, /) -> Awaitable[Response]: ...


# --- What is asked ---


def _target(request: Request, kind: Kind, pod: str | None) -> Target:
    if b"%" in request.scope["raw_path"]:  # no name needs that, and a slash could hide there
        raise NotFoundError("no such path")
    return Target(kind, request.path_params["namespace"], request.path_params["name"], _some("pod", pod))


def _some(field: str, text: str | None) -> str:
    """InvalidError if it is empty: what an unset variable leaves behind does not mean all."""
    if text == "":
        raise InvalidError(violations={field: "is empty; absent it means all"})
    return text or ""


def _order(verb: Verb, target: Target, terms: Terms, request: Request) -> Order:
    _check_queries(request)
    if any(value != "All" for value in request.query_params.getlist("dryRun")):
        raise InvalidError(violations={"dryRun": "All, or absent"})
    deadline = _duration("deadline", terms.deadline)
    return Order(
        verb,
        target,
        reason=terms.reason,
        dry_run="dryRun" in request.query_params,
        until=Stage[terms.until.upper().replace("-", "_")],
        deadline=DEFAULT_DEADLINE if deadline is None else deadline,
        run_id=_some("run", terms.run),
        undo=terms.undo,
        grace=_duration("grace", terms.grace),
    )


def _check_queries(request: Request, *more: str) -> None:
    """A misspelled dryRun is no order to act."""
    if unknown := sorted(set(request.query_params) - _QUERIES - set(more)):
        raise InvalidError(violations=dict.fromkeys(unknown, "unknown query parameter"))


def _within(request: Request) -> float:
    asked = _duration("timeout", request.query_params.get("timeout") or None)
    return asked.total_seconds() if asked else float("inf")


def _duration(name: str, text: str | None) -> timedelta | None:
    if text is None:
        return None
    if not 0 < len(text) <= 32 or _PIECE.sub("", text):
        raise InvalidError(violations={name: "a duration such as 30s or 1m30s"})
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(text)))


async def _terms(request: Request) -> Terms:
    body = await _body(request)
    if not body.strip():
        return Terms()
    try:
        return msgspec.json.decode(body, type=Terms)
    except msgspec.DecodeError as error:
        raise InvalidError(f"the body: {error}") from error


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_READING_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise DeadlineError("the body did not come in time") from None
    except ClientDisconnect:
        raise LeftError("the caller left") from None
    return bytes(body)


async def _until_left(request: Request, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Its result, unless the caller leaves or so much time passes before. Of a caller who leaves in HTTP/1.1
    h2corn does not tell."""
    task, leaving = asyncio.create_task(work), asyncio.create_task(_left(request))
    both = {task, leaving}
    try:
        done, _ = await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        raise LeftError("the caller left") if done else DeadlineError("out of time")
    finally:
        for each in both:
            each.cancel()
        await asyncio.wait(both)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- What is answered ---


def _route(path: str, endpoint: _Endpoint, method: str = "GET") -> Route:
    return Route(path, endpoint, methods=[method], name=path)


def _routes(path: str, endpoint: _Endpoint) -> list[Route]:
    """With a slash at the end too, which some clients write."""
    return [_route(path, endpoint), _route(f"{path}/", endpoint)]


def _json(answer: Answer) -> Response:
    return JSONResponse(answer.body, answer.code, answer.headers)


def _statuses(target: Target, pods: Sequence[PodStatus]) -> dict[str, Any]:
    said = MessageToDict(statuses_to_pb(pods), always_print_fields_with_no_presence=True)
    return {
        "kind": discovery.STATUS_KIND,
        "apiVersion": discovery.GROUP_VERSION,
        "metadata": {"namespace": target.namespace, "name": target.name},
        **said,
    }


async def _alive(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _groups(request: Request) -> Response:
    version = discovery.negotiated(request.headers.get("accept", ""))
    if not version:
        return JSONResponse(discovery.api_group_list(), headers={"Vary": "Accept"})
    body, etag = openapi.encoded(discovery.aggregated(version))
    return _unless_known(request, body, etag, discovery.content_type(version))


def _fixed(document: Mapping[str, Any]) -> _Endpoint:
    async def answer(_: Request) -> Response:
        return JSONResponse(document)

    return answer


def _document(body: bytes, etag: str, *, hashed: bool = False) -> _Endpoint:
    async def answer(request: Request) -> Response:
        accepted = request.headers.get("accept", "*/*")
        if not any(clause.partition(";")[0].strip() in _ANY for clause in accepted.split(",")):
            raise HTTPException(406, "only application/json")
        asked = request.query_params.get("hash", "") if hashed else ""
        if asked and asked != etag:
            return RedirectResponse(f"{request.url.path}?hash={etag}", 301)
        response = _unless_known(request, body, etag, "application/json")
        if asked:
            response.headers["Cache-Control"] = "public, immutable"
        return response

    return answer


def _unless_known(request: Request, body: bytes, etag: str, kind: str) -> Response:
    headers = {"ETag": f'"{etag}"', "Vary": "Accept", "Content-Type": kind}
    if request.headers.get("if-none-match", "").strip() == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)


async def _unheard(request: Request, error: Exception) -> Response:
    explain(request.scope, str(error))
    return Response(status_code=_LEFT)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, MeshError)
    explain(request.scope, str(error))
    answer = statuses.of_error(error, _asked_for(request))
    if answer.code == 500:
        _log.error("a request failed: %s", error, exc_info=error)
    return _json(answer)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    explain(request.scope, error.detail)
    return _json(statuses.failure(error.status_code, error.detail, headers=error.headers))


async def _failed(request: Request, error: Exception) -> Response:
    """The one place where what nobody expected ends."""
    _log.error("a request failed", exc_info=error)
    return _json(statuses.failure(500, "internal error", target=_asked_for(request)))


def _asked_for(request: Request) -> Target | None:
    route = request.scope.get("route")
    parameters = request.path_params
    if route is None or "name" not in parameters:
        return None
    kind = Kind(route.path.split("/")[6])
    return Target(kind, parameters["namespace"], parameters["name"])
