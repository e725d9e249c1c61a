"""The TLS in front of a server that has none, with an echo in the server's place."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

import pytest

from libs.postgres.pod import certify
from libs.postgres.tls import context_of, front

pytestmark = pytest.mark.anyio


async def echo(reader, writer):
    while (data := await reader.read(65536)) and data != b"end":
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def fronted(folder, inner):
    certify(folder, "localhost")
    async with front(context_of(folder), inner, "127.0.0.1", 0) as port:
        yield port


@asynccontextmanager
async def echoing(path):
    ended = set()

    async def serve(reader, writer):
        done = asyncio.Event()
        ended.add(done)
        await echo(reader, writer)
        done.set()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield
    finally:
        server.close()
        for done in ended:
            await done.wait()


def trusting(folder):
    context = ssl.create_default_context(cafile=str(folder / "server.crt"))
    context.set_alpn_protocols(["postgresql"])
    return context


async def dialled(folder, port):
    return await asyncio.open_connection("127.0.0.1", port, ssl=trusting(folder), server_hostname="localhost")


async def test_what_a_client_says_goes_through_and_comes_back(tmp_path):
    async with echoing(tmp_path / "socket"), fronted(tmp_path, tmp_path / "socket") as port:
        reader, writer = await dialled(tmp_path, port)
        tls = writer.get_extra_info("ssl_object")
        assert (tls.version(), tls.selected_alpn_protocol()) == ("TLSv1.3", "postgresql")
        said = bytes(range(256)) * 4096
        writer.write(said)
        assert await asyncio.wait_for(reader.readexactly(len(said)), 10) == said
        writer.close()
        await writer.wait_closed()


async def test_the_end_of_the_server_is_the_end_of_the_client(tmp_path):
    async with echoing(tmp_path / "socket"), fronted(tmp_path, tmp_path / "socket") as port:
        reader, writer = await dialled(tmp_path, port)
        writer.write(b"end")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await writer.wait_closed()


async def test_a_client_is_turned_away_while_there_is_no_server(tmp_path):
    async with fronted(tmp_path, tmp_path / "socket") as port:
        reader, writer = await dialled(tmp_path, port)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await writer.wait_closed()


async def test_nothing_goes_through_in_the_clear(tmp_path):
    async with echoing(tmp_path / "socket"), fronted(tmp_path, tmp_path / "socket") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")  # libpq asking whether it may have TLS later
        with suppress(ConnectionError):
            assert b"\x04\xd2\x16\x2f" not in await asyncio.wait_for(reader.read(), 15)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
