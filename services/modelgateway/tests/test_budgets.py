"""Budgets through the edge and by gRPC, with one replica and with three."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import httpx2
import pytest

from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb
from libs.errors import DeniedError, ExhaustedError, UnavailableError

from ..budgets import Scope
from ..store.memory import MemoryStore
from ..store.postgres import PostgresStore
from .world import CHAT, Reached, completion, whole

SMALL = {**CHAT, "max_tokens": 10}
COST = 10 + -(-len(json.dumps(SMALL)) // 4)


async def test_over_budget_is_429_with_all_that_a_program_needs(world):
    await world.pool("main", budgets=[{"per": "agent", "window": "1h", "tokens": COST - 1}])
    gateway = await world.gateway()
    answer = await gateway.post(SMALL)
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert (error["scope"], error["name"], error["window"]) == ("agent", "writer", 3600)
    assert (error["limit"], error["used"], error["reserved"]) == (COST - 1, 0, 0)
    assert error["resets_at"].endswith("Z")
    assert 1 <= int(answer.headers["retry-after"]) <= 3601
    assert answer.headers["x-should-retry"] == "false"
    assert world.provider.seen == []
    (record,) = await gateway.records()
    assert (record.error, record.status, record.input_tokens) == ("budget", 429, 0)
    assert (await gateway.post(SMALL, role="user/ann", x_agentctl_pool="main")).status_code == 200


async def test_grpc_says_the_same_in_its_details(world):
    await world.pool("main", budgets=[{"per": "pool", "tokens": COST - 1}])
    gateway = await world.gateway()
    stub = await gateway.stub()
    body = json.dumps(SMALL).encode()
    with pytest.raises(ExhaustedError) as caught:
        await stub.Infer(pb.InferRequest(operation=pb.OPERATION_CHAT_COMPLETIONS, body=body))
    facts = caught.value.facts
    assert (facts["scope"], facts["limit"], facts["used"]) == ("pool", str(COST - 1), "0")
    assert "window" not in facts
    assert "resets_at" not in facts


async def test_a_fleet_and_its_coordinator_draw_on_the_fleets_budget(world):
    await world.pool("main", budgets=[{"per": "fleet", "tokens": 1000}, {"per": "agent", "tokens": 1000}])
    gateway = await world.gateway()
    for role in ("agent/crew", "agent/crew-coordinator", "agent/writer"):
        assert (await gateway.post(SMALL, role=role)).status_code == 200
    await gateway.records(3)
    assert await gateway.levels() == {
        ("fleet", "crew"): (20, 0),
        ("agent", "crew"): (10, 0),
        ("agent", "crew-coordinator"): (10, 0),
        ("agent", "writer"): (10, 0),
    }


class Down(MemoryStore):
    """A store that cannot answer for now."""

    is_down = True

    async def reserve(self, request):
        if self.is_down:
            raise UnavailableError("down")
        return await super().reserve(request)

    async def settle(self, spend):
        if self.is_down:
            raise UnavailableError("down")
        await super().settle(spend)


async def test_while_the_store_is_down_the_pool_says_what_happens(world):
    store = Down()
    budgets = [{"per": "pool", "tokens": 1000}]
    await world.pool("main", budgets=budgets)
    await world.pool("lax", budgets=budgets, onStoreDown="allow")
    gateway = await world.gateway(store)
    assert (await gateway.post(SMALL)).status_code == 503
    assert world.provider.seen == []
    assert (await gateway.post(SMALL, role="user/ann", x_agentctl_pool="lax")).status_code == 200
    store.is_down = False
    (first, second) = await gateway.records(2)
    assert {first.pool: first.error, second.pool: second.error} == {"main": "unavailable", "lax": ""}
    assert {each.key.pool: each.used for each in await store.usage("demo")} == {"lax": 10}


async def test_usage_and_calls_are_read_by_their_own_namespace(world):
    await world.pool(
        "main", budgets=[{"per": "pool", "window": "24h", "tokens": 1000}, {"per": "agent", "tokens": 500}]
    )
    gateway = await world.gateway()
    assert (await gateway.post(SMALL)).status_code == 200
    await gateway.records()
    stub = await gateway.stub("agent/writer")
    pool, agent = (await stub.GetUsage(pb.GetUsageRequest())).budgets
    assert (pool.scope, pool.limit, pool.used, pool.window.seconds) == (Scope.POOL, 1000, 10, 86400)
    assert pool.HasField("resets_at")
    assert (agent.scope, agent.name, agent.limit, agent.used) == (Scope.AGENT, "writer", 500, 10)
    assert not agent.HasField("window")
    user = await gateway.stub("user/ann")
    (call,) = (await user.ListCalls(pb.ListCallsRequest())).calls
    assert (call.pool, call.endpoint, call.input_tokens, call.status) == ("main", "first", 7, 200)
    assert call.operation == pb.OPERATION_CHAT_COMPLETIONS
    with pytest.raises(DeniedError):
        await user.ListCalls(pb.ListCallsRequest(namespace="other"))
    with pytest.raises(DeniedError):
        await stub.ListCalls(pb.ListCallsRequest())
    root = await gateway.stub("administrator")
    assert len((await root.ListCalls(pb.ListCallsRequest(namespace="demo"))).calls) == 1


async def test_infer_and_its_stream_hand_bytes_through(world):
    gateway = await world.gateway()
    stub = await gateway.stub()
    body = json.dumps(SMALL).encode()
    said = await stub.Infer(pb.InferRequest(operation=pb.OPERATION_CHAT_COMPLETIONS, body=body))
    assert (said.body, said.status, said.endpoint) == (completion(), 200, "first")
    asked = pb.InferStreamRequest(operation=pb.OPERATION_CHAT_COMPLETIONS, body=body)
    events = [each.event async for each in stub.InferStream(asked)]
    assert [json.loads(each)["choices"][0]["delta"]["content"] for each in events] == ["ni", "ne", "."]
    world.provider.respond = whole(b'{"error":{"message":"no"}}', 400)
    said = await stub.Infer(pb.InferRequest(operation=pb.OPERATION_CHAT_COMPLETIONS, body=body))
    assert (said.body, said.status) == (b'{"error":{"message":"no"}}', 400)
    world.provider.respond = whole(b"{}", 500)
    with pytest.raises(UnavailableError):
        await stub.Infer(pb.InferRequest(operation=pb.OPERATION_CHAT_COMPLETIONS, body=body))


@pytest.mark.postgres
async def test_of_256_calls_at_once_on_a_budget_for_100_at_most_100_go_through_and_nothing_stays(world, dsn):
    """Three gateways over one PostgreSQL; one is closed in the middle."""
    name = f"race{id(world)}"
    await world.pool(name, budgets=[{"per": "pool", "tokens": 100 * COST}])
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def respond(seen, writer):
        if len(world.provider.seen) >= 20:
            arrived.set()
        await go_on.wait()
        usage = {"prompt_tokens": COST - 10, "completion_tokens": 10}
        await whole(json.dumps({**json.loads(completion()), "usage": usage}).encode())(seen, writer)

    world.provider.respond = respond

    async def one(gateway: Reached) -> int:
        try:
            answer = await gateway.post(SMALL, role="user/ann", x_agentctl_pool=name)
        except httpx2.HTTPError:
            return 0  # of the gateway that was closed
        return answer.status_code

    async with (
        PostgresStore.open(dsn, timedelta(days=1)) as store,
        PostgresStore.open(dsn, timedelta(days=1)) as other,
        world.opened(store) as a,
        world.opened(other) as b,
        asyncio.timeout(60),
    ):
        async with (
            PostgresStore.open(dsn, timedelta(days=1)) as third,
            world.opened(third, drain=timedelta(seconds=0.2)) as c,
        ):
            calls = [asyncio.create_task(one(gateway)) for _ in range(86) for gateway in (a, b, c)][:256]
            await arrived.wait()
        go_on.set()
        codes = await asyncio.gather(*calls)
        assert len(world.provider.seen) <= 100
        assert set(codes) <= {0, 200, 429, 499, 503}
        good = codes.count(200)
        assert good > 0
        while (usage := (await store.usage("demo", name))[0]).reserved:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert good * COST <= usage.used <= 100 * COST
        # what the closed one gave up is free again
        left = (100 * COST - usage.used) // COST
        codes = [await one(a) for _ in range(left + 1)]
        assert codes == [200] * left + [429]
