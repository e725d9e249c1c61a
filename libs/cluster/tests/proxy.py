"""A TCP proxy in front of a server, that a test cuts or stops."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute


class Proxy:
    """Connections that pass while it does as it should; made by `proxy`."""

    def __init__(self, host, port):
        self._target = host, port
        self._connections = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        self.refuses = False

    def cut(self):
        """Ends every connection, as a crashed machine between the two would."""
        for scope in self._connections:
            scope.cancel()

    def stall(self):
        """Lets no byte pass any more, and tells nobody."""
        self._flows.clear()

    def flow(self):
        """Lets bytes pass again."""
        self._flows.set()

    async def serve(self, client):
        async with client:
            if self.refuses:
                return
            with anyio.CancelScope() as scope:
                self._connections.add(scope)
                try:
                    server = await anyio.connect_tcp(*self._target)
                    async with server, anyio.create_task_group() as group:
                        group.start_soon(self._pump, client, server, scope)
                        group.start_soon(self._pump, server, client, scope)
                finally:
                    self._connections.remove(scope)

    async def _pump(self, source, target, both):
        try:
            async for data in source:
                await self._flows.wait()
                await target.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        both.cancel()


@asynccontextmanager
async def proxy(host, port):
    """A proxy on a free port of 127.0.0.1."""
    it = Proxy(host, port)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    it.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, it.serve)
        yield it
        group.cancel_scope.cancel()
