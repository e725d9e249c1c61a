"""The agent's way out: its model at /v1/…, its tool servers at /mcp/<name>, in plain HTTP on loopback.

What the agent sends goes on without any credential of its own, and with the pod's certificate to those that
are shown it. Bytes pass as they are; streams pass as they come. Of the model's answers, what they came to is
noted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from .settings import Upstream
from .turns import OwnAnswer, Turns

if TYPE_CHECKING:
    import ssl

MAX_BODY = 8 * 1024 * 1024
_CONNECT_SECONDS = 10.0
_METHODS_OF_MODEL = ("GET", "POST")
# RFC 9110, 7.6.1, and what the next server or our client says by itself
_HOP = {
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "content-length", "expect",
}  # fmt: skip
_NOT_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # what the agent says, or nobody
_CREDENTIALS = {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"}
_COMPLETIONS = "chat/completions"
_TOO_LARGE = "the answer is larger than 8 MiB"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upstreams:
    """Where calls go: the model (of an empty URL: nowhere), and tool servers by name."""

    model: Upstream
    servers: Mapping[str, Upstream]
    silence: timedelta
    """How long an answer may be silent. An event stream that was asked for by GET may be for ever."""


@dataclass(frozen=True)
class Tls:
    """For the next connection by https: to a server that is not shown our certificate, and to one that is."""

    anonymous: Callable[[], ssl.SSLContext]
    ours: Callable[[], ssl.SSLContext]

    def to(self, upstream: Upstream, url: URL) -> ssl.SSLContext | bool:
        """What aiohttp takes. OSError as the two have it."""
        if url.scheme != "https":
            return True
        return self.ours() if upstream.is_shown_ours else self.anonymous()


class Forwarder:
    """The application. `turns` decides on each call of the model."""

    def __init__(self, session: ClientSession, upstreams: Upstreams, tls: Tls, turns: Turns) -> None:
        self._session = session
        self._upstreams = upstreams
        self._tls = tls
        self._turns = turns

    def application(self) -> web.Application:
        """To be served on loopback."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/v1/{path:.+}", self._model)
        app.router.add_route("*", "/mcp/{name}", self._server)
        return app

    async def _model(self, request: web.Request) -> web.StreamResponse:
        model = self._upstreams.model
        if not model.url:
            return OwnAnswer(404, "this agent has no model")
        if request.method not in _METHODS_OF_MODEL:
            return OwnAnswer(405, "only GET and POST")
        base = URL(model.url.rstrip("/"))
        url = URL(f"{base}/{request.raw_path.removeprefix('/v1/')}")
        if not url.raw_path.startswith(f"{base.raw_path}/"):  # by way of `..`
            return OwnAnswer(404, "no such path")
        if request.method != "POST" or request.match_info["path"] != _COMPLETIONS:
            return await self._forward(request, model, url)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return OwnAnswer(413, "the request is larger than 8 MiB")
        return await self._turns.call(body, partial(self._forward, request, model, url, is_read=True))

    async def _server(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if (server := self._upstreams.servers.get(name)) is None:
            return OwnAnswer(404, f"this agent has no tool server {name}")
        target = URL(server.url).extend_query(request.query)
        is_endless = request.method == "GET" or request.headers.get("Mcp-Method") == "subscriptions/listen"
        return await self._forward(request, server, target, is_endless=is_endless)

    async def _forward(
        self,
        request: web.Request,
        upstream: Upstream,
        url: URL,
        *,
        is_endless: bool = False,
        is_read: bool = False,
    ) -> web.StreamResponse:
        """`is_read`: the answer is taken whole before it is passed on, so that it can be read here too."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return OwnAnswer(413, "the request is larger than 8 MiB")
        headers = _passed_on(request.headers)
        if is_read:
            headers["Accept-Encoding"] = "identity"
        silence = None if is_endless else self._upstreams.silence.total_seconds()
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                url,
                data=BytesIO(body) if body else None,
                headers=headers,
                skip_auto_headers=_NOT_OURS,
                allow_redirects=False,
                ssl=self._tls.to(upstream, url),
                timeout=ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence),
            ) as answer:
                is_stream = answer.content_type == "text/event-stream"
                if not is_stream and (answer.content_length or 0) > MAX_BODY:
                    return OwnAnswer(502, _TOO_LARGE, "body")
                if is_read and not is_stream:
                    return _whole(answer, await _read(answer))
                response = web.StreamResponse(
                    status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers)
                )
                if answer.content_length is not None and not is_stream:
                    response.content_length = answer.content_length
                await response.prepare(request)
                async for part in _bounded(answer, None if is_stream else MAX_BODY):
                    await response.write(part)
                await response.write_eof()
                return response
        except asyncio.CancelledError:
            if response is not None:  # a part must not be taken for the whole
                _abort(request)
            raise
        except ConnectionResetError as error:
            # Of the agent, which has gone, if anything was on its way to it.
            return _broken(request, None, error) if response is None else response
        except (ClientError, HttpProcessingError, OSError) as error:  # TimeoutError is an OSError
            if is_endless:
                _abort(request)  # as if nobody listened: agentd takes an answer for a no, for ever
            return _broken(request, response, error)


@asynccontextmanager
async def forwarding(forwarder: Forwarder, host: str, port: int) -> AsyncIterator[int]:
    """Serves it while the block runs; yields the port (0 picks one)."""
    runner = web.AppRunner(
        forwarder.application(), access_log=None, shutdown_timeout=1, handler_cancellation=True
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    named = {word.strip().lower() for value in headers.getall("Connection", ()) for word in value.split(",")}
    left_out = _HOP | _CREDENTIALS | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in left_out)


def _whole(upstream: ClientResponse, body: bytes) -> web.Response:
    return web.Response(
        status=upstream.status, reason=upstream.reason, headers=_passed_on(upstream.headers), body=body
    )


async def _read(upstream: ClientResponse) -> bytes:
    return b"".join([part async for part in _bounded(upstream, MAX_BODY)])


async def _bounded(upstream: ClientResponse, most: int | None) -> AsyncIterator[bytes]:
    size = 0
    async for part in upstream.content.iter_any():
        size += len(part)
        if most is not None and size > most:
            raise ClientError(_TOO_LARGE)
        yield part


def _broken(
    request: web.Request, response: web.StreamResponse | None, error: Exception
) -> web.StreamResponse:
    said = str(error) or type(error).__name__
    _log.warning("a call of the agent's failed", extra={"path": request.path, "reason": said})
    if response is None or not response.prepared:
        is_late = isinstance(error, TimeoutError)
        return (
            OwnAnswer(504, "no answer in time", "timeout") if is_late else OwnAnswer(502, said, "unreachable")
        )
    _abort(request)  # a part must not be taken for the whole
    return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
