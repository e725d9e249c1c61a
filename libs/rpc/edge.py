"""Serving an HTTPS edge: one ASGI application for callers who are not of the mesh, such as an API server.

HTTP/2 and HTTP/1.1 over TLS 1.2 or later, with our own certificate. No gRPC: that has a port of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from h2corn import Config
from opentelemetry.trace import Span, SpanKind, StatusCode
from prometheus_client import Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs import telemetry
from libs.identity import Identity

from .callers import der
from .h2corn import Succession
from .rotation import Files, pace, until_beat

_log = logging.getLogger(__name__)

HTTP_SECONDS = Histogram(
    "agentctl_http_server_duration_seconds",
    "How long requests to HTTPS edges took, by route and status code",
    ["route", "code"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

_MAX_BODY = 4 * 1024 * 1024
_HEAD_BYTES = 32 * 1024


@dataclass(frozen=True)
class Edge:
    """An edge that serves."""

    address: str
    port: int
    look: Callable[[], None]
    """Has it look now whether its certificate or `client_ca` has changed, not at its next beat."""


@asynccontextmanager
async def edge(
    app: ASGIApp,
    identity: Identity,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    client_ca: Callable[[], Path | None] | None = None,
    max_body: int = _MAX_BODY,
    max_connections: int = 1024,
    drain_seconds: float = 10.0,
    check_seconds: float | None = None,
) -> AsyncIterator[Edge]:
    """Serves the application while the block runs.

    Clients are asked for a certificate while `client_ca` names a PEM file of authorities. They need not show
    one; but who shows one that none of these has signed, or that is out of date, ends in the handshake. The
    application sees it as `leaf`, which is all that was checked: whose it is, is for the application.

    Each request is traced, timed, counted and logged in one line, by the name of its Starlette route. What an
    application raises is its own affair: it knows how its callers want to hear of it.

    Every `check_seconds`, by default at the identity's `pace`, it looks for a new certificate and for other
    authorities, and serves new connections with them; old ones are told to go, which an HTTP/1.1 connection
    that is being made just then hears before its first request. Bodies have at most `max_body`
    bytes (413). When the block ends, requests have `drain_seconds` left.
    """
    files, authorities = Files(identity), _Authorities(client_ca)
    looking = asyncio.Event()
    config = partial(_config, identity, authorities, max_body, max_connections, drain_seconds)
    servers = Succession(lambda: _Doorway(app), config, drain_seconds)
    bound = await servers.start(host, port)
    seconds = check_seconds or pace(identity)
    keeper = asyncio.create_task(_keep(servers, files, authorities, seconds, looking))
    address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
    _log.info("HTTPS at %s", address)
    try:
        yield Edge(address, bound, looking.set)
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
        await servers.stop(drain_seconds)


def leaf(scope: Mapping[str, Any]) -> bytes | None:
    """The certificate of a request's client, DER; None if it showed none."""
    tls = scope["extensions"].get("tls")
    chain = tls["client_cert_chain"] if tls else ()
    return der(chain[0]) if chain else None


def name_caller(scope: Scope, name: str) -> None:
    """From now on the lines of this request say who makes it."""
    scope["agentctl.caller"] = name


def has_left(scope: Scope) -> bool:
    """Whether the caller was found gone when it was to be sent something. Of HTTP/1.1 there is no other way
    to know."""
    return scope.get("agentctl.left", False) is True


def explain(scope: Scope, why: str) -> None:
    """The line of this request will say why it was answered as it was."""
    scope["agentctl.why"] = why


