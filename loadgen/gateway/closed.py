"""A closed loop of connections that each have one request under way, as cheap as Python can make it.

HTTP/1.1 with kept connections, prepared bytes, and no task a request: a callback reads an answer's end and
writes the next request.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field

import msgspec

from ..latency import Histogram
from .stub import ENDS, MODEL

_LOST_SECONDS = 30.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Target:
    """Where to ask, and how."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    headers: tuple[str, ...] = ()

    def request(self, *, streams: bool) -> bytes:
        """The bytes of a chat completion."""
        content = "Say what you are, in one sentence, and nothing else. " * 8
        asked = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 64}
        body = msgspec.json.encode(asked | {"stream": True} if streams else asked)
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            f"host: {self.host}:{self.port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *self.headers,
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass
class Tally:
    """What a step saw in its window."""

    whole: Histogram = field(default_factory=Histogram)
    """Until the last byte, seconds."""
    first: Histogram = field(default_factory=Histogram)
    """Until the first byte of the body, seconds."""
    wrong: int = 0
    sample: str = ""
    """Of a wrong answer, its beginning."""

    def merge(self, other: Tally) -> None:
        """Adds another step's."""
        self.whole.merge(other.whole)
        self.first.merge(other.first)
        self.wrong += other.wrong
        self.sample = self.sample or other.sample


class _Caller(asyncio.Protocol):
    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self._request = request
        self._done = done
        self.tally: Tally | None = None
        self.is_over = False
        self.has_answer = False
        self._received = b""
        self._body_at = 0
        self._length = -1
        """-1: the answer comes in chunks."""
        self._began = self._first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the connection was closed"))

    def ask(self) -> None:
        self._received, self._body_at, self._length, self._first = b"", 0, -1, 0.0
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        if not self._body_at:
            self._body_at = received.find(b"\r\n\r\n") + 4
            if self._body_at == 3:
                self._body_at = 0
                return
            head = received[: self._body_at].lower()
            _, found, length = head.partition(b"content-length:")
            self._length = int(length.partition(b"\r\n")[0]) if found else -1
        size = len(received) - self._body_at
        if size and not self._first:
            self._first = time.perf_counter()
        if received.endswith(b"\r\n0\r\n\r\n") if self._length < 0 else size >= self._length:
            self._answered(received)

    def _answered(self, received: bytes) -> None:
        now = time.perf_counter()
        self.has_answer = True
        if (tally := self.tally) is not None:
            tally.whole.record(now - self._began)
            tally.first.record((self._first or now) - self._began)
            ends = ENDS if self._length < 0 else b"stub and no model"
            if not received.startswith(b"HTTP/1.1 200") or ends not in received:
                tally.wrong += 1
                tally.sample = tally.sample or received[:400].decode("latin-1")
        if self.is_over:
            self._done.set_result(None)
            self._transport.close()
        else:
            self.ask()


class Loop:
    """So many connections to a target."""

    def __init__(self, target: Target, connections: int, *, streams: bool) -> None:
        self._target = target
        self._connections = connections
        self._request = target.request(streams=streams)
        self._callers: list[_Caller] = []
        self._futures: list[asyncio.Future[None]] = []

    async def open(self, seconds: float) -> None:
        """Connects, and asks without counting, for so long and until each had an answer. OSError;
        TimeoutError if there is none in half a minute."""
        loop = asyncio.get_running_loop()
        for _ in range(self._connections):
            done: asyncio.Future[None] = loop.create_future()
            caller = _Caller(self._request, done)
            target = self._target
            name = target.host if target.tls else None
            await loop.create_connection(
                lambda caller=caller: caller, target.host, target.port, ssl=target.tls, server_hostname=name
            )
            self._callers.append(caller)
            self._futures.append(done)
        for caller in self._callers:
            caller.ask()
        await self._pause(seconds)
        async with asyncio.timeout(_LOST_SECONDS):
            while not all(caller.has_answer for caller in self._callers):
                await self._pause(_LOOK_SECONDS)

    async def count(self, seconds: float) -> Tally:
        """Counts for so long. ConnectionError if a connection is lost."""
        tally = Tally()
        for caller in self._callers:
            caller.tally = tally
        await self._pause(seconds)
        for caller in self._callers:
            caller.tally = None
        return tally

    async def close(self) -> None:
        """Lets requests that are under way end."""
        for caller in self._callers:
            caller.is_over = True
        if self._futures:
            async with asyncio.timeout(_LOST_SECONDS):
                await asyncio.gather(*self._futures, return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        over = asyncio.create_task(asyncio.sleep(seconds))
        done, _ = await asyncio.wait([over, *self._futures], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        for lost in done - {over}:
            lost.result()
