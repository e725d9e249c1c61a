"""A TCP proxy whose connections can be cut or frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

Dial = Callable[[Callable[[], asyncio.Protocol]], Awaitable[tuple[asyncio.BaseTransport, asyncio.Protocol]]]
"""Connects a protocol to what is behind the proxy."""


class Proxy:
    """Listens on a free loopback port from `open` to `close`."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._server: asyncio.Server | None = None
        self._sides: set[_Side] = set()
        self.port = 0
        self.frozen: type[_Side] | None = None  # which sides are not read from

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Front(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Returns when all its sockets are closed."""
        if self._server is not None:
            self._server.close()
        gone = [side.gone for side in self._sides]
        self.cut()
        await asyncio.gather(*gone)

    def cut(self) -> int:
        """Reset all connections; how many there were."""
        sides = list(self._sides)
        for side in sides:
            side.abort()
        return len(sides) // 2

    def freeze(self, *, answers_only: bool = False) -> None:
        """From now on nothing passes, or nothing on the way back, and nobody is told."""
        self.frozen = _Back if answers_only else _Side
        for side in self._sides:
            self._hold(side)

    def thaw(self) -> None:
        """What waited passes."""
        self.frozen = None
        for side in self._sides:
            side.go_on()

    def joined(self, side: _Side) -> None:
        self._sides.add(side)
        self._hold(side)

    def left(self, side: _Side) -> None:
        self._sides.discard(side)

    async def reach(self, front: _Front) -> None:
        """Connect what is behind, or reset who came."""
        try:
            _, back = await self._dial(lambda: _Back(self))
        except OSError:
            front.abort()
            return
        assert isinstance(back, _Side)
        front.meet(back)

    def _hold(self, side: _Side) -> None:
        if self.frozen is not None and isinstance(side, self.frozen):
            side.hold()


class _Side(asyncio.Protocol):
    """One of two sockets. What comes before the other one is there waits."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._transport: asyncio.Transport | None = None
        self._peer: _Side | None = None
        self._early: list[bytes] = []
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type
        self._proxy.joined(self)

    def meet(self, peer: _Side) -> None:
        self._peer, peer._peer = peer, self
        if self._transport is None or self._transport.is_closing():
            peer.abort()
        for data in self._early:
            peer.send(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            self._early.append(data)
        else:
            self._peer.send(data)

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.hold()

    def resume_writing(self) -> None:
        if self._peer is not None and self._proxy.frozen is None:
            self._peer.go_on()

    def hold(self) -> None:
        if self._transport is not None:
            with suppress(RuntimeError):  # it is closing
                self._transport.pause_reading()

    def go_on(self) -> None:
        if self._transport is not None:
            with suppress(RuntimeError):
                self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.left(self)
        self.gone.set_result(None)
        if self._peer is not None:
            if exc is None and self._peer._transport is not None:
                self._peer._transport.close()  # after what was sent
            else:
                self._peer.abort()


class _Back(_Side):
    """The side of what is behind."""


class _Front(_Side):
    """The side of who came."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self._reaching: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._reaching = asyncio.create_task(self._proxy.reach(self))
