"""Connections to a tool server that is shown our certificate, while that is renewed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from libs.identity import Identity
from libs.testing import ca
from services.agent.tls import Believed
from services.agent.tools.transport import Transport, http_client

OUR_ID = "spiffe://mesh.test/ns/a/agent/x/pod/x-0/u1"


@dataclass
class Server:
    """Answers a GET in two parts, the second when it may, and a POST at once."""

    url: str = ""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    serials: list[str] = field(default_factory=list)
    """Of who asked, one a request."""
    connections: list[asyncio.Transport] = field(default_factory=list)
    """That the requests came on."""

    async def answer(self, http: web.Request) -> web.StreamResponse:
        assert http.transport
        self.serials.append(http.transport.get_extra_info("peercert")["serialNumber"])
        self.connections.append(http.transport)
        if http.method == "POST":
            return web.json_response({})
        response = web.StreamResponse()
        await response.prepare(http)
        await response.write(b"one")
        await self.go_on.wait()
        await response.write(b"two")
        return response


@asynccontextmanager
async def serving(identity: Identity) -> AsyncIterator[Server]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(identity.root))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(identity.certificate, identity.key)
    server, app = Server(), web.Application()
    app.router.add_route("*", "/", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    server.url = f"https://localhost:{runner.addresses[0][1]}/"
    try:
        yield server
    finally:
        await runner.cleanup()


def nothing() -> None:
    pass


async def test_each_renewed_certificate_has_connections_of_its_own_and_those_that_nobody_reads_end(tmp_path):
    ours = ca.identity(ca.authority(), tmp_path, OUR_ID)
    its = ca.identity(ca.authority(), tmp_path, "/cp/mcpgateway", dns_names=["localhost"])
    transport = Transport(Believed(identity=ours), nothing, nothing)
    async with (
        serving(its) as server,
        http_client(transport) as http,
        http.stream("GET", server.url) as stream,
    ):
        parts = stream.aiter_bytes()
        assert await anext(parts) == b"one"
        for _ in range(3):
            ca.authority().issue(OUR_ID, ours.folder)
            for _ in range(2):
                assert (await http.post(server.url)).status_code == 200
        assert [len(set(server.serials[1:][pair : pair + 2])) for pair in (0, 2, 4)] == [1, 1, 1]
        assert len(set(server.serials)) == 4
        async with asyncio.timeout(5):
            while not all(each.is_closing() for each in server.connections[1:5]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert not server.connections[0].is_closing()
        assert not server.connections[-1].is_closing()
        server.go_on.set()
        assert await anext(parts) == b"two"
