"""The default front: gRPC as an ASGI application behind h2corn, which does TLS and HTTP/2.

TLS 1.2 is refused, which h2corn itself would take.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import grpc
from h2corn import Config, RequestPolicy, Server

from libs.errors import (
    ExhaustedError,
    InvalidError,
    UnavailableError,
    UnimplementedError,
)
from libs.identity import Identity

from .boundary import NO_MESSAGE, TOO_MANY_MESSAGES, Doorway, LeftError, Limits, Method, Visit
from .callers import strict_leaf
from .compression import ACCEPTED, inflate
from .status import Status

_HEADERS = [(b"content-type", b"application/grpc"), (b"grpc-accept-encoding", ACCEPTED)]
_LEFT = LeftError("the caller left")
_START = {"type": "http.response.start", "status": 200, "headers": _HEADERS, "trailers": True}
_WELL: dict[str, Any] = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]}
_FRAME = struct.Struct(">BI")  # compressed, size
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_LARGE_BYTES = 64 * 1024  # smaller answers are not counted
_HEAD_BYTES = 32 * 1024
_REQUEST_SECONDS = 20.0
_OWN_HEADERS = {b"content-type", b"te", b"host"}

A = TypeVar("A")


class Succession(Generic[A]):
    """One listening socket, and one h2corn server after another on it: a server keeps the certificate that it
    began with, so rotating means to start the next one and to let the last one drain.

    `config` makes a server's configuration for a file descriptor of the socket. `interrupt` ends what is
    still inside an application when its time is up; without it h2corn does.
    """

    def __init__(
        self,
        application: Callable[[], A],
        config: Callable[[int], Config],
        drain_seconds: float,
        interrupt: Callable[[A], None] = lambda _: None,
    ) -> None:
        self._application = application
        self._config = config
        self._drain_seconds = drain_seconds
        self._interrupt = interrupt
        self._listener: socket.socket | None = None
        self._running: tuple[A, Server, asyncio.Task[None]] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listens and serves; the port."""
        self._listener = _listen(host, port)
        self._running = await self._begin(self._listener)
        bound: int = self._listener.getsockname()[1]
        return bound

    async def rotate(self) -> None:
        """Serves new connections as the configuration is now; OSError or ValueError if that cannot be."""
        if self._listener is None or self._running is None:
            return
        last, self._running = self._running, await self._begin(self._listener)
        retiring = asyncio.create_task(self._end(*last, self._drain_seconds))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    async def stop(self, seconds: float) -> None:
        """Accepts nothing more; interrupts after so many seconds what is not done by then."""
        if self._listener is None or self._running is None:
            return
        self._listener.close()
        await asyncio.gather(self._end(*self._running, seconds), *self._retiring)

    async def _begin(self, listener: socket.socket) -> tuple[A, Server, asyncio.Task[None]]:
        application = self._application()
        server = Server(cast("Any", application), self._config(listener.fileno()))  # it makes a copy of that
        task = asyncio.create_task(server.serve())
        await server.wait_started()
        return application, server, task

    async def _end(self, application: A, server: Server, task: asyncio.Task[None], seconds: float) -> None:
        server.shutdown()
        await asyncio.wait({task}, timeout=seconds)
        self._interrupt(application)
        await task


class H2cornFront(Succession["Application"]):
    """Serves a doorway."""

    def __init__(self, doorway: Doorway, identity: Identity, limits: Limits) -> None:
        super().__init__(
            partial(Application, doorway, limits),
            partial(_config, doorway, identity, limits),
            limits.drain_seconds,
            partial(_interrupt, doorway),
        )


def _interrupt(doorway: Doorway, application: Application) -> None:
    doorway.interrupt(
        UnavailableError("the server is going away"),
        lambda visit: isinstance(visit, Exchange) and visit.application is application,
    )


