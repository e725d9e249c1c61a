"""Unary gRPC over mutual TLS and HTTP/2 at next to no cost of its own: what `--client lean` calls through.

A generator that shares its cores with the server should take little of them. This client does what such calls
need and no more. Its header blocks are constants; it allows the server no dynamic header table, so that equal
blocks mean equal headers and are decoded once. It keeps to the flow control of both sides, never reconnects,
and refuses what it does not know.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64decode
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
from grpc.aio import AioRpcError, Metadata
from hpack import Decoder

from libs.identity import Identity

from . import http2

_WINDOW = 1 << 30  # what we allow the server, of a stream and of all; more than it will send
_REFILL = 1 << 29
_MOST_BLOCKS = 1000
_CHECK_SECONDS = 1.0
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

Headers = dict[str, str]


class LeanChannel(asyncio.Protocol):
    """Takes the place of a grpc.aio channel for generated stubs that make unary calls."""

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._calls: dict[int, _Call] = {}
        self._blocks: dict[tuple[str, float], bytes] = {}
        self._known: dict[bytes, Headers] = {}
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = self._decoder.header_table_size = 0
        self._next_stream = 1
        self._out: list[bytes] = []
        self._received = b""
        self._unannounced = 0  # bytes of data that we took and did not yet give back to the window
        self._window = self._stream_window = http2.DEFAULT_WINDOW  # what the server allows us
        self._max_frame = http2.DEFAULT_FRAME
        self._waiting: deque[tuple[int, bytes]] = deque()  # data that does not fit into the window
        self._block: tuple[int, int, bytes] | None = None  # headers that are to be continued
        self._closed = ""
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._watch: asyncio.TimerHandle | None = None

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: object,
    ) -> Callable[..., Awaitable[Any]]:
        """What a generated stub calls."""

        async def call(request: Any, *, timeout: float) -> Any:  # noqa: ASYNC109  (as of grpc.aio)
            return response_deserializer(await self._send(method, request_serializer(request), timeout))

        return call

    def _refuse(self, method: str, *_: object, **__: object) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            raise NotImplementedError(f"{method} is not unary")

        return call

    unary_stream = stream_unary = stream_stream = _refuse

    def _send(self, method: str, message: bytes, timeout: float) -> asyncio.Future[bytes]:
        if self._closed:
            raise _error(grpc.StatusCode.UNAVAILABLE, self._closed)
        block = self._blocks.get((method, timeout))
        if block is None:
            block = self._blocks[method, timeout] = self._headers(method, timeout)
        stream = self._next_stream
        self._next_stream += 2
        deadline = time.monotonic() + timeout
        call = self._calls[stream] = _Call(self._loop.create_future(), deadline, self._stream_window)
        data = b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
        self._write(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block))
        if self._waiting or len(data) > min(self._window, self._max_frame, call.window):
            self._waiting.append((stream, data))
            self._send_waiting()
        else:
            self._window -= len(data)
            self._write(http2.frame(http2.DATA, http2.END_STREAM, stream, data))
        return call.answer

    def _headers(self, method: str, timeout: float) -> bytes:
        fields = (
            (":method", "POST"),
            (":scheme", "https"),
            (":path", method),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "agentctl-loadgen"),
            ("grpc-timeout", f"{timeout * 1000:.0f}m"),
        )
        return b"".join(map(http2.field, fields))

    def _send_waiting(self) -> None:
        """In order, in frames as large as both windows and the server's limit allow."""
        while self._waiting:
            stream, data = self._waiting[0]
            call = self._calls.get(stream)
            if call is None:  # it ended before all was sent
                self._waiting.popleft()
                continue
            size = min(len(data), self._window, call.window, self._max_frame)
            if size <= 0:
                return
            self._window -= size
            call.window -= size
            rest = data[size:]
            self._write(http2.frame(http2.DATA, 0 if rest else http2.END_STREAM, stream, data[:size]))
            if rest:
                self._waiting[0] = (stream, rest)
            else:
                self._waiting.popleft()

    def _write(self, frame: bytes) -> None:
        if not self._out:  # one write for all frames of this turn of the loop
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        if not self._closed:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        wanted = {http2.TABLE_SIZE: 0, http2.ENABLE_PUSH: 0, http2.INITIAL_WINDOW: _WINDOW}
        settings = b"".join(key.to_bytes(2, "big") + wanted[key].to_bytes(4, "big") for key in wanted)
        self._write(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, settings))
        self._write(
            http2.frame(http2.WINDOW_UPDATE, 0, 0, (_WINDOW - http2.DEFAULT_WINDOW).to_bytes(4, "big"))
        )
        self._watch = self._loop.call_later(_CHECK_SECONDS, self._check_deadlines)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"connection lost: {exc or 'by the server'}")

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        at, end = 0, len(received)
        while end - at >= 9:
            size = int.from_bytes(received[at : at + 3], "big")
            if end - at < 9 + size:
                break
            kind, flags = received[at + 3], received[at + 4]
            stream = int.from_bytes(received[at + 5 : at + 9], "big")
            self._take(kind, flags, stream, received[at + 9 : at + 9 + size])
            at += 9 + size
        self._received = received[at:]

    def close(self) -> None:
        """Ends the connection, and what is under way."""
        self._end("closed by us")
        self._transport.abort()

    # --- frames ---

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.DATA:
            self._take_data(flags, stream, payload)
        elif kind in (http2.HEADERS, http2.CONTINUATION):
            self._take_headers(kind, flags, stream, payload)
        elif kind == http2.WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if not stream:
                self._window += more
            elif call := self._calls.get(stream):
                call.window += more
            self._send_waiting()
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            self._take_settings(payload)
        elif kind == http2.PING and not flags & http2.ACK:
            self._write(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.RST_STREAM:
            if call := self._calls.pop(stream, None):
                call.fail(grpc.StatusCode.UNAVAILABLE, f"HTTP/2 error {int.from_bytes(payload, 'big')}")
        elif kind == http2.GOAWAY:
            self._end("the server goes away")

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._unannounced += len(payload)
        if self._unannounced > _REFILL:
            self._write(http2.frame(http2.WINDOW_UPDATE, 0, 0, self._unannounced.to_bytes(4, "big")))
            self._unannounced = 0
        if call := self._calls.get(stream):
            call.parts.append(http2.unpadded(flags, payload))

    def _take_headers(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.HEADERS:
            payload = http2.unpadded(flags, payload)
            block = payload[5:] if flags & http2.PRIORITY else payload
        elif self._block is None or self._block[0] != stream:
            return self._end("a continuation of nothing")
        else:
            _, first_flags, begun = self._block
            flags, block = flags | first_flags, begun + payload
        if not flags & http2.END_HEADERS:
            self._block = (stream, flags, block)
            return None
        self._block = None
        headers = self._known.get(block)
        if headers is None:
            headers = {str(name): str(value) for name, value in self._decoder.decode(block)}
            if len(self._known) < _MOST_BLOCKS:
                self._known[block] = headers
        if flags & http2.END_STREAM and (call := self._calls.pop(stream, None)):
            call.finish(headers)
        return None

    def _take_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            key = int.from_bytes(payload[at : at + 2], "big")
            value = int.from_bytes(payload[at + 2 : at + 6], "big")
            if key == http2.INITIAL_WINDOW:
                for call in self._calls.values():
                    call.window += value - self._stream_window
                self._stream_window = value
            elif key == http2.MAX_FRAME:
                self._max_frame = value
        self._write(http2.frame(http2.SETTINGS, http2.ACK, 0, b""))
        self._send_waiting()

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for stream in [stream for stream, call in self._calls.items() if call.deadline < now]:
            self._write(http2.frame(http2.RST_STREAM, 0, stream, http2.CANCEL.to_bytes(4, "big")))
            self._calls.pop(stream).fail(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
        self._watch = self._loop.call_later(_CHECK_SECONDS, self._check_deadlines)

    def _end(self, why: str) -> None:
        self._closed = self._closed or why
        if self._watch:
            self._watch.cancel()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(grpc.StatusCode.UNAVAILABLE, why)


class _Call:
    """One under way."""

    __slots__ = ("answer", "deadline", "parts", "window")

    def __init__(self, answer: asyncio.Future[bytes], deadline: float, window: int) -> None:
        self.answer = answer
        self.deadline = deadline
        self.window = window
        self.parts: list[bytes] = []

    def finish(self, trailers: Headers) -> None:
        if self.answer.done():
            return
        status = trailers.get("grpc-status")
        if status != "0":
            code = _CODES.get(int(status or 2), grpc.StatusCode.UNKNOWN)
            self.answer.set_exception(_error(code, unquote(trailers.get("grpc-message", "")), trailers))
            return
        data = b"".join(self.parts)
        if len(data) < 5 or data[0] or int.from_bytes(data[1:5], "big") != len(data) - 5:
            self.answer.set_exception(_error(grpc.StatusCode.INTERNAL, "not one uncompressed message"))
        else:
            self.answer.set_result(data[5:])

    def fail(self, code: grpc.StatusCode, message: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(_error(code, message))


async def connect(address: str, identity: Identity, name: str) -> LeanChannel:
    """A connection to whoever can prove to have this name. OSError if there is nobody."""
    context = ssl.create_default_context(cafile=str(identity.root))
    context.load_cert_chain(identity.certificate, identity.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _, channel = await asyncio.get_running_loop().create_connection(
        lambda: LeanChannel(name), host, int(port), ssl=context, server_hostname=name
    )
    return channel


def _error(code: grpc.StatusCode, message: str, trailers: Headers | None = None) -> AioRpcError:
    found = Metadata()
    for key, value in (trailers or {}).items():
        padding = "=" * (-len(value) % 4)
        found.add(key, b64decode(value + padding) if key.endswith("-bin") else value)
    return AioRpcError(code, Metadata(), found, message)