class _Doorway:
    """Where requests come in, on their way to the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it; nothing else is spoken here."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request_id = headers["traceparent"][3:35] if "traceparent" in headers else _random_id()
        telemetry.log_context.set(lambda: _fields(scope, request_id))
        if not telemetry.tracing:
            await self._timed(scope, receive, send)
            return
        with telemetry.tracer().start_as_current_span(
            scope["method"],
            context=telemetry.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": scope["method"], "url.path": scope["path"]},
        ) as span:
            _describe(span, scope, await self._timed(scope, receive, send))

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> int:
        begun, code = time.perf_counter(), 500

        async def heard(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            try:
                await send(message)
            except OSError:
                scope["agentctl.left"] = True

        try:
            await self._app(scope, receive, heard)
        finally:
            seconds = time.perf_counter() - begun
            HTTP_SECONDS.labels(_route(scope), str(code)).observe(seconds)
            level = logging.WARNING if code in (401, 403) else logging.INFO if code >= 400 else logging.DEBUG
            extra = {"code": code, "seconds": round(seconds, 6)}
            why = f" {scope['agentctl.why']}" if "agentctl.why" in scope else ""
            _log.log(level, "%s %s: %d%s", scope["method"], scope["path"], code, why, extra=extra)
        return code


def _fields(scope: Scope, request_id: str) -> dict[str, object]:
    fields: dict[str, object] = {"method": _route(scope), "request_id": request_id}
    if caller := scope.get("agentctl.caller"):
        fields["caller"] = caller
    elif client := scope.get("client"):
        fields["peer"] = "{}:{}".format(*client)
    return fields


def _describe(span: Span, scope: Scope, code: int) -> None:
    span.update_name(f"{scope['method']} {_route(scope)}")
    span.set_attribute("http.route", _route(scope))
    span.set_attribute("http.response.status_code", code)
    if code >= 500:
        span.set_status(StatusCode.ERROR)


def _route(scope: Scope) -> str:
    """Few: names of routes, since anybody may ask for any path."""
    route = scope.get("route")
    return str(route.name) if route is not None else "unknown"


def _random_id() -> str:
    return f"{random.getrandbits(64):016x}"


class _Authorities:
    """Of clients' certificates: the file, as it was last seen."""

    def __init__(self, client_ca: Callable[[], Path | None] | None) -> None:
        self._find = client_ca or (lambda: None)
        self._seen = b""
        self.path: Path | None = None
        self.changed()

    def changed(self) -> bool:
        """Whether they differ from the last time. OSError if the file is not there."""
        path = self._find()
        found = path.read_bytes() if path else b""
        changed = (path, found) != (self.path, self._seen)
        self.path, self._seen = path, found
        return changed

    def check(self) -> None:
        """OSError if the file has no certificates."""
        if self.path:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.path)


async def _keep(
    servers: Succession[_Doorway],
    files: Files,
    authorities: _Authorities,
    seconds: float,
    looking: asyncio.Event,
) -> None:
    stale = False
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(until_beat(asyncio.get_running_loop().time(), seconds)):
                await looking.wait()
        looking.clear()
        try:
            stale = files.changed() or stale
            stale = authorities.changed() or stale
            if stale:
                files.check()
                authorities.check()
                await servers.rotate()
                stale = False
                _log.info("HTTPS with a new certificate, or other authorities of clients")
        except (OSError, ValueError) as error:
            _log.warning("cannot read our certificate or clients' authorities, trying again: %s", error)


def _config(
    identity: Identity,
    authorities: _Authorities,
    max_body: int,
    max_connections: int,
    drain_seconds: float,
    fd: int,
) -> Config:
    return Config(
        bind=(f"fd://{fd}",),
        certfile=identity.certificate,
        keyfile=identity.key,
        ca_certs=authorities.path,
        cert_reqs="optional" if authorities.path else "none",
        lifespan="off",
        access_log=False,
        log_format="json",
        runtime_threads=1,
        limit_connections=max_connections,
        limit_request_head_size=_HEAD_BYTES,
        limit_request_field_size=_HEAD_BYTES,
        h2_max_header_list_size=_HEAD_BYTES,
        h2_max_header_block_size=_HEAD_BYTES,
        max_request_body_size=max_body,
        timeout_request_header=10,
        timeout_request_body_idle=20,
        timeout_graceful_shutdown=drain_seconds,
    )
