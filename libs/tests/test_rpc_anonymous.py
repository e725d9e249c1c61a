"""A listener for callers without certificates: what it serves, and what it does not, on both fronts."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2

from libs.mesh import ANONYMOUS, OPERATOR, Component
from libs.testing import h2

OPEN = Component("operator", 0, certified=False)
SAY = "/test.Echo/Say"
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
EVERYBODY = frozenset({"*"})
CALLERS = {
    SAY: frozenset({ANONYMOUS}),
    "/test.Echo/Size": EVERYBODY,
    "/test.Echo/Meta": frozenset({"user"}),
    HEALTH + "Check": EVERYBODY | {ANONYMOUS},
    HEALTH + "Watch": EVERYBODY,
    REFLECTION: EVERYBODY,
}


@asynccontextmanager
async def stranger(mesh, served):
    """A channel that shows no certificate."""
    credentials = grpc.ssl_channel_credentials(mesh.identity("user").root.read_bytes())
    name = (("grpc.ssl_target_name_override", "operator.cp.mesh.test"),)
    async with grpc.aio.secure_channel(served.address, credentials, name) as channel:
        yield channel


async def code(channel, method, request=b""):
    try:
        await channel.unary_unary(method)(request, timeout=5)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_only_methods_for_anonymous_are_served_there(mesh, echo, front):
    async with (
        mesh.serve(echo.register, OPEN, front=front, callers=CALLERS) as served,
        stranger(mesh, served) as channel,
    ):
        assert await channel.unary_unary(SAY)(b"hello", timeout=5) == b"hello"
        check = health_pb2.HealthCheckRequest().SerializeToString()
        assert await code(channel, HEALTH + "Check", check) is grpc.StatusCode.OK
        echoes = ("/test.Echo/Size", "/test.Echo/Meta", "/test.Echo/Secret")
        for method in (*echoes, HEALTH + "Watch", REFLECTION):
            assert await code(channel, method) is grpc.StatusCode.PERMISSION_DENIED, method


async def test_a_certificate_is_no_help_there(mesh, echo, front):
    async with (
        mesh.serve(echo.register, OPEN, front=front, callers=CALLERS) as served,
        mesh.dial_as("user", served, OPEN) as channel,
    ):
        assert await channel.unary_unary(SAY)(b"hello") == b"hello"
        with pytest.raises(Exception, match="without a certificate"):
            await channel.unary_unary("/test.Echo/Meta")(b"")


async def test_anonymous_stays_out_of_every_other_listener(mesh, echo, front):
    by_front = {"h2corn": grpc.StatusCode.UNAUTHENTICATED, "grpcio": grpc.StatusCode.UNAVAILABLE}
    async with (
        mesh.serve(echo.register, OPERATOR, front=front, callers=CALLERS) as served,
        stranger(mesh, served) as channel,
    ):
        for method in (SAY, "/test.Echo/Size", HEALTH + "Check", HEALTH + "Watch", REFLECTION):
            assert await code(channel, method) is by_front[front], method
    assert not echo.calls


async def test_tls_1_2_gets_no_call_there_either(mesh, echo, front):
    if front == "grpcio":
        pytest.skip("grpc.aio cannot refuse it")
    request = h2.PREFACE + h2.headers(SAY) + h2.data(h2.message(b"x"))
    async with mesh.serve(echo.register, OPEN, front=front, callers=CALLERS) as served:
        await h2.say(served.port, mesh.identity("user"), request, ssl.TLSVersion.TLSv1_2)
        assert not echo.calls
        await h2.say(served.port, mesh.identity("user"), request)
        assert echo.calls
