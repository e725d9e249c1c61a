"""HTTP for the `mcp` client: our TLS, and a failure that stays with the request that met it.

Without this the client takes an error of one request for the end of its connection, failing all others, and
does not tell that a stream of notifications has ended.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx2

from ..tls import Believed

MAX_REPLY_BYTES = 8 * 1024 * 1024
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 300.0  # a stream that says nothing for so long, not even a comment, may be dead
_CONNECTION_CLOSED = -32000  # JSON-RPC's range for implementations, as the client itself uses it


def http_client(transport: httpx2.AsyncBaseTransport) -> httpx2.AsyncClient:
    """An HTTP client over it that minds no environment, and takes replies only as large as they look."""
    limits = httpx2.Timeout(_CONNECT_SECONDS, read=_SILENCE_SECONDS)
    headers = {"Accept-Encoding": "identity"}
    return httpx2.AsyncClient(transport=transport, timeout=limits, trust_env=False, headers=headers)


def was_not_sent(data: object) -> bool:
    """Of an error's data: whether the server certainly did not act on the request, so it may be repeated."""
    return isinstance(data, dict) and data.get("agentctl.dev/unsent") is True


class Transport(httpx2.AsyncBaseTransport):
    """Requests of one connection. `opened` and `ended` are told of its stream of notifications (GET)."""

    def __init__(
        self, believed: Believed | None, opened: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self._believed = believed
        self._context: Any = False
        self._pools: list[_Pool] = []
        self._opened = opened
        self._ended = ended

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await (await self._pool()).handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, OSError) as error:
            return _failure(error, unsent=True)
        except httpx2.TransportError as error:
            return _failure(error, unsent=False)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            # Streamable HTTP: the session is over, the server did nothing, a client begins a new one.
            await response.stream.aclose()
            return _failure(ConnectionError("the session is over"), unsent=True)
        if request.method == "GET":
            if response.status_code != 200:
                return response
            self._opened()
            return _with(response, _Told(response.stream, self._ended))
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        return _with(response, _Bounded(response.stream, None if is_stream else MAX_REPLY_BYTES))

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()

    async def _pool(self) -> _Pool:
        """For the next request: a certificate that was renewed is shown on connections of a pool of its own.
        Earlier ones stay while somebody reads an answer on them."""
        context = self._believed.context() if self._believed else False
        if not self._pools or context is not self._context:
            self._context, pools = context, self._pools
            self._pools = [*(each for each in pools if each.answers), _Pool(context)]
            for each in pools:
                if each not in self._pools:
                    await each.aclose()
        return self._pools[-1]


class _Pool(httpx2.AsyncHTTPTransport):
    """Connections of one context. `answers` are those that are still awaited or read."""

    def __init__(self, context: Any) -> None:
        alive = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        super().__init__(verify=context, trust_env=False, socket_options=alive)
        self.answers: set[object] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = object()
        self.answers.add(answer)
        with ExitStack() as without:  # an answer
            without.callback(self.answers.discard, answer)
            response = await super().handle_async_request(request)
            without.pop_all()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return _with(response, _Told(response.stream, partial(self.answers.discard, answer)))


class _Bounded(httpx2.AsyncByteStream):
    """A reply that is no larger than it may be, and whose errors the `mcp` client takes for the reply's."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int | None) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for part in self._stream:
                size += len(part)
                if self._most is not None and size > self._most:
                    raise httpx2.StreamError(f"the reply is larger than {self._most} bytes")
                yield part
        except (httpx2.TransportError, OSError) as error:
            raise httpx2.StreamError(_words(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Told(httpx2.AsyncByteStream):
    """A stream whose end is told, however it ends."""

    def __init__(self, stream: httpx2.AsyncByteStream, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        finally:
            self._ended()

    async def aclose(self) -> None:
        self._ended()
        await self._stream.aclose()


def _with(response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
    return httpx2.Response(
        response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
    )


def _failure(error: Exception, *, unsent: bool) -> httpx2.Response:
    data = {"agentctl.dev/unsent": unsent}
    said = {"code": _CONNECTION_CLOSED, "message": _words(error), "data": data}
    return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": said})


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
