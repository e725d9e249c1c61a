"""Who gets through the doorway, and for how long, on both fronts."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from libs import pki
from libs.errors import DeniedError, MeshError, UnauthenticatedError, UnavailableError
from libs.identity import TrustClass
from libs.mesh import COORDINATION, Component
from libs.pki import Authority
from libs.rpc.client import dial
from libs.rpc.server import serving
from libs.testing import ca, h2


async def say(channel, word=b"hello"):
    return await channel.unary_unary("/test.Echo/Say")(word)


async def test_roles_in_the_table_may_call(mesh, served):
    for role in ("user", "cp/gateway"):
        async with mesh.dial_as(role, served) as channel:
            assert await say(channel) == b"hello"


@pytest.mark.parametrize("role", ["agent", "producer", "administrator", "cp/scaler"])
async def test_other_roles_may_not(mesh, served, echo, role, caplog):
    async with mesh.dial_as(role, served) as channel:
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(DeniedError, match=r"may not call /test\.Echo/Say"),
        ):
            await say(channel)
    assert not echo.calls
    assert "PERMISSION_DENIED" in caplog.text


async def test_nobody_may_call_what_the_table_does_not_know(channel):
    with pytest.raises(DeniedError):
        await channel.unary_unary("/test.Echo/Secret")(b"")


async def test_without_a_certificate_there_is_no_call(mesh, served, echo, front):
    credentials = grpc.ssl_channel_credentials(mesh.identity("user").root.read_bytes())
    name = (("grpc.ssl_target_name_override", "coordination.cp.mesh.test"),)
    async with grpc.aio.secure_channel(served.address, credentials, name) as channel:
        call: Any = channel.unary_unary("/test.Echo/Say")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"", timeout=5)
        unknown: Any = channel.unary_unary("/no.Service/Say")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await unknown(b"", timeout=5)
    assert refused.value.code() is raised.value.code(), "what is not there answers strangers alike"
    # grpc.aio can refuse in the handshake only
    by_front = {"h2corn": grpc.StatusCode.UNAUTHENTICATED, "grpcio": grpc.StatusCode.UNAVAILABLE}
    assert raised.value.code() is by_front[front]
    assert not echo.calls


async def test_a_certificate_of_another_authority_is_refused(mesh, served, echo, tmp_path):
    stranger = Authority.create(tmp_path / "other", "mesh.test")
    identity = ca.identity(stranger, tmp_path, "/ns/demo/user/someone")
    identity.root.write_bytes(mesh.identity("user").root.read_bytes())
    async with dial(COORDINATION, served.address, identity) as channel:
        with pytest.raises(UnavailableError):
            await say(channel)
    assert not echo.calls


async def test_a_class_is_believed_only_from_its_own_intermediate(mesh, served, echo, tmp_path):
    real = mesh.authority.intermediates
    forger = replace(mesh.authority, intermediates={**real, TrustClass.USERS: real[TrustClass.WORKLOADS]})
    identity = ca.identity(forger, tmp_path, "/ns/demo/user/someone")
    async with dial(COORDINATION, served.address, identity) as channel:
        with pytest.raises(UnauthenticatedError, match="not signed by the users intermediate"):
            await say(channel)
    assert not echo.calls


async def test_users_cannot_make_components(mesh, served, echo, tmp_path):
    real = mesh.authority.intermediates
    forger = replace(mesh.authority, intermediates={**real, TrustClass.CONTROL_PLANE: real[TrustClass.USERS]})
    identity = ca.identity(forger, tmp_path, "/cp/gateway")
    async with dial(COORDINATION, served.address, identity) as channel:
        with pytest.raises((UnauthenticatedError, UnavailableError)):
            await say(channel)
    assert not echo.calls


async def test_another_component_at_the_address_is_not_believed(mesh, served, echo):
    async with mesh.dial_as("user", served, Component("gateway", 0)) as channel:
        with pytest.raises(UnavailableError):
            await say(channel)
    assert not echo.calls


async def test_an_expired_certificate_ends_calls_on_an_open_connection(mesh, serve, echo):
    ahead = 0.0
    async with (
        serve(clock=lambda: time.time() + ahead, check_seconds=0.02) as served,
        mesh.dial_as("user", served) as channel,
    ):
        watching = channel.unary_stream("/test.Echo/Watch")(b"x")
        assert await watching.read() == b"x"
        parked = asyncio.ensure_future(channel.unary_unary("/test.Echo/Wait")(b""))
        await echo.parked.acquire()
        ahead = 7200
        with pytest.raises(UnauthenticatedError, match="expired"):
            await watching.read()
        with pytest.raises(UnauthenticatedError, match="expired"):
            await parked
        with pytest.raises(UnauthenticatedError, match="expired"):
            await say(channel)


async def test_an_expired_certificate_opens_no_connection(mesh, served, echo, tmp_path):
    past = datetime.now(UTC) - timedelta(hours=2)
    identity = ca.identity(
        mesh.authority, tmp_path, "/ns/demo/user/someone", lifetime=timedelta(hours=1), now=past
    )
    async with dial(COORDINATION, served.address, identity) as channel:
        with pytest.raises(MeshError):
            await say(channel)
    assert not echo.calls


@pytest.mark.parametrize("by", ["id", "serial"])
async def test_the_deny_list_is_read_while_serving(mesh, serve, by):
    user = mesh.identity("user")
    leaf = ssl.PEM_cert_to_DER_cert(
        user.certificate.read_text().partition("-----END")[0] + "-----END CERTIFICATE-----"
    )
    peer = pki.Trust(user).verify(leaf, time.time())
    async with serve(check_seconds=0.02) as served, mesh.dial_as("user", served) as channel:
        watching = channel.unary_stream("/test.Echo/Watch")(b"x")
        assert await watching.read() == b"x"
        denied = peer.principal.id if by == "id" else str(peer.serial)
        (mesh.identity("cp/coordination").folder / "denied").write_text(f"{denied}\n")
        with pytest.raises(UnauthenticatedError, match="deny list"):
            await watching.read()
        with pytest.raises(UnauthenticatedError, match="deny list"):
            await say(channel)


async def test_a_component_serves_under_its_own_name_only(mesh, echo):
    with pytest.raises(ValueError, match="cannot serve as coordination"):
        async with serving(COORDINATION, mesh.identity("cp/gateway"), echo.register):
            pass


async def test_tls_1_2_gets_no_call(mesh, served, echo, front):
    if front == "grpcio":
        pytest.skip("grpc.aio cannot refuse it")
    request = h2.PREFACE + h2.headers("/test.Echo/Say") + h2.data(h2.message(b"x"))
    await h2.say(served.port, mesh.identity("user"), request, ssl.TLSVersion.TLSv1_2)
    assert not echo.calls
    await h2.say(served.port, mesh.identity("user"), request)
    assert echo.calls


_START = h2.PREFACE + h2.headers("/test.Echo/Say")


@pytest.mark.parametrize(
    "junk",
    [
        bytes(1000),
        h2.PREFACE + b"\xff" * 500,
        _START + h2.data(h2.message(b"hello")[:7]),
        _START + h2.data(b""),
        _START + h2.data(b"\0\xff\xff\xff\xff"),
        _START + h2.data(h2.message(b"one") + h2.message(b"two")),
        h2.PREFACE + b"".join(h2.headers("/test.Echo/Say", n) + h2.reset(n) for n in range(1, 5001, 2)),
    ],
    ids=["zeros", "bad frame", "half message", "no message", "4 GiB", "two messages", "rapid reset"],
)
async def test_junk_harms_nobody(mesh, served, channel, junk):
    await h2.say(served.port, mesh.identity("user"), junk)
    assert await say(channel) == b"hello"


async def test_a_peer_without_tls_harms_nobody(served, channel):
    with socket.create_connection(("127.0.0.1", served.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)))
        assert await say(channel) == b"hello"
