"""OAuth client credentials, against a small fake of an authorisation server: it is no real one."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from libs.errors import UnavailableError
from libs.resources.pool import SecretRef

from ..credentials import Credentials
from ..guard import Guard, Policy
from ..sets import OAuth, Server
from ..web import Patience, Web
from .upstream_servers import ToolServer, scripted
from .world import SECRET, World, text_of

pytestmark = pytest.mark.anyio


@dataclass
class FakeIssuer:
    """Gives a token to who asks properly, and metadata of itself and of the server."""

    url: str = ""
    server: ToolServer | None = None
    issued: int = 0
    lifetime: int = 3600
    resource: str = ""
    """What the metadata says that it is of; empty: of the server."""
    asked: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def serving(cls, server: ToolServer) -> AsyncIterator[FakeIssuer]:
        fake = cls(server=server)
        async with scripted(fake._handle) as url:
            fake.url = url
            server.metadata = f"{url}/metadata-of-box"
            yield fake

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert self.server is not None
        self.paths.append(request.path)
        match request.path:
            case "/metadata-of-box":
                resource = self.resource or self.server.url
                return web.json_response(
                    {"resource": resource, "authorization_servers": [f"{self.url}/realms/a"]}
                )
            case "/.well-known/oauth-authorization-server/realms/a":
                return web.json_response(
                    {"issuer": f"{self.url}/realms/a", "token_endpoint": f"{self.url}/token"}
                )
            case "/token":
                basic = request.headers.get("Authorization", "").removeprefix("Basic ")
                form = {name: str(value) for name, value in (await request.post()).items()}
                self.asked.append({**form, "basic": base64.b64decode(basic).decode()})
                self.issued += 1
                self.server.token = f"token-{self.issued}"
                return web.json_response(
                    {
                        "access_token": self.server.token,
                        "token_type": "Bearer",
                        "expires_in": self.lifetime,
                    }
                )
            case _:
                return web.Response(status=404)


@pytest.fixture
async def issuer(world: World) -> AsyncIterator[FakeIssuer]:
    server = await world.server("box", token="none-is-good-yet")
    async with FakeIssuer.serving(server) as fake:
        yield fake


async def _secret(_: SecretRef) -> str:
    return SECRET


async def _stated(world: World, fake: FakeIssuer, **auth: Any) -> None:
    assert fake.server is not None
    stated = {"mode": "oauth", "clientId": "us", "secretRef": await world.secret(), "scope": "tools", **auth}
    await world.servers({"name": "box", "endpoint": fake.server.url, "auth": stated})


async def test_a_token_is_asked_for_once_and_for_this_server(world: World, issuer: FakeIssuer) -> None:
    await _stated(world, issuer, issuer=f"{issuer.url}/realms/a")
    gateway = await world.gateway()
    async with gateway.client("box") as client:
        results = await asyncio.gather(*(client.call_tool("echo", {"text": "x"}) for _ in range(5)))
    assert {text_of(each) for each in results} == {"box: x"}
    assert issuer.server is not None
    assert issuer.asked == [
        {
            "grant_type": "client_credentials",
            "resource": issuer.server.url,
            "scope": "tools",
            "basic": f"us:{SECRET}",
        }
    ]
    assert SECRET not in json.dumps(issuer.server.seen)


async def test_the_issuer_is_found_by_the_servers_metadata(world: World) -> None:
    """At the well-known path."""
    server = await world.server("box")
    found: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        found.append(request.path)
        base = f"http://{request.host}"
        if request.path == "/.well-known/oauth-protected-resource/mcp":
            return web.json_response({"resource": f"{base}/mcp", "authorization_servers": [base]})
        if request.path == "/.well-known/oauth-authorization-server":
            return web.json_response({"issuer": base, "token_endpoint": f"{base}/token"})
        if request.path == "/token":
            return web.json_response({"access_token": "t", "token_type": "bearer", "expires_in": 60})
        if "Authorization" not in request.headers:
            return web.Response(status=401)
        assert request.headers["Authorization"] == "Bearer t"
        async with aiohttp.ClientSession() as session:  # on to the real server
            kept = {
                name: value
                for name, value in request.headers.items()
                if name.lower().startswith(("mcp-", "accept", "content-type"))
            }
            async with session.request(
                request.method, server.url, data=await request.read(), headers=kept
            ) as answer:
                return web.Response(
                    body=await answer.read(), status=answer.status, content_type=answer.content_type
                )

    async with scripted(handle) as url:
        auth = {"mode": "oauth", "clientId": "us", "secretRef": await world.secret()}
        await world.servers(
            {"name": "box", "endpoint": f"{url}/mcp", "auth": auth, "tools": {"allow": ["echo"]}}
        )
        gateway = await world.gateway()
        response = await gateway.post("tools/call", {"name": "echo"}, path="/servers/box/mcp")
        assert "result" in response.json()
    assert found[:4] == [
        "/mcp",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/token",
    ]


async def test_the_issuer_is_found_where_the_server_says(world: World, issuer: FakeIssuer) -> None:
    await _stated(world, issuer)
    gateway = await world.gateway()
    async with gateway.client("box") as client:
        assert text_of(await client.call_tool("echo", {})) == "box: "
    assert issuer.paths == [
        "/metadata-of-box",
        "/.well-known/oauth-authorization-server/realms/a",
        "/token",
    ]


async def test_a_token_that_is_refused_is_asked_for_anew_once(world: World, issuer: FakeIssuer) -> None:
    await _stated(world, issuer, issuer=f"{issuer.url}/realms/a")
    gateway = await world.gateway()
    assert issuer.server is not None
    async with gateway.client("box") as client:
        await client.call_tool("echo", {})
        issuer.server.token = "revoked"
        assert text_of(await client.call_tool("echo", {})) == "box: "
    assert issuer.issued == 2


async def test_a_token_is_renewed_before_it_expires(world: World, issuer: FakeIssuer) -> None:
    assert issuer.server is not None
    now = 0.0
    auth = OAuth("us", SecretRef("key", "token"), f"{issuer.url}/realms/a")
    server = Server(name="box", endpoint=issuer.server.url, auth=auth)
    async with Web.open(Guard(Policy(loopback=True)), Patience()) as client:
        credentials = Credentials("demo", server, _secret, client, lambda: now)
        assert await credentials.headers() == {"Authorization": "Bearer token-1"}
        now = 3539.0
        assert await credentials.headers() == {"Authorization": "Bearer token-1"}
        now = 3540.0
        assert await credentials.headers() == {"Authorization": "Bearer token-2"}


async def test_metadata_of_another_resource_is_not_believed(world: World, issuer: FakeIssuer) -> None:
    assert issuer.server is not None
    issuer.resource = "https://victim.test/mcp"
    server = Server(name="box", endpoint=issuer.server.url, auth=OAuth("us", SecretRef("key", "token")))
    async with Web.open(Guard(Policy(loopback=True)), Patience()) as client:
        credentials = Credentials("demo", server, _secret, client)
        assert credentials.refused({}, [f'Bearer resource_metadata="{issuer.url}/metadata-of-box"'])
        with pytest.raises(UnavailableError, match="metadata is of another resource"):
            await credentials.headers()
    assert issuer.asked == []


async def test_a_secret_is_not_sent_in_the_clear(world: World, issuer: FakeIssuer) -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return ["127.0.0.1"]

    far = issuer.url.replace("127.0.0.1", "issuer.test")
    issuer.url = far
    await _stated(world, issuer, issuer=f"{far}/realms/a")
    gateway = await world.gateway(resolve=resolve)
    response = await gateway.post("tools/call", {"name": "echo"}, path="/servers/box/mcp")
    assert "the token endpoint is no https URL" in response.json()["error"]["message"]
    assert issuer.asked == []