def _config(doorway: Doorway, identity: Identity, limits: Limits, fd: int) -> Config:
    single = [method.name for method in doorway.methods.values() if not method.asks_many]
    return Config(
        bind=(f"fd://{fd}",),
        certfile=identity.certificate,
        keyfile=identity.key,
        ca_certs=identity.root if doorway.certified else None,
        # who shows none is refused by the doorway, with a code and a log line
        cert_reqs="optional" if doorway.certified else "none",
        grpc=True,
        http1=False,
        lifespan="off",
        access_log=False,
        log_format="json",
        runtime_threads=1,  # a second one gains nothing: the handlers share one loop
        date_header=False,
        limit_connections=limits.max_connections,
        max_concurrent_streams=limits.max_streams,
        h2_max_header_list_size=_HEAD_BYTES,
        h2_max_header_block_size=_HEAD_BYTES,
        request_policies=tuple(map(_policy, single)),
        timeout_graceful_shutdown=limits.drain_seconds + 2,
    )


class Application:
    """The ASGI application in front of a doorway. Several may share one while certificates rotate."""

    def __init__(self, doorway: Doorway, limits: Limits) -> None:
        self._doorway = doorway
        self._methods = {name.encode(): method for name, method in doorway.methods.items()}
        self.max_message = limits.max_message
        self.max_underway = limits.max_underway
        self.underway = 0  # bytes of messages on their way

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise UnimplementedError(f"no {scope['type']} here")
        method = self._methods.get(scope["raw_path"], self._doorway.unknown)
        exchange = Exchange(self, method, scope, receive, send)
        try:
            status = await self._doorway.enter(exchange)
        finally:
            exchange.ahead = None
            if exchange.underway:
                exchange.grow(-exchange.underway)
        if not exchange.over:
            await exchange.finish(status)


class Exchange(Visit):
    """One request and its answer, as ASGI events."""

    __slots__ = (
        "_asked",
        "_buffer",
        "_headers",
        "_receive",
        "_scope",
        "_send",
        "_started",
        "_watching",
        "ahead",
        "application",
        "over",
        "underway",
    )

    def __init__(
        self,
        application: Application,
        method: Method,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        super().__init__(method, Metadata(self._headers))
        self.application = application
        self.underway = 0
        self.over = False  # all has been said, the status too
        self._scope = scope
        self._receive = receive
        self._send = send
        self._buffer: bytes | bytearray = b""
        self._asked = False  # the request is whole
        self._started = self._watching = False
        self.ahead: asyncio.Future[dict[str, Any]] | None = None

    def leaf(self) -> bytes | None:
        return strict_leaf(self._scope)

    def timeout(self) -> float:
        value = self._headers.get(b"grpc-timeout")
        return float("inf") if value is None else _seconds(value)

    def origin(self) -> str:
        client = self._scope.get("client")
        return "{}:{}".format(*client) if client else "unknown"

    async def read(self) -> bytes | None:
        while True:
            if self._buffer and (message := self._take()) is not None:
                return message
            if self._asked:
                if self._buffer:
                    raise InvalidError("the request ends within a message")
                return None
            self._keep(await (self.ahead or self._receive()))

    async def ask(self) -> bytes:
        message = None
        while True:
            if self._buffer:
                if message is not None:
                    raise InvalidError(TOO_MANY_MESSAGES)
                message = self._take()
            if self._asked:
                break
            self._keep(await self._receive())
        if message is None:
            raise InvalidError("the request ends within a message" if self._buffer else NO_MESSAGE)
        if self._buffer:
            raise InvalidError(TOO_MANY_MESSAGES)
        return message

    def _keep(self, event: dict[str, Any]) -> None:
        self.ahead = None
        if event["type"] == "http.disconnect":
            # A new one each time: an error that is kept keeps every frame that it ever came through.
            raise LeftError("the caller left")
        self._asked = not event.get("more_body", False)
        if self._watching:
            self.watch()
        body = event.get("body", b"")
        if not self._buffer:
            self._buffer = body
        else:
            self.grow(len(body))
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)  # grows in place from here on
            self._buffer += body

    def grow(self, size: int) -> None:
        """So many more bytes are on their way: in, until their message is whole; or out."""
        self.underway += size
        self.application.underway += size
        if size > 0 and self.application.underway > self.application.max_underway:
            raise ExhaustedError("too much is on its way at once, try again")

    def _take(self) -> bytes | None:
        if len(self._buffer) < 5:
            return None
        compressed, size = _FRAME.unpack_from(self._buffer)
        most = self.application.max_message
        if size > most:
            raise ExhaustedError(f"SERVER: Received message larger than max ({size} vs. {most})")
        end = 5 + size
        if len(self._buffer) < end:
            return None
        message, self._buffer = bytes(self._buffer[5:end]), self._buffer[end:]
        if self.underway:
            self.grow(-self.underway)
        return inflate(self._headers.get(b"grpc-encoding"), message, most) if compressed else message

    def watch(self) -> None:
        """Asks for the next event before anybody needs it, since that event may be the caller's leaving."""
        self._watching = True
        if self.ahead is None:
            self.ahead = asyncio.ensure_future(self._receive())
            self.ahead.add_done_callback(self._noticed)

    def _noticed(self, ahead: asyncio.Future[dict[str, Any]]) -> None:
        if not ahead.cancelled() and ahead.result()["type"] == "http.disconnect":
            self.interrupt(_LEFT)

    async def write(self, message: bytes) -> None:
        large = len(message) > _LARGE_BYTES
        if large:
            self.grow(len(message))
        frame = _FRAME.pack(0, len(message)) + message
        try:
            if not self._started:
                self._started = True
                await self._send(_START)
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        except OSError as error:
            raise LeftError("the caller left") from error
        if large:
            self.grow(-len(message))

    async def reply(self, message: bytes) -> None:
        send = self._send
        if len(message) > _LARGE_BYTES:
            self.grow(len(message))  # until the call is over
        self._started = True
        frame = _FRAME.pack(0, len(message)) + message
        try:
            await send(_START)
            await send({"type": "http.response.body", "body": frame, "more_body": False})
            await send(_WELL)
        except OSError as error:
            raise LeftError("the caller left") from error
        self.over = True

    async def finish(self, status: Status) -> None:
        """Ends an answer that did not end well, or that had many messages. Who left hears nothing."""
        with suppress(OSError):
            if not self._started:
                await _refuse(self._send, status)
                return
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            trailers = _trailers(status) if status.code is not grpc.StatusCode.OK else _WELL["headers"]
            await self._send({"type": "http.response.trailers", "headers": trailers})


