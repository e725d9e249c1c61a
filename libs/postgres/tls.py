"""The TLS of PostgreSQL in a pod, whose build has none: `python -m libs.postgres.tls FOLDER SOCKET PORT`.

Clients begin with TLS at once (libpq 17 or later with `sslnegotiation=direct`); what is inside goes to the
Unix socket as it is, where SCRAM asks for the password. FOLDER has server.crt and server.key.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvloop

_PIECE = 1 << 16
_HANDSHAKE_SECONDS = 10.0


def context_of(folder: Path) -> ssl.SSLContext:
    """TLS 1.3, and the protocol name that libpq insists on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.set_alpn_protocols(["postgresql"])
    return context


@asynccontextmanager
async def front(context: ssl.SSLContext, inner: Path, host: str, port: int) -> AsyncIterator[int]:
    """Listens at the port that it yields, for the server at the socket `inner`, while the block runs; its end
    is the end of every connection. A client is turned away while there is no server."""
    clients: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients[writer] = asyncio.current_task()
        with suppress(OSError):  # a client's or the server's end is the end of both
            try:
                await _join(reader, writer, inner)
            finally:
                writer.close()
                await writer.wait_closed()
        del clients[writer]

    server = await asyncio.start_server(
        serve, host, port, ssl=context, ssl_handshake_timeout=_HANDSHAKE_SECONDS, backlog=256
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in clients:
            writer.transport.abort()
        await asyncio.gather(*filter(None, clients.values()))


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: Path) -> None:
    inner_reader, inner_writer = await asyncio.open_unix_connection(inner)
    ways = [_pump(reader, inner_writer), _pump(inner_reader, writer)]
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        inner_writer.close()
        await inner_writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()


async def _main(folder: Path, inner: Path, port: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with front(context_of(folder), inner, "0.0.0.0", port):
        await stopped.wait()


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
