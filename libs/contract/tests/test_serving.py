"""An agent as it is served: readiness, metrics, and the end."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from agentctl.agent.v1 import agent_service_pb2 as pb
from libs.contract.manifest import Limits
from libs.contract.run import Run, Trigger
from libs.errors import UnavailableError
from libs.mesh import AGENT
from libs.rpc.client import dial

from .conftest import ROLE


@pytest.fixture
async def plain(serve):
    """GET of a path of the plain port: status and text."""
    async with serve(metrics_port=0) as served, aiohttp.ClientSession() as session:

        async def get(path):
            async with session.get(f"http://127.0.0.1:{served.metrics_port}{path}") as answer:
                return answer.status, await answer.text()

        yield get


async def gauges(plain):
    _, text = await plain("/metrics")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


async def test_probes_say_why_it_is_not_ready(plain, agent):
    assert await plain("/readyz") == (200, "ok\n")
    await agent.lame_duck(True)
    assert await plain("/readyz") == (503, "lame duck\n")
    assert (await plain("/livez"))[0] == 200
    await agent.lame_duck(False)
    assert (await plain("/readyz"))[0] == 200


async def test_gauges_are_true_when_they_are_scraped(plain, agent):
    agent.told = replace(agent.told, limits=Limits(slots=4))
    found = await gauges(plain)
    assert (found["agent_up"], found["agent_ready"], found["agent_paused"]) == (1, 1, 0)
    assert (found["agent_active_runs"], found["agent_saturation"]) == (0, 0)
    await agent.put(Run("r", Trigger.ITEM))
    agent.now = replace(agent.now, ready=False, paused=True)
    found = await gauges(plain)
    assert (found["agent_up"], found["agent_ready"], found["agent_paused"]) == (1, 0, 1)
    assert (found["agent_active_runs"], found["agent_saturation"]) == (1, 0.25)


async def test_health_follows_readiness(mesh, served, agent):
    caller = mesh.identity("user")
    async with dial(AGENT, served.address, caller, server=mesh.principal(ROLE)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(service=""))
        states = [(await watching.read()).status]
        for ready in (False, True):
            agent.now = replace(agent.now, ready=ready)
            states.append((await watching.read()).status)
        watching.cancel()
    response = health_pb2.HealthCheckResponse
    assert states == [response.SERVING, response.NOT_SERVING, response.SERVING]


async def test_events_end_with_the_agent(serve, call_as, agent):
    async with AsyncExitStack() as stack:
        async with serve() as served:
            stub = await stack.enter_async_context(call_as(served))
            agent.events.tell("agent.started")
            watching = stub.WatchEvents(pb.WatchEventsRequest())
            assert (await watching.read()).event.name == "agent.started"
            agent.events.tell("agent.stopped")
        assert [each.event.name async for each in watching] == ["agent.stopped"]


async def test_only_the_pod_that_is_meant_is_believed(mesh, served):
    other = mesh.principal("agent/worker/uid-2")
    async with dial(AGENT, served.address, mesh.identity("cp/apiserver"), server=other) as channel:
        with pytest.raises(UnavailableError):
            await channel.unary_unary("/agentctl.agent.v1.AgentService/GetStatus")(b"")
