"""Health, reflection, rotation and drain, on both fronts."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from libs.errors import NotFoundError, UnavailableError
from libs.rpc.boundary import Limits
from libs.rpc.server import stopped

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def served_certificate(port, identity):
    context = ssl.create_default_context(cafile=identity.root)
    context.load_cert_chain(identity.certificate, identity.key)
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return connection.getpeercert(binary_form=True)


def health_stub(channel: Any) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return stub


async def until(condition):
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110  (nothing tells of a handshake's outcome)
            await asyncio.sleep(0.01)


async def test_health_says_serving_unless_told_otherwise(mesh, served):
    async with mesh.dial_as("agent", served) as channel:
        health = health_stub(channel)
        for service in ("", "test.Echo"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == SERVING
        served.set_ready(False)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
        with pytest.raises(NotFoundError):
            await health.Check(health_pb2.HealthCheckRequest(service="no.Service"))


async def test_health_follows_readiness(mesh, serve):
    reasons = ["the store is away"]

    async def ready() -> None:
        if reasons:
            raise UnavailableError(reasons[0])

    async with serve(ready=ready, check_seconds=0.01) as served, mesh.dial_as("agent", served) as channel:
        health = health_stub(channel)

        async def says(status: int) -> bool:
            return bool((await health.Check(health_pb2.HealthCheckRequest())).status == status)

        await until(lambda: says(NOT_SERVING))
        reasons.clear()
        await until(lambda: says(SERVING))


async def test_reflection_of_both_versions_lists_the_services(mesh, served):
    async with mesh.dial_as("user", served) as channel:
        for version in ("v1", "v1alpha"):
            ask = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )
            call = ask()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            answer = await call.read()
            call.cancel()
            assert "test.Echo" in {service.name for service in answer.list_services_response.service}


async def test_grpcurl_lists_describes_and_calls(mesh, served):
    user = mesh.identity("user")
    grpcurl = Path(sys.executable).parent / "grpcurl"
    tls = ["-cacert", user.root, "-cert", user.certificate, "-key", user.key]
    tls += ["-servername", "coordination.cp.mesh.test", served.address]

    async def run(*arguments):
        process = await asyncio.create_subprocess_exec(
            grpcurl, *tls, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        return output.decode()

    assert "test.Echo" in await run("list")
    assert "rpc Check" in await run("describe", "grpc.health.v1.Health")
    assert '"SERVING"' in await run("grpc.health.v1.Health/Check")


async def test_a_new_certificate_is_served_without_losing_a_call(mesh, serve, echo):
    identity = mesh.identity("cp/coordination")
    busy = True
    served_calls = 0

    async def work(channel):
        nonlocal served_calls
        while busy:
            assert await channel.unary_unary("/test.Echo/Say")(b"x") == b"x"
            served_calls += 1

    async with (
        serve(check_seconds=0.05) as served,
        mesh.dial_as("user", served, own_connection=True) as one,
        mesh.dial_as("cp/gateway", served, own_connection=True) as other,
    ):
        before = await asyncio.to_thread(served_certificate, served.port, mesh.identity("user"))
        parked = asyncio.ensure_future(one.unary_unary("/test.Echo/Wait")(b"still here"))
        await echo.parked.acquire()
        workers = [asyncio.ensure_future(work(channel)) for channel in (one, other) for _ in range(8)]
        mesh.authority.issue("spiffe://mesh.test/cp/coordination", identity.folder)

        async def changed():
            return await asyncio.to_thread(served_certificate, served.port, mesh.identity("user")) != before

        await until(changed)
        seen = served_calls

        async def went_on():
            return served_calls > seen + 500

        await until(went_on)
        busy = False
        await asyncio.gather(*workers)
        echo.released.set()
        assert await parked == b"still here"


async def test_files_that_do_not_fit_are_not_served(mesh, serve, caplog):
    identity = mesh.identity("cp/coordination")
    good = identity.certificate.read_bytes()
    async with serve(check_seconds=0.02) as served, mesh.dial_as("user", served) as channel:
        before = await asyncio.to_thread(served_certificate, served.port, mesh.identity("user"))
        identity.certificate.write_bytes(good[: len(good) // 3])

        async def noticed():
            return "trying again" in caplog.text

        await until(noticed)
        assert await channel.unary_unary("/test.Echo/Say")(b"x") == b"x"
        assert await asyncio.to_thread(served_certificate, served.port, mesh.identity("user")) == before
        mesh.authority.issue("spiffe://mesh.test/cp/coordination", identity.folder)

        async def changed():
            return await asyncio.to_thread(served_certificate, served.port, mesh.identity("user")) != before

        await until(changed)


async def test_a_client_with_a_new_certificate_uses_a_new_connection(mesh, served, echo):
    user = mesh.identity("user")
    async with mesh.dial_as("user", served, check_seconds=0.02) as channel:
        first = channel.connection
        parked = asyncio.ensure_future(channel.unary_unary("/test.Echo/Wait")(b"old"))
        await echo.parked.acquire()
        mesh.authority.issue("spiffe://mesh.test/ns/demo/user/someone", user.folder)

        async def renewed():
            return channel.connection is not first

        await until(renewed)
        assert await channel.unary_unary("/test.Echo/Say")(b"new") == b"new"
        echo.released.set()
        assert await parked == b"old"


async def test_drain_tells_watchers_and_lets_parked_calls_be_answered(mesh, serve, echo):
    server = AsyncExitStack()
    served = await server.enter_async_context(serve(on_drain=[echo.released.set]))
    async with mesh.dial_as("user", served) as channel:
        health = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await health.read()).status == SERVING
        parked = asyncio.ensure_future(channel.unary_unary("/test.Echo/Wait")(b"x"))
        await echo.parked.acquire()
        async with asyncio.timeout(5):
            closing = asyncio.ensure_future(server.aclose())
            assert (await health.read()).status == NOT_SERVING
            assert await health.read() is grpc.aio.EOF
            assert await parked == b"x"
            await closing
        with pytest.raises(UnavailableError):
            await channel.unary_unary("/test.Echo/Say")(b"")


async def test_drain_interrupts_what_does_not_end(mesh, serve, echo):
    server = AsyncExitStack()
    served = await server.enter_async_context(serve(limits=Limits(drain_seconds=0.2)))
    async with mesh.dial_as("user", served) as channel:
        parked = asyncio.ensure_future(channel.unary_unary("/test.Echo/Wait")(b""))
        watching = channel.unary_stream("/test.Echo/Watch")(b"x")
        assert await watching.read() == b"x"
        await echo.parked.acquire()
        await echo.parked.acquire()
        async with asyncio.timeout(5):
            await server.aclose()
        await echo.cancelled.acquire()
        await echo.cancelled.acquire()
        with pytest.raises(UnavailableError, match="going away"):
            await watching.read()
        with pytest.raises(UnavailableError):
            await parked


async def test_a_burst_of_calls_is_not_thinned(mesh, served, echo):
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(mesh.dial_as("user", served, own_connection=True))
            for _ in range(10)
        ]
        calls = [
            asyncio.ensure_future(channels[number % 10].unary_unary("/test.Echo/Wait")(b"x"))
            for number in range(2000)
        ]
        async with asyncio.timeout(20):
            for _ in calls:
                await echo.parked.acquire()
        echo.released.set()
        assert set(await asyncio.gather(*calls)) == {b"x"}


async def test_sigterm_stops(anyio_backend):
    waiting = asyncio.ensure_future(stopped())
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        await waiting
