"""Agents' pods as servers: who is believed at an address, and who may call, on both fronts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from libs.errors import DeniedError, UnavailableError
from libs.identity import TrustClass
from libs.mesh import AGENT, COORDINATION
from libs.rpc.client import dial
from libs.rpc.server import serving
from libs.testing import ca

from .test_rpc_server import served_certificate, until

SERVICE = "agentctl.agent.v1.AgentService"
DRAIN = f"/{SERVICE}/Drain"
STEERING = {"cp/apiserver", "cp/gateway"}
WATCHING = STEERING | {"cp/operator", "user", "administrator"}
COMPONENTS = ["cp/apiserver", "cp/gateway", "cp/operator", "cp/coordination"]
OTHERS = ["agent/other", "producer", "user", "administrator"]
VERBS = ["Drain", "LameDuck", "Cancel", "Pause", "Resume", "SendMessage", "GetRun", "ListRuns"]
READS = ["GetManifest", "GetStatus"]
STREAMS = {"WatchRun": STEERING, "WatchEvents": WATCHING}
ROLE = "agent/worker/uid-1"  # the pod that is meant
NAMESAKE = "agent/worker/uid-2"  # another pod of the same agent
MISNAMED = "Hostname Verification"  # how gRPC's core says that TLS refuses the server's name


class Agent:
    """AgentService as far as the doorway sees it: each method answers with its request."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.parked = asyncio.Event()
        self.released = asyncio.Event()

    def register(self, server):
        plain = {"request_deserializer": bytes, "response_serializer": bytes}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self.answer, **plain) for name in (*VERBS, *READS)
        }
        for name in STREAMS:
            handlers[name] = grpc.unary_stream_rpc_method_handler(self.watch, **plain)
        server.add_registered_method_handlers(SERVICE, handlers)

    async def answer(self, request, context):
        self.calls.append(context.caller.role)
        if request == b"park":
            self.parked.set()
            await self.released.wait()
        return request

    async def watch(self, request, context):
        self.calls.append(context.caller.role)
        yield request


@pytest.fixture
def agent():
    return Agent()


@pytest.fixture
def serve_agent(mesh, agent, front):
    """`serving` of that agent in a role; takes the options of `serving`."""
    return lambda role=ROLE, **options: mesh.serve(agent.register, AGENT, role=role, front=front, **options)


@pytest.fixture
def dial_agent(mesh):
    """`dial` of the pod of a role."""
    return lambda caller, served, role=ROLE, **options: mesh.dial_as(
        caller, served, AGENT, server=mesh.principal(role), **options
    )


async def drain(channel, request=b"now"):
    return await channel.unary_unary(DRAIN)(request)


async def test_the_pod_that_is_meant_answers(serve_agent, dial_agent, agent):
    async with serve_agent() as served, dial_agent("cp/apiserver", served) as channel:
        assert await drain(channel) == b"now"
    assert agent.calls == ["cp/apiserver"]


async def test_another_pod_of_the_same_agent_is_not_believed(serve_agent, dial_agent, agent):
    async with serve_agent(NAMESAKE) as served, dial_agent("cp/apiserver", served) as channel:
        with pytest.raises(UnavailableError, match=MISNAMED):
            await drain(channel)
    assert not agent.calls


async def test_an_open_connection_to_a_pod_is_not_used_for_another(serve_agent, dial_agent, agent):
    async with serve_agent() as served, dial_agent("cp/apiserver", served) as channel:
        await drain(channel)
        async with dial_agent("cp/apiserver", served, NAMESAKE) as other:
            with pytest.raises(UnavailableError, match=MISNAMED):
                await drain(other)
    assert len(agent.calls) == 1


async def test_a_namesake_of_another_namespace_is_not_believed(mesh, agent, dial_agent, front):
    elsewhere = mesh.identity(ROLE, "elsewhere")
    async with (
        serving(AGENT, elsewhere, agent.register, front=front) as served,
        dial_agent("cp/apiserver", served) as channel,
    ):
        with pytest.raises(UnavailableError, match=MISNAMED):
            await drain(channel)
    assert not agent.calls


async def test_a_component_at_the_address_is_not_believed(mesh, serve, dial_agent):
    async with serve() as served, dial_agent("cp/apiserver", served) as channel:
        with pytest.raises(UnavailableError, match=MISNAMED):
            await drain(channel)