@lru_cache(maxsize=4096)
def _seconds(timeout: bytes) -> float:
    unit = _UNITS.get(timeout[-1:])
    if unit is None or not timeout[:-1].isdigit() or len(timeout) > 9:
        raise InvalidError("grpc-timeout is not a gRPC timeout")
    return int(timeout[:-1]) * unit


class Metadata(Mapping[str, str | bytes]):
    """Header fields as gRPC metadata, decoded when somebody looks."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[bytes, bytes]) -> None:
        self._headers = headers

    def __getitem__(self, key: str) -> str | bytes:
        value = self._headers[key.encode()]
        if key.endswith("-bin"):
            return b64decode(value + b"=" * (-len(value) % 4))
        return value.decode("ascii", "replace")

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key.encode() in self._headers else default

    def __iter__(self) -> Iterator[str]:
        for key in self._headers:
            if key not in _OWN_HEADERS and not key.startswith(b"grpc-"):
                yield key.decode("ascii", "replace")

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _trailers(status: Status) -> list[tuple[bytes, bytes]]:
    trailers = [
        (b"grpc-status", b"%d" % status.code.value[0]),
        (b"grpc-message", quote(status.message, safe=_PRINTABLE).encode()),
    ]
    if status.details:
        trailers.append((b"grpc-status-details-bin", b64encode(status.details).rstrip(b"=")))
    return trailers


async def _refuse(send: Callable[[dict[str, Any]], Awaitable[None]], status: Status) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *_trailers(status)]})
    await send({"type": "http.response.body", "body": b""})


def _policy(method: str) -> RequestPolicy:
    """Sizes are the adapter's; but a single request that never ends would hold its memory."""
    return RequestPolicy(
        path=method,
        max_request_body_size=0,
        timeout_request_body_idle=_REQUEST_SECONDS,
        h2_timeout_response_stall=60.0,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    # Connections inherit these: the kernel finds dead peers, since h2corn pings nobody.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return listener
