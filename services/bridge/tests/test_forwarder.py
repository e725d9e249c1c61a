"""The agent's way out: with the pod's certificate, without the agent's credentials, streams as they come."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from io import BytesIO

import aiohttp
import pytest
from aiohttp import web

from libs.contract.events import Ring
from libs.identity import Identity
from libs.testing import ca
from services.bridge.forwarder import MAX_BODY, Forwarder, Tls, Upstreams, forwarding
from services.bridge.outbound import Outbound
from services.bridge.settings import Upstream
from services.bridge.turns import Turns


class Server:
    """A model and a tool server in one, that shows what reaches it."""

    def __init__(self, pod: Identity) -> None:
        self.pod = pod
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.callers: list[str] = []
        self.go_on = asyncio.Event()
        self.left = asyncio.Event()
        self.forwarded_from = 0
        self.turns = Turns(Ring())
        """Of the forwarder before it."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        self.callers.append(dict(peer["subjectAltName"])["URI"] if peer else "")
        match request.path:
            case "/v1/stream" | "/tools":
                return await self._stream(request)
            case "/v1/chat/completions" if b"stream" in self.bodies[-1]:
                return await self._stream(request)
            case "/v1/large":
                return web.Response(body=BytesIO(b"x" * (MAX_BODY + 1)))
            case "/v1/slow":
                await self.go_on.wait()
            case "/v1/throttled":
                return web.json_response({"error": "later"}, status=429, headers={"Retry-After": "7"})
        return web.json_response(
            {"path": request.path_qs}, headers={"Set-Cookie": "a=b", "X-Request-Id": "7"}
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        await response.write(b"data: 2\n\n")
        return response


@asynccontextmanager
async def world(folder, silence=timedelta(seconds=5), is_shown_ours=True):
    """An upstream that asks for certificates, the forwarder before it, and the agent's HTTP client."""
    pod = ca.identity(ca.authority(), folder, "/ns/demo/agent/worker/pod/worker-0/uid-1")
    server = ca.identity(ca.authority(), folder, "/cp/modelgateway", dns_names=["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(server.root))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(server.certificate, server.key)
    upstream = Server(pod)
    app = web.Application(client_max_size=2 * MAX_BODY)
    app.router.add_route("*", "/{path:.*}", upstream.answer)
    async with AsyncExitStack() as stack:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        url = f"https://localhost:{runner.addresses[0][1]}"
        servers = {
            "tools": Upstream(f"{url}/tools", is_shown_ours),
            "others": Upstream(f"{url}/others"),
            "away": Upstream("http://127.0.0.1:9/"),
        }
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        forwarder = Forwarder(
            session,
            Upstreams(Upstream(f"{url}/v1", is_shown_ours), servers, silence),
            Tls(Outbound(None, server.root).context, Outbound(pod, None).context),
            upstream.turns,
        )
        port = await stack.enter_async_context(forwarding(forwarder, "127.0.0.1", 0))
        upstream.forwarded_from = port
        agent = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        yield upstream, agent


async def test_a_call_goes_on_with_the_pods_certificate_and_without_the_agents_key(tmp_path):
    async with world(tmp_path) as (upstream, agent):
        sent = {
            "Authorization": "Bearer secret",
            "Cookie": "session=1",
            "X-Api-Key": "secret",
            "Connection": "X-Hop",
            "X-Hop": "1",
            "traceparent": "00-1-2-01",
        }
        async with agent.post("/v1/chat/completions?a=1", json={"model": "m"}, headers=sent) as response:
            assert response.status == 200
            assert (await response.json())["path"] == "/v1/chat/completions?a=1"
            assert response.headers["X-Request-Id"] == "7"
            assert "Set-Cookie" not in response.headers
        assert upstream.callers == ["spiffe://mesh.test/ns/demo/agent/worker/pod/worker-0/uid-1"]
        assert upstream.bodies == [b'{"model": "m"}']
        headers = upstream.seen[0].headers
        assert headers["traceparent"] == "00-1-2-01"
        assert headers["Host"].startswith("localhost:")
        assert not {"Authorization", "Cookie", "X-Api-Key", "X-Hop"} & set(headers)


async def test_our_certificate_is_shown_to_those_only_that_are_said_to_be_shown_it(tmp_path):
    async with world(tmp_path) as (upstream, agent):
        for path in ("/mcp/others", "/v1/models", "/mcp/others"):
            async with agent.get(path) as response:
                assert response.status == 200
        assert [bool(each) for each in upstream.callers] == [False, True, False]
    async with world(tmp_path, is_shown_ours=False) as (upstream, agent):
        async with agent.get("/v1/models") as response:
            assert response.status == 200
        assert upstream.callers == [""]


async def test_the_next_call_shows_a_certificate_that_was_renewed_while_a_stream_goes_on(tmp_path):
    async with world(tmp_path) as (upstream, agent), agent.post("/v1/stream") as stream:
        assert await stream.content.readuntil(b"\n\n") == b"data: 1\n\n"
        renewed = "spiffe://mesh.test/ns/demo/agent/worker/pod/worker-0/uid-2"
        ca.authority().issue(renewed, upstream.pod.folder)
        async with agent.get("/v1/models") as response:
            assert response.status == 200
        upstream.go_on.set()
        assert await stream.content.read() == b"data: 2\n\n"
        assert [each[-5:] for each in upstream.callers] == ["uid-1", "uid-2"]


async def test_a_stream_passes_as_it_comes_and_ends_upstream_when_the_agent_leaves(tmp_path):
    async with world(tmp_path) as (upstream, agent):
        async with agent.post("/v1/stream") as response:
            assert response.content_type == "text/event-stream"
            assert await response.content.readuntil(b"\n\n") == b"data: 1\n\n"  # the second is not sent yet
            upstream.go_on.set()
            assert await response.content.read() == b"data: 2\n\n"
        upstream.go_on.clear()
        async with agent.get("/mcp/tools") as response:
            assert await response.content.readuntil(b"\n\n") == b"data: 1\n\n"
            response.close()
        async with asyncio.timeout(10):
            await upstream.left.wait()


async def test_a_stream_of_the_model_that_is_cut_breaks_off_and_says_nothing_else(tmp_path):
    async with (
        world(tmp_path) as (upstream, agent),
        agent.post("/v1/chat/completions", json={"stream": True}) as response,
    ):
        assert await response.content.readuntil(b"\n\n") == b"data: 1\n\n"
        assert upstream.turns.own.cut(for_good=False)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
        async with asyncio.timeout(10):
            await upstream.left.wait()


async def test_what_there_is_not_is_404(tmp_path):
    async with world(tmp_path) as (upstream, agent):
        for path in ("/mcp/other", "/mcp/", "/", "/v2/chat", "/mcp/tools/more"):
            async with agent.post(path, data=b"{}") as response:
                assert response.status == 404, path
        assert upstream.seen == []


async def test_whoever_is_away_is_502_and_whoever_is_silent_504(tmp_path):
    async with world(tmp_path, silence=timedelta(seconds=0.2)) as (_, agent):
        async with agent.post("/mcp/away", data=b"{}") as response:
            assert response.status == 502
            assert (await response.json())["error"]["type"] == "server_error"
        async with agent.post("/v1/slow", data=b"{}") as response:
            assert response.status == 504
            assert "no answer" in (await response.json())["error"]["message"]


async def test_who_listens_to_a_server_that_is_away_meets_nobody(tmp_path):
    """agentd takes any other answer than a stream for a server that has none, and never asks again."""
    async with world(tmp_path) as (_, agent):
        with pytest.raises(aiohttp.ClientConnectionError):
            await agent.get("/mcp/away")


async def test_an_upstreams_own_refusal_passes(tmp_path):
    async with world(tmp_path) as (_, agent), agent.post("/v1/throttled", data=b"{}") as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "7"
        assert await response.json() == {"error": "later"}


async def test_bodies_are_bounded_both_ways(tmp_path):
    async with world(tmp_path) as (upstream, agent):
        async with agent.post("/v1/embeddings", data=BytesIO(b"x" * (MAX_BODY + 1))) as response:
            assert response.status == 413
        assert upstream.seen == []
        async with agent.post("/v1/large", data=b"{}") as response:
            assert response.status == 502


async def test_a_renewed_certificate_is_shown_from_then_on(tmp_path):
    pod = ca.identity(ca.authority(), tmp_path, "/ns/demo/agent/worker/pod/worker-0/uid-1")
    outbound = Outbound(pod, pod.root)
    before = outbound.context()
    assert outbound.context() is before
    other = ca.authority().issue("spiffe://mesh.test/ns/demo/agent/worker/pod/worker-0/uid-1", tmp_path / "o")
    other.key.replace(pod.key)
    other.certificate.replace(pod.certificate)
    after = outbound.context()
    assert after is not before
    pod.certificate.unlink()
    assert outbound.context() is after  # what was read goes on
    with pytest.raises(OSError, match=r"tls\.crt"):
        Outbound(pod, None).context()


@pytest.mark.parametrize("path", ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/a/../../admin", "/v1/.%2E/v1x"])
async def test_nothing_but_the_models_paths_is_reached(tmp_path, path):
    async with world(tmp_path) as (upstream, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream.forwarded_from)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head = (await reader.read()).split(b"\r\n")[0]
        writer.close()
        await writer.wait_closed()
        assert b" 404 " in head
        assert [each.path for each in upstream.seen] == []


async def test_nothing_is_said_in_the_agents_name(tmp_path):
    own = ("Accept", "Accept-Encoding", "User-Agent")
    async with world(tmp_path) as (upstream, agent):
        async with agent.get("/v1/models?x=a%20b", skip_auto_headers=own) as response:
            assert (await response.json())["path"] == "/v1/models?x=a%20b"
        assert not set(own) & set(upstream.seen[0].headers)
        async with agent.post("/mcp/tools?session=1%262", skip_auto_headers=own) as response:
            upstream.go_on.set()
            await response.read()
        assert upstream.seen[1].query["session"] == "1&2"
