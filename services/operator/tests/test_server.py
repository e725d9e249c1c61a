"""OperatorService, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from agentctl.operator.v1 import operator_service_pb2 as pb
from agentctl.operator.v1.operator_service_pb2_grpc import OperatorServiceStub
from libs.cluster.kinds import AGENT, CRON_JOB, DEPLOYMENT
from libs.documents import document_of, struct_of
from libs.errors import DeniedError, InvalidError, NotFoundError, UnavailableError
from libs.mesh import OPERATOR
from libs.testing.mesh import Mesh
from services.operator.controller import Controller
from services.operator.key import Key
from services.operator.operating import Operator, answering

from .world import Counting, World
from .world import namespace as make_namespace


@asynccontextmanager
async def served(
    world: World, role: str = "administrator", **options: Any
) -> AsyncIterator[tuple[Any, Operator]]:
    mesh = Mesh(world.folder)
    settings = replace(world.settings(options.get("replica", "operator-0")), port=0)
    async with (
        world.operator(**options) as operator,
        answering(settings, world.cluster, mesh.identity("cp/operator"), operator) as up,
        mesh.dial_as(role, up, OPERATOR, namespace=world.namespace) as channel,
    ):
        yield OperatorServiceStub(channel), operator


def _render(thing: dict[str, Any]) -> pb.RenderRequest:
    return pb.RenderRequest(object=struct_of(thing))


async def test_render_says_what_would_be_made_of_an_object_that_is_not_there(local: World):
    counting = Counting(local.cluster)
    async with served(local, cluster=counting) as (stub, _):
        answer = await stub.Render(_render(local.agent("new", "schedule")))
    assert [each.action for each in answer.objects] == [pb.RENDER_ACTION_CREATE]
    made = document_of(answer.objects[0].object)
    assert made["kind"] == "CronJob"
    assert made["spec"]["schedule"] == "0 * * * *"
    assert counting.writes == []


async def test_render_shows_all_that_a_fleet_gets(local: World):
    local.scaler = "scaler.test:7417"
    async with served(local) as (stub, _):
        for mode, kinds in (
            ("claim", {"Deployment", "ScaledObject", "PodDisruptionBudget"}),
            ("shard", {"StatefulSet", "Service", "PodDisruptionBudget"}),
        ):
            answer = await stub.Render(_render(local.fleet("new", scaling={"mode": mode})))
            assert {document_of(each.object)["kind"] for each in answer.objects} == kinds
            assert {each.action for each in answer.objects} == {pb.RENDER_ACTION_CREATE}
            assert not answer.problems


async def test_render_says_what_a_change_would_do_to_what_is_there(local: World):
    async with served(local) as (stub, operator):
        await local.apply(local.agent("x", "schedule"))
        await local.accepted(AGENT, "x", status="True")
        await local.settle(operator, AGENT, ["x"])

        async def actions(thing: dict[str, Any]) -> dict[str, int]:
            answer = await stub.Render(_render(thing))
            return {document_of(each.object)["kind"]: each.action for each in answer.objects}

        there = {"kind": "Agent", "metadata": {"name": "x", "namespace": local.namespace}}
        assert await actions(there) == {"CronJob": pb.RENDER_ACTION_NONE}
        assert await actions(local.agent("x", "schedule", instruction="other")) == {
            "CronJob": pb.RENDER_ACTION_UPDATE
        }
        assert await actions(local.agent("x", "loop")) == {
            "CronJob": pb.RENDER_ACTION_DELETE,
            "Deployment": pb.RENDER_ACTION_CREATE,
        }
        await local.apply(local.agent("run", "once"))
        await local.accepted(AGENT, "run", status="True")
        await local.settle(operator, AGENT, ["run"])
        assert await actions(local.agent("run", "once", instruction="other")) == {
            "Job": pb.RENDER_ACTION_RECREATE
        }


async def test_render_names_what_stands_in_the_way(local: World):
    async with served(local) as (stub, _):
        answer = await stub.Render(_render(local.agent("x", model={"pool": "none"})))
    assert not answer.objects
    assert [problem.partition(":")[0] for problem in answer.problems] == ["UnknownModelPool"]


@pytest.mark.parametrize(
    ("thing", "field"),
    [
        ({}, "object"),
        ({"kind": "Agent", "metadata": {"name": "x"}}, "object"),
        ({"kind": "Pod", "metadata": {"name": "x", "namespace": "demo"}}, "kind"),
    ],
)
async def test_render_refuses_what_is_no_agent(local: World, thing: dict[str, Any], field: str):
    async with served(local) as (stub, _):
        with pytest.raises(InvalidError) as refused:
            await stub.Render(_render(thing))
    assert field in str(refused.value)


async def test_reconcile_heals_now_and_says_so(local: World):
    async with served(local) as (stub, operator):
        await local.apply(local.agent("x", "schedule"))
        await local.accepted(AGENT, "x", status="True")
        await local.settle(operator, AGENT, ["x"])
        request = pb.ReconcileRequest(kind="Agent", namespace=local.namespace, name="x")
        answer = await stub.Reconcile(request)
        assert answer.write_count == 0
        assert any(said.startswith("Accepted=True") for said in answer.conditions)


async def test_another_replica_names_the_leader(local: World):
    async with local.operator(replica="first") as leader:
        await local.until(lambda: leader.election.leading)
        await local.apply(local.agent("x", "schedule"))
        await local.there(CRON_JOB, "x")
        async with served(local, replica="second") as (stub, _):
            with pytest.raises(UnavailableError, match="first"):
                await stub.Reconcile(
                    pb.ReconcileRequest(kind="Agent", namespace=local.namespace, name="x"), timeout=5
                )
            status = await stub.GetStatus(pb.GetStatusRequest())
            assert (status.leading, status.leader) == (False, "first")
            assert status.cached_counts["Agent"] == 1
            assert 0 <= status.cache_age.ToSeconds() < 60


async def test_a_user_sees_its_own_namespace_only(local: World):
    other = {"kind": "Agent", "metadata": {"name": "x", "namespace": "elsewhere"}, "spec": {"mode": "once"}}
    async with served(local, "user") as (stub, _):
        with pytest.raises(NotFoundError):
            await stub.Render(_render(other))
        with pytest.raises(NotFoundError):
            await stub.Reconcile(pb.ReconcileRequest(kind="Agent", namespace="elsewhere", name="x"))
        answer = await stub.Render(_render(local.agent("mine")))
        assert document_of(answer.objects[0].object)["kind"] == DEPLOYMENT.name


@pytest.mark.parametrize(("role", "count"), [("user", 1), ("administrator", 2)])
async def test_a_user_is_told_the_numbers_of_its_own_namespace(local: World, role: str, count: int):
    await local.cluster.create(make_namespace("elsewhere"))
    other = local.agent("x", "schedule")
    await local.cluster.create({**other, "metadata": {"name": "x", "namespace": "elsewhere"}})
    await local.apply(local.agent("mine", "schedule"))
    async with served(local, role) as (stub, operator):
        await local.until(lambda: not operator.controller.depths())
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert status.cached_counts["Agent"] == count


async def test_an_agent_may_ask_nothing(local: World):
    async with served(local, "agent") as (stub, _):
        with pytest.raises(DeniedError):
            await stub.GetStatus(pb.GetStatusRequest())


async def test_depths_are_counted_by_namespace():
    controller = Controller(workers=1, resync=600)
    for namespace in ("demo", "elsewhere", "elsewhere"):
        controller.wake(Key(AGENT, namespace, "x"))
    assert (controller.depths(), controller.depths("demo")) == ({"Agent": 2}, {"Agent": 1})
