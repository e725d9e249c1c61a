"""Forwards a port of 127.0.0.1 to an address inside a network namespace: PORT NETNS HOST PORT.

The listening socket is opened first and stays outside; then the process joins the namespace, so that its
outgoing connections start there.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from contextlib import closing, suppress

_NETWORK = 0x40000000  # CLONE_NEWNET


def _join(netns: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/run/netns/{netns}", os.O_RDONLY)
    if libc.setns(namespace, _NETWORK):
        raise OSError(ctypes.get_errno(), f"cannot join network namespace {netns}")
    os.close(namespace)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer), suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _forward(listener: socket.socket, host: str, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

    async with await asyncio.start_server(serve, sock=listener) as server:
        await server.serve_forever()


def main(port: str, netns: str, host: str, target: str) -> None:
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=256)
    # Connections inherit it; asyncio sets it only where a socket names its protocol, and this one does not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _join(netns)
    asyncio.run(_forward(listener, host, int(target)))


if __name__ == "__main__":
    main(*sys.argv[1:])
