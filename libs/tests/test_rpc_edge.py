"""An HTTPS edge: both HTTP versions, certificates of both sides, rotation, limits, lines, spans."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, HeadersFrame
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from libs import telemetry
from libs.pki import Authority
from libs.rpc.edge import edge, explain, leaf, name_caller
from libs.testing import ca, h2

PATIENCE = 20.0


@dataclass
class App:
    """Says what it saw of a request."""

    hold: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody is held."""

    def __call__(self):
        return Starlette(
            routes=[
                Route("/leaf", self.leaf, name="leaf"),
                Route("/body", self.body, methods=["POST"], name="body"),
                Route("/held", self.held, name="held"),
                Route("/broken", self.broken, name="broken"),
            ]
        )

    async def leaf(self, request):
        name_caller(request.scope, "ann")
        der = leaf(request.scope)
        return PlainTextResponse(f"{request.scope['http_version']} {len(der) if der else 'nobody'}")

    async def body(self, request):
        return PlainTextResponse(str(len(await request.body())))

    async def held(self, _):
        self.came.set()
        await self.hold.wait()
        return PlainTextResponse("done")

    async def broken(self, request):
        explain(request.scope, "because")
        return PlainTextResponse("no", 503)


@pytest.fixture
def identity(mesh):
    return mesh.identity("cp/apiserver")


@pytest.fixture
def client_ca(mesh, tmp_path):
    """The file that the edge asks for, at first with the root of the mesh."""
    path = tmp_path / "client-ca.crt"
    path.write_bytes(mesh.identity("cp/gateway").root.read_bytes())
    return path


def context(shown=None, maximum=ssl.TLSVersion.TLSv1_3):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode, made.maximum_version = False, ssl.CERT_NONE, maximum
    if shown:
        made.load_cert_chain(shown.certificate, shown.key)
    return made


