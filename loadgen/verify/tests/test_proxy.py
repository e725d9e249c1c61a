"""The proxy between two ends that talk."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from loadgen.verify.proxy import Proxy


@asynccontextmanager
async def echoing():
    """A proxy before a server that answers what it is told."""

    loop = asyncio.get_running_loop()
    ended = []

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
            self.ended = loop.create_future()
            ended.append(self.ended)

        def data_received(self, data):
            self.transport.write(data)

        def connection_lost(self, exc):
            self.ended.set_result(None)

    server = await loop.create_server(Echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = Proxy(lambda protocol: loop.create_connection(protocol, "127.0.0.1", port))
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
        await asyncio.wait_for(asyncio.gather(*ended), 10)
        server.close()


@asynccontextmanager
async def connected(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(reader, writer, text):
    writer.write(text)
    return await asyncio.wait_for(reader.readexactly(len(text)), 10)


async def test_what_is_sent_passes_until_it_is_cut():
    async with echoing() as proxy:
        async with connected(proxy) as (reader, writer):
            assert await ask(reader, writer, b"hello") == b"hello"
            assert proxy.cut() == 1
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await ask(reader, writer, b"again")
        async with connected(proxy) as (reader, writer):
            assert await ask(reader, writer, b"anew") == b"anew"


async def test_what_is_frozen_arrives_after_the_thaw():
    async with echoing() as proxy, connected(proxy) as (reader, writer):
        assert await ask(reader, writer, b"before") == b"before"
        proxy.freeze()
        writer.write(b"held")
        async with connected(proxy) as (late_reader, late_writer):
            late_writer.write(b"late")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(4), 0.2)
            proxy.thaw()
            assert await asyncio.wait_for(reader.readexactly(4), 10) == b"held"
            assert await asyncio.wait_for(late_reader.readexactly(4), 10) == b"late"


async def test_answers_alone_can_be_frozen():
    async with echoing() as proxy, connected(proxy) as (reader, writer):
        assert await ask(reader, writer, b"before") == b"before"
        proxy.freeze(answers_only=True)
        async with connected(proxy) as (late_reader, late_writer):
            late_writer.write(b"late")
            writer.write(b"held")
            writer.write(b"too")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(4), 0.2)
            proxy.thaw()
            assert await asyncio.wait_for(reader.readexactly(7), 10) == b"heldtoo"
            assert await asyncio.wait_for(late_reader.readexactly(4), 10) == b"late"


async def test_an_end_closes_the_other_end():
    async with echoing() as proxy, connected(proxy) as (reader, writer):
        assert await ask(reader, writer, b"hello") == b"hello"
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_nobody_behind_is_nobody_there():
    async def refuse(protocol):
        raise ConnectionRefusedError

    proxy = Proxy(refuse)
    await proxy.open()
    try:
        async with connected(proxy) as (reader, writer):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await ask(reader, writer, b"hello")
    finally:
        await proxy.close()
