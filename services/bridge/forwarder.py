"""The agent's way out: its model at /v1/…, its tool servers at /mcp/<name>, in plain HTTP on loopback.

What the agent sends goes on with the pod's certificate and without any credential of the agent's own. Bytes
pass as they are; streams pass as they come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from typing import TYPE_CHECKING

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from libs.contract.metrics import MODEL_CALLS, MODEL_ERRORS, MODEL_UP

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

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
_REASONS = {401: "auth", 403: "auth", 408: "timeout", 429: "throttled"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upstreams:
    """Where calls go: the model (empty: nowhere), and tool servers by name."""

    model: str
    servers: Mapping[str, str]
    silence: timedelta
    """How long an answer may be silent. An event stream that was asked for by GET may be for ever."""


class Forwarder:
    """The application, and what it knows of calls under way."""

    def __init__(
        self,
        session: ClientSession,
        upstreams: Upstreams,
        tls: Callable[[], ssl.SSLContext],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._upstreams = upstreams
        self._tls = tls
        self._clock = clock
        self._under_way = 0
        self._last_end = float("-inf")

    def application(self) -> web.Application:
        """To be served on loopback."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/v1/{path:.+}", self._model)
        app.router.add_route("*", "/mcp/{name}", self._server)
        return app

    def quiet_for(self) -> float:
        """Seconds since the agent's last call ended; 0 while there is one, infinity if there was none."""
        return 0.0 if self._under_way else self._clock() - self._last_end

    async def _model(self, request: web.Request) -> web.StreamResponse:
        if not self._upstreams.model:
            return _error(404, "this agent has no model")
        if request.method not in _METHODS_OF_MODEL:
            return _error(405, "only GET and POST")
        base = URL(self._upstreams.model.rstrip("/"))
        url = URL(f"{base}/{request.raw_path.removeprefix('/v1/')}")
        if not url.raw_path.startswith(f"{base.raw_path}/"):  # by way of `..`
            return _error(404, "no such path")
        with self._counted():
            response = await self._forward(request, url)
        if request.method == "POST":
            _count(response)
        return response

    async def _server(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if (url := self._upstreams.servers.get(name)) is None:
            return _error(404, f"this agent has no tool server {name}")
        target = URL(url).extend_query(request.query)
        if request.method == "GET" or request.headers.get("Mcp-Method") == "subscriptions/listen":
            return await self._forward(request, target, is_endless=True)
        with self._counted():
            return await self._forward(request, target)

    async def _forward(
        self, request: web.Request, url: URL, *, is_endless: bool = False
    ) -> web.StreamResponse:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _error(413, "the request is larger than 8 MiB")
        silence = None if is_endless else self._upstreams.silence.total_seconds()
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                url,
                data=BytesIO(body) if body else None,
                headers=_passed_on(request.headers),
                skip_auto_headers=_NOT_OURS,
                allow_redirects=False,
                ssl=self._tls() if url.scheme == "https" else True,
                timeout=ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence),
            ) as upstream:
                is_stream = upstream.content_type == "text/event-stream"
                if not is_stream and (upstream.content_length or 0) > MAX_BODY:
                    return _error(502, "the answer is larger than 8 MiB")
                response = web.StreamResponse(
                    status=upstream.status, reason=upstream.reason, headers=_passed_on(upstream.headers)
                )
                if upstream.content_length is not None and not is_stream:
                    response.content_length = upstream.content_length
                await response.prepare(request)
                size = 0
                async for part in upstream.content.iter_any():
                    size += len(part)
                    if size > MAX_BODY and not is_stream:
                        raise ClientError("the answer is larger than 8 MiB")
                    await response.write(part)
                await response.write_eof()
                return response
        except ConnectionResetError:  # of the agent, which has gone
            if response is None:
                return _error(502, "the connection broke")
            return response
        except (ClientError, HttpProcessingError, OSError) as error:  # TimeoutError is an OSError
            return _broken(request, response, error)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._last_end = self._clock()


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


def _error(status: int, message: str) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.json_response(
        {"error": {"message": f"bridge: {message}", "type": kind, "code": status}}, status=status
    )


def _broken(
    request: web.Request, response: web.StreamResponse | None, error: Exception
) -> web.StreamResponse:
    said = str(error) or type(error).__name__
    _log.warning("a call of the agent's failed", extra={"path": request.path, "reason": said})
    if response is None or not response.prepared:
        return _error(504, "no answer in time") if isinstance(error, TimeoutError) else _error(502, said)
    if request.transport is not None:
        request.transport.abort()  # a part must not be taken for the whole
    return response


def _count(response: web.StreamResponse) -> None:
    """The model's call in the registry's words. A 502 or 504 of our own says that nobody answered."""
    status = response.status
    if status < 400:
        MODEL_CALLS.inc()
        MODEL_UP.set(to=1)
        return
    own = isinstance(response, web.Response)
    reason = {502: "unreachable", 504: "timeout"}.get(status) if own else None
    MODEL_ERRORS.inc(reason or _REASONS.get(status) or ("5xx" if status >= 500 else "refused"))
    MODEL_UP.set(to=0)
