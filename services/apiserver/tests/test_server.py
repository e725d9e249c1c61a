"""ManagementService, over the wire, as people of each kind."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import StatusCode

from agentctl.agent.v1 import run_pb2
from agentctl.management.v1 import management_service_pb2 as pb
from libs import audit
from libs.cluster import Access, Bearer, UnauthorisedError
from libs.contract.run import Run, State, Trigger
from libs.errors import (
    DeadlineError,
    DeniedError,
    ExhaustedError,
    InternalError,
    InvalidError,
    MeshError,
    NotFoundError,
    PreconditionError,
)
from libs.places import Places
from libs.rpc.status import status_of
from libs.testing.mesh import NAMESPACE

from .world import World

WRITER = pb.Target(namespace=NAMESPACE, agent="writer")
ROOT = "administrator/agentctl-system.administrator"


@pytest.mark.parametrize("role", ["user/demo.ann", ROOT])
async def test_each_verb_reaches_the_agent(world: World, role: str):
    _, agent = await world.running(await world.agent(), "writer")
    await agent.put(Run("item-1", Trigger.ITEM))
    terms = pb.Terms(reason="why", until=pb.STAGE_IN_EFFECT)
    async with world.stub(role) as stub:
        lame = await stub.LameDuck(pb.LameDuckRequest(target=WRITER, terms=terms))
        back = await stub.LameDuck(pb.LameDuckRequest(target=WRITER, terms=terms, undo=True))
        held = await stub.Pause(pb.PauseRequest(target=WRITER, terms=terms))
        going = await stub.Resume(pb.ResumeRequest(target=WRITER, terms=terms))
        ended = await stub.Cancel(pb.CancelRequest(target=WRITER, terms=terms, run_id="item-1"))
        drained = await stub.Drain(pb.DrainRequest(target=WRITER, terms=terms, grace=Duration(seconds=3)))
    answers = [lame, back, held, going, ended, drained]
    assert [each.report.done_count for each in answers] == [1] * 6
    assert {each.report.outcomes[0].stage for each in answers} == {pb.STAGE_IN_EFFECT}
    assert held.report.outcomes[0].runs[0].state == run_pb2.RUN_STATE_PAUSED
    assert ended.report.outcomes[0].runs[0].state == run_pb2.RUN_STATE_CANCELED
    assert [each for each in agent.asked if each[0] not in ("pause",)] == [
        ("lame-duck", True),
        ("lame-duck", False),
        ("resume", ""),
        ("cancel", "item-1", "why"),
        ("drain", timedelta(seconds=3)),
    ]


async def test_a_status_is_what_the_agent_says(world: World):
    pod, agent = await world.running(await world.agent(), "writer")
    await agent.put(Run("item-1", Trigger.ITEM, State.PAUSED))
    async with world.stub() as stub:
        answer = await stub.GetStatus(pb.GetStatusRequest(target=WRITER))
    (status,) = answer.pods
    assert (status.pod, status.pod_uid) == (pod["metadata"]["name"], pod["metadata"]["uid"])
    assert (status.phase, status.status.ready, status.error) == ("Running", True, "")
    assert [each.id for each in status.status.runs] == ["item-1"]


async def test_a_user_of_another_namespace_finds_nothing_whatever_rbac_says_and_is_audited(
    world: World, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, audit.LOGGER)
    _, agent = await world.running(await world.agent(), "writer")
    async with world.stub("user/agentctl-system.administrator", "other") as stub:
        with pytest.raises(NotFoundError):
            await stub.LameDuck(pb.LameDuckRequest(target=WRITER))
        with pytest.raises(NotFoundError):
            await stub.GetStatus(pb.GetStatusRequest(target=WRITER))
    assert agent.asked == []
    assert said(caplog) == [
        ("management.lame-duck", "demo/agents/writer", "not_found"),
        ("management.status", "demo/agents/writer", "not_found"),
    ]


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """The audit lines."""
    lines: list[Any] = [each for each in caplog.records if each.name == audit.LOGGER]
    return [(each.event, each.target, each.outcome) for each in lines]


async def test_a_right_that_the_service_lacks_is_no_refusal_of_who_asks(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    why = 'User "system:serviceaccount:agentctl-system:apiserver" cannot create subjectaccessreviews'

    async def review(bearer: Bearer, access: Access) -> bool:
        raise UnauthorisedError(why)

    monkeypatch.setattr(world.cluster, "review_access", review)
    async with world.stub() as stub:
        with pytest.raises(InternalError, match=f"itself lacks a right in the cluster: {why}"):
            await stub.Drain(pb.DrainRequest(target=WRITER))


async def test_more_at_once_than_its_share_is_told_to_come_again(world: World):
    world.places = Places(2, 1)
    _, agent = await world.running(await world.agent(), "writer")
    agent.hangs = True
    async with world.stub() as stub, world.stub(ROOT) as other:
        held = asyncio.create_task(stub.Cancel(pb.CancelRequest(target=WRITER)))
        await agent.called.wait()
        for call in (
            stub.Pause(pb.PauseRequest(target=WRITER)),
            stub.GetStatus(pb.GetStatusRequest(target=WRITER)),
        ):
            with pytest.raises(ExhaustedError):
                await call
        with pytest.raises(NotFoundError):
            await other.GetStatus(pb.GetStatusRequest(target=pb.Target(namespace=NAMESPACE, agent="nobody")))
        held.cancel()
        await asyncio.wait({held})


def test_a_lack_of_rights_crosses_the_wire_as_an_error_of_the_service():
    status = status_of(UnauthorisedError("User x cannot list pods"))
    assert status.code is StatusCode.INTERNAL
    assert b"UNAUTHORISED" not in status.details


async def test_a_person_whom_no_role_is_bound_to_is_denied(world: World):
    await world.running(await world.agent(), "writer")
    async with world.stub("user/ann") as stub:
        with pytest.raises(DeniedError, match="no ServiceAccount"):
            await stub.Pause(pb.PauseRequest(target=WRITER))
    async with world.stub("administrator/other.bob") as stub:
        with pytest.raises(DeniedError, match='cannot get resource "agents/status"'):
            await stub.GetStatus(pb.GetStatusRequest(target=WRITER))


@pytest.mark.parametrize("role", ["producer/demo.ann", "cp/gateway", "agent/other"])
async def test_only_people_may_call(world: World, role: str):
    async with world.stub(role) as stub:
        with pytest.raises(DeniedError):
            await stub.GetStatus(pb.GetStatusRequest(target=WRITER))


@pytest.mark.parametrize(
    ("request_", "error", "word"),
    [
        (pb.DrainRequest(target=pb.Target(namespace=NAMESPACE)), InvalidError, "target"),
        (
            pb.DrainRequest(target=pb.Target(namespace=NAMESPACE, agent="a", fleet="b")),
            InvalidError,
            "target",
        ),
        (pb.DrainRequest(target=pb.Target(namespace=NAMESPACE, agent="nobody")), NotFoundError, "nobody"),
        (pb.DrainRequest(target=WRITER), PreconditionError, "no pod that runs"),
        (pb.DrainRequest(target=WRITER, terms=pb.Terms(reason="é" * 513)), InvalidError, "reason"),
        (pb.DrainRequest(target=WRITER, terms=pb.Terms(until=pb.STAGE_WOULD)), InvalidError, "until"),
        (pb.DrainRequest(target=WRITER, terms=pb.Terms(until=pb.Stage.ValueType(17))), InvalidError, "until"),
        (pb.DrainRequest(target=WRITER, terms=pb.Terms(deadline=Duration())), InvalidError, "deadline"),
        (pb.DrainRequest(target=WRITER, grace=Duration(seconds=-1)), InvalidError, "grace"),
    ],
)
async def test_what_is_wrong_is_named_and_audited(
    world: World,
    caplog: pytest.LogCaptureFixture,
    request_: pb.DrainRequest,
    error: type[MeshError],
    word: str,
):
    caplog.set_level(logging.INFO, audit.LOGGER)
    await world.agent()
    async with world.stub(ROOT) as stub:
        with pytest.raises(error, match=word):
            await stub.Drain(request_)
    assert [outcome for _, _, outcome in said(caplog)] == [error.reason.lower()]


@pytest.mark.parametrize("field", ["namespace", "agent", "pod"])
async def test_a_name_without_end_is_refused_and_neither_logged_nor_echoed_whole(
    world: World, caplog: pytest.LogCaptureFixture, field: str
):
    caplog.set_level(logging.INFO, audit.LOGGER)
    target = pb.Target(namespace=NAMESPACE, agent="writer")
    setattr(target, field, "x" * 1_000_000)
    async with world.stub() as stub:
        with pytest.raises(InvalidError, match="at most 253 letters") as refused:
            await stub.GetStatus(pb.GetStatusRequest(target=target))
    assert len(str(refused.value)) < 1000
    ((_, named, _),) = said(caplog)
    assert len(named) == audit.MAX_FIELD
    assert all(len(each.getMessage()) < 4000 for each in caplog.records)


async def test_the_calls_own_deadline_bounds_the_verb_and_its_answer_comes_in_time(world: World):
    workload = await world.fleet()
    _, agent = await world.running(workload, "workers", fleet="workers")
    _, hung = await world.running(workload, "workers", fleet="workers")
    hung.hangs = True
    terms = pb.Terms(deadline=Duration(seconds=3600))
    request = pb.CancelRequest(target=pb.Target(namespace=NAMESPACE, fleet="workers"), terms=terms)
    async with world.stub() as stub:
        answer = await stub.Cancel(request, timeout=2)
    assert [each.reason for each in answer.report.outcomes] == ["", "DEADLINE"]
    assert agent.asked == [("cancel", "", "")]


async def test_a_call_without_enough_time_is_out_of_time_and_asks_nobody(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    async with world.stub() as stub:
        await stub.GetStatus(pb.GetStatusRequest(target=WRITER))  # connected from here on
        with pytest.raises(DeadlineError):
            await stub.LameDuck(pb.LameDuckRequest(target=WRITER), timeout=0.15)
    assert agent.asked == []