async def test_users_cannot_make_agents(mesh, agent, dial_agent, front, tmp_path):
    real = mesh.authority.intermediates
    forger = replace(mesh.authority, intermediates={**real, TrustClass.WORKLOADS: real[TrustClass.USERS]})
    forged = ca.identity(forger, tmp_path, mesh.principal(ROLE).id)
    async with (
        serving(AGENT, forged, agent.register, front=front) as served,
        dial_agent("cp/apiserver", served) as channel,
    ):
        with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            await drain(channel)
    assert not agent.calls


@pytest.mark.parametrize("role", [*COMPONENTS, *OTHERS])
async def test_each_caller_may_what_the_table_says(serve_agent, dial_agent, agent, role):
    kind = role.partition("/")[0] if role.startswith("agent") else role
    allowed = dict.fromkeys(VERBS, kind in STEERING) | dict.fromkeys(READS, kind in WATCHING)
    async with serve_agent() as served, dial_agent(role, served) as channel:
        for name, may in allowed.items():
            call = channel.unary_unary(f"/{SERVICE}/{name}")
            if may:
                assert await call(b"x") == b"x", name
            else:
                with pytest.raises(DeniedError, match=rf"may not call /{SERVICE}/{name}"):
                    await call(b"x")
        for name, roles in STREAMS.items():
            watching = channel.unary_stream(f"/{SERVICE}/{name}")(b"x")
            if kind in roles:
                assert await watching.read() == b"x", name
            else:
                with pytest.raises(DeniedError, match=rf"may not call /{SERVICE}/{name}"):
                    await watching.read()
    permitted = sum(allowed.values()) + sum(kind in roles for roles in STREAMS.values())
    assert agent.calls == [kind] * permitted


async def test_without_a_certificate_there_is_no_call(mesh, serve_agent, agent, front):
    credentials = grpc.ssl_channel_credentials(mesh.identity("user").root.read_bytes())
    name = (("grpc.ssl_target_name_override", mesh.principal(ROLE).dns_name),)
    async with (
        serve_agent() as served,
        grpc.aio.secure_channel(served.address, credentials, name) as channel,
    ):
        call: Any = channel.unary_unary(DRAIN)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"", timeout=5)
    # grpc.aio can refuse in the handshake only
    by_front = {"h2corn": grpc.StatusCode.UNAUTHENTICATED, "grpcio": grpc.StatusCode.UNAVAILABLE}
    assert raised.value.code() is by_front[front]
    assert not agent.calls


async def test_a_renewed_certificate_is_served_and_the_pod_stays_who_it_is(
    mesh, serve_agent, dial_agent, agent
):
    identity, caller = mesh.identity(ROLE), mesh.identity("cp/apiserver")
    async with (
        serve_agent(check_seconds=0.02) as served,
        dial_agent("cp/apiserver", served, own_connection=True) as before,
    ):
        old = await asyncio.to_thread(served_certificate, served.port, caller)
        parked = asyncio.ensure_future(drain(before, b"park"))
        await agent.parked.wait()
        mesh.authority.issue(mesh.principal(ROLE).id, identity.folder)

        async def changed():
            return await asyncio.to_thread(served_certificate, served.port, caller) != old

        await until(changed)
        async with dial_agent("cp/apiserver", served, own_connection=True) as after:
            assert await drain(after) == b"now"
        async with dial_agent("cp/apiserver", served, NAMESAKE, own_connection=True) as other:
            with pytest.raises(UnavailableError, match=MISNAMED):
                await drain(other)
        agent.released.set()
        assert await parked == b"park"


@pytest.mark.parametrize("role", ["cp/agent", "cp/coordination", "user"])
async def test_only_agents_serve_as_agents(mesh, agent, role):
    with pytest.raises(ValueError, match="cannot serve as agent"):
        async with serving(AGENT, mesh.identity(role), agent.register):
            pass


async def test_who_dials_says_which_pod(mesh):
    identity = mesh.identity("cp/apiserver")
    wrong = [
        (AGENT, None, "there are many of agent"),
        (AGENT, mesh.principal("cp/agent"), "does not serve as agent"),
        (AGENT, mesh.principal("user"), "does not serve as agent"),
        (COORDINATION, mesh.principal(ROLE), "does not serve as coordination"),
    ]
    for component, server, why in wrong:
        with pytest.raises(ValueError, match=why):
            async with dial(component, "127.0.0.1:1", identity, server=server):
                pass
