"""Who gets through the doorway, and for how long, on both fronts."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from hyperframe.frame import SettingsFrame

from libs import pki
from libs.errors import DeniedError, ExhaustedError, MeshError, UnauthenticatedError, UnavailableError
from libs.identity import TrustClass
from libs.mesh import COORDINATION, Component
from libs.pki import Authority
from libs.rpc.boundary import Limits, Visit
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


@pytest.fixture
def only_what_is_new():
    """No search looks at what earlier tests left: it is much."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("only_what_is_new")
async def test_calls_that_are_given_up_leave_nothing_behind(mesh, served, channel, echo):
    def visits() -> int:
        gc.collect()
        return sum(isinstance(thing, Visit) for thing in gc.get_objects())

    before = visits()
    half = h2.message(b"hello")[:3]
    streams = range(1, 41, 2)
    begun = b"".join(h2.headers("/test.Echo/Say", n) + h2.data(half, n, end=False) for n in streams)
    await h2.say(served.port, mesh.identity("user"), h2.PREFACE + begun)
    for _ in range(20):
        parked = asyncio.ensure_future(channel.unary_unary("/test.Echo/Wait")(b""))
        await echo.parked.acquire()
        parked.cancel()
        await echo.cancelled.acquire()
    async with asyncio.timeout(10):
        while visits() > before:  # noqa: ASYNC110  (nothing tells when the last one is forgotten)
            await asyncio.sleep(0.05)


async def refused(call: Callable[[], Awaitable[bytes]]) -> None:
    """Returns once there is too much on its way."""
    try:
        while True:
            await call()
    except ExhaustedError as error:
        if "at once" not in str(error):
            raise


async def served_again(call: Callable[[], Awaitable[bytes]]) -> bytes:
    while True:
        with suppress(ExhaustedError):
            return await call()


async def test_unfinished_messages_are_bounded_all_together(mesh, serve, front):
    if front == "grpcio":
        pytest.skip("gRPC's core does not say how much it holds")
    half = h2.message(bytes(600_000))[:400_000]
    pieces = b"".join(h2.data(half[at : at + 16_000], end=False) for at in range(0, len(half), 16_000))

    def hold() -> h2.Connection:
        connection = h2.Connection(served.port, mesh.identity("user"))
        connection.say(h2.PREFACE + h2.headers("/test.Echo/Size") + pieces)
        return connection

    async with (
        serve(limits=Limits(max_underway=700_000)) as served,
        mesh.dial_as("user", served) as channel,
    ):
        size = channel.unary_unary("/test.Echo/Size")

        async with asyncio.timeout(10):
            with await asyncio.to_thread(hold):
                await refused(lambda: size(bytes(600_000)))
                assert await size(bytes(100_000)) == b"100000"
            assert await served_again(lambda: size(bytes(600_000))) == b"600000"


async def test_answers_that_nobody_takes_are_bounded_all_together(mesh, serve, front):
    if front == "grpcio":
        pytest.skip("gRPC's core does not say how much it holds")

    def hold() -> h2.Connection:
        connection = h2.Connection(served.port, mesh.identity("user"))
        asks = [h2.headers("/test.Echo/Make", n) + h2.data(h2.message(b"3000000"), n) for n in (1, 3, 5, 7)]
        connection.say(h2.PREFACE + SettingsFrame(0, settings={4: 0}).serialize() + b"".join(asks))
        return connection

    async with (
        serve(limits=Limits(max_underway=4_000_000)) as served,
        mesh.dial_as("user", served) as channel,
    ):
        make = channel.unary_unary("/test.Echo/Make")
        async with asyncio.timeout(10):
            with await asyncio.to_thread(hold):
                await refused(lambda: make(b"3000000"))
                assert len(await make(b"1000")) == 1000
            assert len(await served_again(lambda: make(b"3000000"))) == 3_000_000


async def test_a_peer_without_tls_harms_nobody(served, channel):
    with socket.create_connection(("127.0.0.1", served.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)))
        assert await say(channel) == b"hello"