def ask(served, path, shown=None, *, body=None, headers=(), maximum=ssl.TLSVersion.TLSv1_3):
    def speak():
        connection = http.client.HTTPSConnection(
            "127.0.0.1", served.port, context=context(shown, maximum), timeout=PATIENCE
        )
        try:
            connection.request("GET" if body is None else "POST", path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return asyncio.to_thread(speak)


def ask_in_2(served, path):
    def speak():
        fields = [(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", "test")]
        frame = HeadersFrame(1, Encoder().encode(fields))
        frame.flags.add("END_HEADERS")
        frame.flags.add("END_STREAM")
        with h2.Connection(served.port, None) as connection:
            connection.say(h2.PREFACE + frame.serialize())
            heard: dict[str, str] = {}
            body = b""
            for answer in connection.hear(PATIENCE):
                if isinstance(answer, HeadersFrame):
                    heard |= {str(name): str(value) for name, value in Decoder().decode(answer.data)}
                elif isinstance(answer, DataFrame):
                    body += answer.data
                if answer.stream_id == 1 and "END_STREAM" in answer.flags:
                    break
            return int(heard[":status"]), body.decode()

    return asyncio.to_thread(speak)


async def until(asking, wanted):
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if await asking() == wanted:
                    return
            except OSError:  # a refused handshake
                pass
            await asyncio.sleep(0.02)


async def refuses(asking):
    """The handshake ends with an alert. A connection may end otherwise while something rotates."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with pytest.raises(OSError, match=r"(?i)alert|reset|closed|eof|pipe") as ended:
                await asking()
            if "alert" in str(ended.value).lower():
                return
            await asyncio.sleep(0.02)


async def test_both_versions_of_http_and_tls_are_spoken(identity):
    async with edge(App()(), identity) as served:
        assert await ask(served, "/leaf") == (200, "1.1 nobody")
        assert await ask_in_2(served, "/leaf") == (200, "2 nobody")
        assert await ask(served, "/leaf", maximum=ssl.TLSVersion.TLSv1_2) == (200, "1.1 nobody")


async def test_a_client_may_show_a_certificate_and_need_not(mesh, identity, client_ca):
    gateway = mesh.identity("cp/gateway")
    size = len(ssl.PEM_cert_to_DER_cert(first(gateway.certificate)))
    async with edge(App()(), identity, client_ca=lambda: client_ca) as served:
        assert await ask(served, "/leaf", gateway) == (200, f"1.1 {size}")
        assert await ask(served, "/leaf") == (200, "1.1 nobody")


def first(path: Path) -> str:
    end = "-----END CERTIFICATE-----\n"
    return path.read_text().partition(end)[0] + end


async def test_without_authorities_nobody_is_asked_for_a_certificate(mesh, identity):
    async with edge(App()(), identity) as served:
        assert await ask(served, "/leaf", mesh.identity("cp/gateway")) == (200, "1.1 nobody")


async def test_other_authorities_are_in_force_when_told_to_look(mesh, identity, client_ca, tmp_path):
    gateway = mesh.identity("cp/gateway")
    asked = [client_ca]
    async with edge(App()(), identity, client_ca=lambda: asked[0], check_seconds=3600) as served:
        assert (await ask(served, "/leaf", gateway))[0] == 200
        stranger = Authority.create(tmp_path / "other", "other.test")
        other = ca.identity(stranger, tmp_path, "/cp/gateway")
        shutil.copy(other.root, client_ca)
        served.look()
        await until(lambda: ask(served, "/leaf", other), (200, f"1.1 {len(der(other))}"))
        await refuses(lambda: ask(served, "/leaf", gateway))
        asked[0] = None
        served.look()
        await until(lambda: ask(served, "/leaf", gateway), (200, "1.1 nobody"))


def der(identity):
    return ssl.PEM_cert_to_DER_cert(first(identity.certificate))


async def test_authorities_that_cannot_be_read_leave_those_before(mesh, identity, client_ca, caplog):
    gateway = mesh.identity("cp/gateway")
    async with edge(App()(), identity, client_ca=lambda: client_ca, check_seconds=0.02) as served:
        before = await ask(served, "/leaf", gateway)
        for broken in ("", "garbage"):
            client_ca.write_text(broken)
            caplog.clear()
            async with asyncio.timeout(PATIENCE):
                while True:
                    if "cannot read" in caplog.text:
                        break
                    await asyncio.sleep(0.01)
            assert await ask(served, "/leaf", gateway) == before


async def test_a_new_certificate_of_ours_ends_no_request_under_way(mesh, identity, tmp_path):
    app = App()
    async with edge(app(), identity, check_seconds=0.02) as served:
        held = asyncio.create_task(ask(served, "/held"))
        await app.came.wait()
        await renew(mesh, identity, tmp_path, served)
        app.hold.set()
        assert await held == (200, "done")


async def renew(mesh, identity, folder, served):
    """Puts another certificate in the place of ours, and waits until it is the one that is shown."""
    old = await presented(served)
    renewed = ca.identity(mesh.authority, folder, "/cp/apiserver")
    shutil.copy(renewed.key, identity.key)
    shutil.copy(renewed.certificate, identity.certificate)
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(OSError):  # it was just being replaced
                if await presented(served) != old:
                    return


async def test_a_port_is_given_back_after_rotations(identity, tmp_path, mesh):
    async with edge(App()(), identity, check_seconds=0.02) as served:
        for _ in range(2):
            await renew(mesh, identity, tmp_path, served)
    with pytest.raises(ConnectionRefusedError):
        await ask(served, "/leaf")


def presented(served):
    return asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", served.port))


async def test_a_body_over_the_cap_is_refused(identity):
    async with edge(App()(), identity, max_body=1000) as served:
        assert await ask(served, "/body", body=b"x" * 1000) == (200, "1000")
        assert (await ask(served, "/body", body=b"x" * 1001))[0] == 413


async def test_a_request_under_way_ends_well_and_one_that_hangs_ends(identity):
    app = App()
    async with edge(app(), identity, drain_seconds=PATIENCE) as served:
        held = asyncio.create_task(ask(served, "/held"))
        await app.came.wait()
        asyncio.get_running_loop().call_later(0.1, app.hold.set)
    assert await held == (200, "done")
    hanging = App()
    async with edge(hanging(), identity, drain_seconds=0.2) as served:
        held = asyncio.create_task(ask(served, "/held"))
        await hanging.came.wait()
    assert (await asyncio.gather(held, return_exceptions=True))[0] != (200, "done")


async def test_a_request_leaves_one_line_and_one_time(identity, caplog):
    caplog.set_level("DEBUG", logger="libs.rpc.edge")

    def count(route, code):
        name = "agentctl_http_server_duration_seconds_count"
        return REGISTRY.get_sample_value(name, {"route": route, "code": code}) or 0

    before = count("unknown", "404"), count("broken", "503")
    async with edge(App()(), identity) as served:
        await ask(served, "/leaf")
        await ask(served, "/broken")
        await ask(served, "/nowhere")
    assert (count("unknown", "404"), count("broken", "503")) == (before[0] + 1, before[1] + 1)
    lines = [(each.levelname, each.getMessage()) for each in caplog.records if "GET" in each.getMessage()]
    assert lines == [
        ("DEBUG", "GET /leaf: 200"),
        ("INFO", "GET /broken: 503 because"),
        ("INFO", "GET /nowhere: 404"),
    ]


async def test_a_request_is_a_span_of_the_callers_trace(identity, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "tracing", True)
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("test"))
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with edge(App()(), identity) as served:
        await ask(served, "/broken", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    [span] = exporter.get_finished_spans()
    assert (span.name, f"{span.context.trace_id:032x}") == ("GET broken", trace)
    assert dict(span.attributes or {})["http.response.status_code"] == 503
    assert not span.status.is_ok
