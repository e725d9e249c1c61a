"""The verbs, each with its effect on real agents over mTLS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from libs import audit
from libs.cluster import Access, Bearer
from libs.contract.agent import Draining
from libs.contract.run import Run, State, Trigger
from libs.contract.statuses import Status
from libs.errors import (
    DeniedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnreachableError,
)
from libs.testing.mesh import NAMESPACE
from services.apiserver.agents import Dial
from services.apiserver.management import Management
from services.apiserver.metrics import VERBS
from services.apiserver.pods import Pod
from services.apiserver.verbs import Kind, Stage, Target, Verb

from .world import World, order

SHORT = timedelta(seconds=1)
ALL = [pytest.param(verb, id=verb.value) for verb in Verb]


def run(name: str, state: State = State.WORKING) -> Run:
    return Run(name, Trigger.ITEM, state)


async def test_a_drain_reaches_every_pod_and_says_what_is_under_way(world: World):
    workload = await world.fleet()
    agents = [(await world.running(workload, "workers", fleet="workers"))[1] for _ in range(3)]
    await agents[0].put(run("item-1"))
    report = await world.management.act(
        world.bearer(), order(Verb.DRAIN, Kind.FLEET, "workers", grace=timedelta(seconds=7))
    )
    assert [agent.asked for agent in agents] == [[("drain", timedelta(seconds=7))]] * 3
    assert all(agent.now.draining for agent in agents)
    assert [each.stage for each in report.outcomes] == [Stage.IN_EFFECT] * 3
    assert [each.run_count for each in report.outcomes] == [1, 0, 0]
    assert report.is_done


async def test_a_bug_is_audited_as_a_failure_and_a_caller_who_leaves_as_an_interruption(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, audit.LOGGER)
    _, agent = await world.running(await world.agent(), "writer")
    agent.hangs = True
    drain = order(Verb.DRAIN, Kind.AGENT, "writer")
    leaving = asyncio.create_task(world.management.act(world.bearer(), drain))
    await agent.called.wait()
    leaving.cancel()
    await asyncio.wait({leaving})

    async def broken(bearer: Bearer, access: Access) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(world.cluster, "review_access", broken)
    with pytest.raises(ZeroDivisionError):
        await world.management.act(world.bearer(), drain)
    lines: list[Any] = [each for each in caplog.records if each.name == audit.LOGGER]
    assert [(each.decision, each.outcome) for each in lines] == [
        ("allowed", "interrupted"),
        ("denied", "failed"),
    ]


async def test_a_drain_without_grace_leaves_the_time_to_the_agent(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    await world.management.act(world.bearer(), order(Verb.DRAIN, Kind.AGENT, "writer"))
    assert agent.asked == [("drain", None)]


async def test_a_drain_is_finished_when_the_process_has_exited_with_0(world: World):
    pod, agent = await world.running(await world.agent(), "writer")
    reports = []

    async def drain() -> None:
        wanted = order(Verb.DRAIN, Kind.AGENT, "writer", until=Stage.FINISHED)
        reports.append(await world.management.act(world.bearer(), wanted))

    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        await agent.called.wait()
        assert not reports
        await world.exits(pod, 0)
    assert [each.stage for each in reports[0].outcomes] == [Stage.FINISHED]
    assert reports[0].is_done


async def test_a_drain_that_ends_with_another_code_has_failed(world: World):
    pod, agent = await world.running(await world.agent(), "writer")
    reports = []

    async def drain() -> None:
        wanted = order(Verb.DRAIN, Kind.AGENT, "writer", until=Stage.FINISHED)
        reports.append(await world.management.act(world.bearer(), wanted))

    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        await agent.called.wait()
        await world.exits(pod, 137)
    (outcome,) = reports[0].outcomes
    assert (outcome.stage, outcome.reason) == (Stage.FAILED, "EXITED")
    assert "137" in outcome.message


async def test_a_drain_that_does_not_end_in_time_says_that_it_is_under_way(world: World):
    await world.running(await world.agent(), "writer")
    wanted = order(Verb.DRAIN, Kind.AGENT, "writer", until=Stage.FINISHED, deadline=SHORT)
    report = await world.management.act(world.bearer(), wanted)
    assert [each.stage for each in report.outcomes] == [Stage.IN_EFFECT]
    assert not report.is_done


async def test_a_lame_duck_is_not_ready_and_the_undo_takes_it_back(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    bearer = world.bearer()
    report = await world.management.act(
        bearer, order(Verb.LAME_DUCK, Kind.AGENT, "writer", until=Stage.IN_EFFECT)
    )
    assert report.is_done
    assert not (await agent.condition()).ready
    report = await world.management.act(
        bearer, order(Verb.LAME_DUCK, Kind.AGENT, "writer", undo=True, until=Stage.FINISHED)
    )
    assert [each.stage for each in report.outcomes] == [Stage.FINISHED]
    assert (await agent.condition()).ready


async def test_an_undo_that_is_asked_to_wait_waits_until_the_agent_is_ready(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    agent.ready_at_once = False
    undo = {"undo": True, "deadline": timedelta(seconds=3)}  # room for a second look
    bearer, management = world.bearer(), world.management
    accepted = await management.act(bearer, order(Verb.LAME_DUCK, Kind.AGENT, "writer", **undo))
    assert [each.stage for each in accepted.outcomes] == [Stage.ACCEPTED]
    assert accepted.is_done
    waited = await management.act(
        bearer, order(Verb.LAME_DUCK, Kind.AGENT, "writer", until=Stage.IN_EFFECT, **undo)
    )
    why = "it is not ready yet: warming up"
    assert [(each.stage, each.message) for each in waited.outcomes] == [(Stage.ACCEPTED, why)]
    assert not waited.is_done


async def test_an_undo_does_not_wait_for_an_agent_that_drains(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    agent.ready_at_once = False
    reports = []

    async def undo() -> None:
        wanted = order(Verb.LAME_DUCK, Kind.AGENT, "writer", undo=True, until=Stage.IN_EFFECT)
        reports.append(await world.management.act(world.bearer(), wanted))

    async with anyio.create_task_group() as group:
        group.start_soon(undo)
        await agent.called.wait()
        await agent.drain(None)
    (outcome,) = reports[0].outcomes
    assert (outcome.stage, outcome.message) == (Stage.FAILED, "it drains")


async def test_a_cancel_ends_the_runs_and_tells_the_agent_why(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    await agent.put(run("item-1"))
    report = await world.management.act(
        world.bearer(), order(Verb.CANCEL, Kind.AGENT, "writer", reason="wrong prompt")
    )
    assert agent.asked == [("cancel", "", "wrong prompt")]
    assert agent.run("item-1").state is State.CANCELED
    (outcome,) = report.outcomes
    assert (outcome.stage, outcome.run_count) == (Stage.IN_EFFECT, 0)
    assert [(each.id, each.state) for each in outcome.runs] == [("item-1", State.CANCELED)]


async def test_a_pause_holds_runs_and_a_resume_lets_them_go_on(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    await agent.put(run("item-1"))
    bearer, management = world.bearer(), world.management
    held = await management.act(bearer, order(Verb.PAUSE, Kind.AGENT, "writer", until=Stage.IN_EFFECT))
    assert [each.stage for each in held.outcomes] == [Stage.IN_EFFECT]
    assert agent.run("item-1").state is State.PAUSED
    on = await management.act(bearer, order(Verb.RESUME, Kind.AGENT, "writer", until=Stage.IN_EFFECT))
    assert [each.stage for each in on.outcomes] == [Stage.IN_EFFECT]
    assert agent.run("item-1").state is State.WORKING


async def test_a_pause_that_need_not_wait_asks_the_agent_not_to(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    agent.holds_at_once = False
    await agent.put(run("item-1"))
    report = await world.management.act(world.bearer(), order(Verb.PAUSE, Kind.AGENT, "writer"))
    assert agent.asked == [("pause", "", timedelta(0))]
    (outcome,) = report.outcomes
    assert (outcome.stage, outcome.run_count) == (Stage.ACCEPTED, 1)


async def test_a_pause_in_effect_waits_for_the_runs_to_come_to_a_step(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    agent.holds_at_once = False
    await agent.put(run("item-1"))
    reports = []

    async def pause() -> None:
        wanted = order(Verb.PAUSE, Kind.AGENT, "writer", until=Stage.IN_EFFECT)
        reports.append(await world.management.act(world.bearer(), wanted))

    async with anyio.create_task_group() as group:
        group.start_soon(pause)
        await agent.called.wait()
        await agent.hold("item-1")
    (outcome,) = reports[0].outcomes
    assert outcome.stage is Stage.IN_EFFECT
    assert [each.state for each in outcome.runs] == [State.PAUSED]


@pytest.mark.parametrize(
    ("happens", "reason", "message"),
    [
        ("resume", "CONFLICT", "the pause was taken back"),
        ("restart", "EXITED", "its process has ended since"),
        ("drain", "PRECONDITION", "it drains"),
    ],
)
async def test_a_pause_that_waits_notices_that_it_is_one_no_more(
    world: World, happens: str, reason: str, message: str
):
    pod, agent = await world.running(await world.agent(), "writer")
    agent.holds_at_once = False
    await agent.put(run("item-1"))
    reports = []

    async def pause() -> None:
        wanted = order(Verb.PAUSE, Kind.AGENT, "writer", until=Stage.IN_EFFECT)
        reports.append(await world.management.act(world.bearer(), wanted))

    async with anyio.create_task_group() as group:
        group.start_soon(pause)
        await agent.called.wait()
        if happens == "restart":
            await world.exits(pod, 0)
        if happens == "drain":
            await agent.drain(None)
        else:
            await agent.resume("")
        await agent.end("item-1", Status.DRAINED)
    (outcome,) = reports[0].outcomes
    assert (outcome.stage, outcome.reason, outcome.message) == (Stage.FAILED, reason, message)


@pytest.mark.parametrize("verb", ALL)
async def test_one_that_hangs_costs_the_others_nothing_and_the_answer_names_it(world: World, verb: Verb):
    workload = await world.fleet()
    running = [await world.running(workload, "workers", fleet="workers") for _ in range(3)]
    running[1][1].hangs = True
    report = await world.management.act(world.bearer(), order(verb, Kind.FLEET, "workers", deadline=SHORT))
    hung = report.outcomes[1]
    assert (hung.pod, hung.pod_uid) == (running[1][0]["metadata"]["name"], running[1][0]["metadata"]["uid"])
    assert (hung.stage, hung.reason) == (Stage.FAILED, "DEADLINE")
    others = [report.outcomes[n] for n in (0, 2)]
    assert all(each.stage is Stage.IN_EFFECT for each in others)
    assert report.done == 2
    assert not report.is_done


async def test_one_that_nobody_reaches_is_late_and_says_why_and_one_of_another_uid_is_not_believed(
    world: World,
):
    workload = await world.fleet()
    gone = await world.pod(workload, "workers", fleet="workers")
    mine, agent = await world.running(workload, "workers", fleet="workers")
    other = await world.pod(workload, "workers", fleet="workers")
    world.addresses[other["metadata"]["uid"]] = world.addresses[mine["metadata"]["uid"]]
    report = await world.management.act(
        world.bearer(), order(Verb.CANCEL, Kind.FLEET, "workers", deadline=timedelta(seconds=5))
    )
    outcomes = {each.pod: each for each in report.outcomes}
    for pod, why in ((gone, "refused"), (other, "Verification Check failed")):
        outcome = outcomes[pod["metadata"]["name"]]
        assert (outcome.stage, outcome.reason) == (Stage.FAILED, "DEADLINE")
        assert outcome.message.startswith("it did not answer in time: ")
        assert why in outcome.message
    assert outcomes[mine["metadata"]["name"]].stage is Stage.IN_EFFECT
    assert len(agent.asked) == 1


def stalling(world: World, but: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint) -> Dial:
    """The first time nobody answers, and that happens; then as ever."""
    dial, tries = world.dial, count()

    @asynccontextmanager
    async def dialled(pod: Pod) -> AsyncIterator[Any]:
        if next(tries) == 0:
            await but()
            raise UnreachableError("Handshake read failed")
        async with dial(pod) as agent:
            yield agent

    return dialled


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("verb", ALL)
async def test_who_does_not_answer_at_first_is_asked_again(world: World, verb: Verb, dry_run: bool):
    _, agent = await world.running(await world.agent(), "writer")
    report = await Management(world.cluster, stalling(world)).act(
        world.bearer(), order(verb, Kind.AGENT, "writer", dry_run=dry_run)
    )
    assert [each.stage for each in report.outcomes] == [Stage.WOULD if dry_run else Stage.IN_EFFECT]
    assert len(agent.asked) == (0 if dry_run else 1)


async def test_a_drain_that_nobody_answered_does_not_end_the_next_process(world: World):
    pod, agent = await world.running(await world.agent(), "writer")
    management = Management(world.cluster, stalling(world, lambda: world.exits(pod, 0)))
    report = await management.act(world.bearer(), order(Verb.DRAIN, Kind.AGENT, "writer"))
    (outcome,) = report.outcomes
    assert (outcome.stage, outcome.reason) == (Stage.FAILED, "EXITED")
    assert agent.asked == []


async def test_a_drain_that_another_one_was_faster_than_is_finished_too(world: World):
    pod, agent = await world.running(await world.agent(), "writer")
    management = Management(world.cluster, stalling(world, lambda: world.exits(pod, 0)))
    report = await management.act(
        world.bearer(), order(Verb.DRAIN, Kind.AGENT, "writer", until=Stage.FINISHED)
    )
    assert [each.stage for each in report.outcomes] == [Stage.FINISHED]
    assert agent.asked == []


async def test_a_drain_that_is_refused_is_not_repeated(world: World, monkeypatch: pytest.MonkeyPatch):
    _, agent = await world.running(await world.agent(), "writer")
    drains = []

    async def refuse(deadline: timedelta | None) -> Draining:
        drains.append(deadline)
        raise UnavailableError("not now")

    monkeypatch.setattr(agent, "drain", refuse)
    report = await world.management.act(world.bearer(), order(Verb.DRAIN, Kind.AGENT, "writer"))
    assert [(each.reason, each.message) for each in report.outcomes] == [("UNAVAILABLE", "not now")]
    assert len(drains) == 1


async def test_a_pause_means_the_next_process_as_well(world: World):
    pod, agent = await world.running(await world.agent(), "writer")
    management = Management(world.cluster, stalling(world, lambda: world.exits(pod, 0)))
    report = await management.act(world.bearer(), order(Verb.PAUSE, Kind.AGENT, "writer"))
    assert report.is_done
    assert len(agent.asked) == 1


async def test_what_an_agent_refuses_is_told_with_its_reason(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    await agent.drain(None)
    report = await world.management.act(world.bearer(), order(Verb.LAME_DUCK, Kind.AGENT, "writer"))
    (outcome,) = report.outcomes
    assert (outcome.stage, outcome.reason, outcome.message) == (Stage.FAILED, "PRECONDITION", "it drains")


# --- One run of a fleet ---


async def test_a_run_is_cancelled_where_it_is_and_nowhere_else(world: World):
    workload = await world.fleet()
    running = [await world.running(workload, "workers", fleet="workers") for _ in range(3)]
    await running[0][1].put(run("item-1"))
    await running[1][1].put(run("item-2"))
    report = await world.management.act(
        world.bearer(), order(Verb.CANCEL, Kind.FLEET, "workers", run_id="item-2")
    )
    assert [each.pod for each in report.outcomes] == [running[1][0]["metadata"]["name"]]
    assert [agent.asked for _, agent in running] == [[], [("cancel", "item-2", "")], []]
    assert running[0][1].run("item-1").state is State.WORKING


@pytest.mark.parametrize("is_mute", [True, False])
async def test_a_run_that_was_found_does_not_wait_for_pods_that_do_not_answer(world: World, is_mute: bool):
    workload = await world.fleet()
    dead = await world.pod(workload, "workers", fleet="workers")
    if is_mute:
        await world.mute(dead, "workers")
    _, agent = await world.running(workload, "workers", fleet="workers")
    await agent.put(run("item-1"))
    wanted = order(Verb.CANCEL, Kind.FLEET, "workers", run_id="item-1", deadline=timedelta(hours=1))
    with anyio.fail_after(30):
        report = await world.management.act(world.bearer(), wanted)
    assert [each.stage for each in report.outcomes] == [Stage.IN_EFFECT]


async def test_a_run_that_is_nowhere_is_not_found(world: World):
    await world.running(await world.fleet(), "workers", fleet="workers")
    with pytest.raises(NotFoundError, match="item-9"):
        await world.management.act(world.bearer(), order(Verb.PAUSE, Kind.FLEET, "workers", run_id="item-9"))


async def test_a_run_that_may_be_on_a_pod_that_does_not_answer_is_not_said_to_be_nowhere(world: World):
    workload = await world.fleet()
    await world.running(workload, "workers", fleet="workers")
    silent = await world.pod(workload, "workers", fleet="workers")
    await world.mute(silent, "workers")
    report = await world.management.act(
        world.bearer(), order(Verb.PAUSE, Kind.FLEET, "workers", run_id="item-9", deadline=SHORT)
    )
    assert [(each.pod, each.reason) for each in report.outcomes] == [(silent["metadata"]["name"], "DEADLINE")]


async def test_a_run_is_where_it_is_under_way_though_another_pod_remembers_it(world: World):
    workload = await world.fleet()
    (_, first), (pod, second) = [await world.running(workload, "workers", fleet="workers") for _ in range(2)]
    await first.put(run("item-1", State.CANCELED))
    await second.put(run("item-1"))
    report = await world.management.act(
        world.bearer(), order(Verb.PAUSE, Kind.FLEET, "workers", run_id="item-1")
    )
    assert [each.pod for each in report.outcomes] == [pod["metadata"]["name"]]
    assert second.run("item-1").state is State.PAUSED


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.PAUSE, Verb.RESUME])
async def test_a_run_that_has_ended_stays_as_it_is_and_that_is_no_success(
    world: World, verb: Verb, dry_run: bool
):
    _, agent = await world.running(await world.fleet(), "workers", fleet="workers")
    await agent.put(run("item-1"))
    await agent.end("item-1", Status.COMPLETED)
    report = await world.management.act(
        world.bearer(), order(verb, Kind.FLEET, "workers", run_id="item-1", dry_run=dry_run)
    )
    (outcome,) = report.outcomes
    assert (outcome.stage, outcome.reason) == (Stage.FAILED, "PRECONDITION")
    assert outcome.message == "it has already ended: completed"
    assert [each.state for each in outcome.runs] == [State.COMPLETED]
    assert agent.asked == []


async def test_a_run_may_be_cancelled_twice(world: World):
    _, agent = await world.running(await world.fleet(), "workers", fleet="workers")
    await agent.put(run("item-1"))
    for _ in range(2):
        report = await world.management.act(
            world.bearer(), order(Verb.CANCEL, Kind.FLEET, "workers", run_id="item-1")
        )
        assert report.is_done


async def test_a_run_that_ends_before_it_holds_is_not_said_to_be_paused(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    agent.holds_at_once = False
    await agent.put(run("item-1"))
    reports = []

    async def pause() -> None:
        wanted = order(Verb.PAUSE, Kind.AGENT, "writer", run_id="item-1", until=Stage.IN_EFFECT)
        reports.append(await world.management.act(world.bearer(), wanted))

    async with anyio.create_task_group() as group:
        group.start_soon(pause)
        await agent.called.wait()
        await agent.end("item-1", Status.DRAINED)
    (outcome,) = reports[0].outcomes
    assert (outcome.reason, outcome.message) == ("PRECONDITION", "it has already ended: drained")


@pytest.mark.parametrize("until", [Stage.ACCEPTED, Stage.IN_EFFECT])
async def test_a_run_of_an_agent_that_is_paused_does_not_go_on_by_itself(world: World, until: Stage):
    _, agent = await world.running(await world.agent(), "writer")
    agent.holds_at_once = False
    await agent.put(run("item-1"))
    await agent.pause("", timedelta(0))

    async def stay(run_id: str) -> Sequence[Run]:
        return [agent.run(run_id)]

    agent.resume = stay  # type: ignore[method-assign]
    report = await world.management.act(
        world.bearer(),
        order(Verb.RESUME, Kind.AGENT, "writer", run_id="item-1", until=until, deadline=SHORT),
    )
    (outcome,) = report.outcomes
    assert (outcome.stage, outcome.message) == (Stage.ACCEPTED, "the whole agent is paused")


# --- Whom it means ---


async def test_no_pod_that_runs_is_an_error_that_says_so(world: World):
    workload = await world.agent()
    for phase in ("Pending", "Pending", "Succeeded"):
        await world.pod(workload, "writer", phase=phase)
    with pytest.raises(PreconditionError, match="no pod that runs; 2 pending, 3 in all"):
        await world.management.act(world.bearer(), order(Verb.DRAIN, Kind.AGENT, "writer"))


async def test_what_has_ended_is_said_to_have(world: World):
    await world.pod(await world.agent(), "writer", phase="Succeeded")
    with pytest.raises(PreconditionError, match=r"no pod that runs: all have ended \(1 pod\)"):
        await world.management.act(world.bearer(), order(Verb.DRAIN, Kind.AGENT, "writer"))


@pytest.mark.parametrize("kind", list(Kind))
async def test_an_object_that_is_not_there_is_not_found(world: World, kind: Kind):
    with pytest.raises(NotFoundError, match="demo/nobody"):
        await world.management.act(world.bearer(), order(Verb.DRAIN, kind, "nobody"))


async def test_a_pod_with_forged_labels_or_owners_is_not_asked(world: World):
    workload = await world.agent()
    other = await world.agent("other")
    await world.pod(None, "writer")
    await world.pod(other, "writer")
    namesake = {**workload, "metadata": {**workload["metadata"], "uid": other["metadata"]["uid"]}}
    await world.pod(namesake, "writer")
    pod, _ = await world.running(workload, "writer")
    report = await world.management.act(world.bearer(), order(Verb.PAUSE, Kind.AGENT, "writer"))
    assert [each.pod for each in report.outcomes] == [pod["metadata"]["name"]]


async def test_pods_of_a_recorded_deployment_are_found_through_its_replica_set(world: World):
    deployment = await world.fleet()
    stranger = await world.agent("stranger")
    pod, _ = await world.running(await world.replica_set(deployment), "workers", fleet="workers")
    await world.pod(await world.replica_set(stranger), "workers", fleet="workers")
    report = await world.management.act(world.bearer(), order(Verb.PAUSE, Kind.FLEET, "workers"))
    assert [(each.pod, each.stage) for each in report.outcomes] == [
        (pod["metadata"]["name"], Stage.IN_EFFECT)
    ]


async def test_one_pod_of_a_fleet_is_drained_alone(world: World):
    workload = await world.fleet()
    running = [await world.running(workload, "workers", fleet="workers") for _ in range(2)]
    name = running[1][0]["metadata"]["name"]
    report = await world.management.act(world.bearer(), order(Verb.DRAIN, Kind.FLEET, "workers", pod=name))
    assert [each.pod for each in report.outcomes] == [name]
    assert running[0][1].asked == []
    with pytest.raises(NotFoundError, match="no pod workers-99"):
        await world.management.act(world.bearer(), order(Verb.DRAIN, Kind.FLEET, "workers", pod="workers-99"))


@pytest.mark.parametrize(
    ("verb", "asked"),
    [(Verb.PAUSE, 1), (Verb.RESUME, 1), (Verb.LAME_DUCK, 1), (Verb.CANCEL, 2), (Verb.DRAIN, 2)],
)
async def test_a_pod_that_is_about_to_go_is_asked_to_end_things_only(world: World, verb: Verb, asked: int):
    workload = await world.fleet()
    await world.running(workload, "workers", fleet="workers")
    pod, _ = await world.running(workload, "workers", fleet="workers")
    await world.begins_to_go(pod)
    report = await world.management.act(world.bearer(), order(verb, Kind.FLEET, "workers"))
    assert len(report.outcomes) == asked


# --- Who may ---


async def test_who_may_not_hears_which_attribute_is_missing_and_nobody_is_asked(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    stranger = world.bearer("administrator/other.bob")
    with pytest.raises(DeniedError) as denied:
        await world.management.act(stranger, order(Verb.LAME_DUCK, Kind.AGENT, "writer"))
    assert str(denied.value) == (
        'agents.management.agentctl.dev "writer" is forbidden: User "system:serviceaccount:other:bob" cannot '
        'create resource "agents/lame-duck" in API group "management.agentctl.dev" in the namespace "demo"'
    )
    assert agent.asked == []


async def test_what_is_asked_of_rbac_names_verb_subresource_and_object(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    await world.running(await world.fleet(), "workers", fleet="workers")
    asked: list[Access] = []

    async def review(bearer: Bearer, access: Access) -> bool:
        asked.append(access)
        return True

    monkeypatch.setattr(world.cluster, "review_access", review)
    await world.management.act(world.bearer(), order(Verb.PAUSE, Kind.FLEET, "workers"))
    await world.management.status(world.bearer(), Target(Kind.FLEET, NAMESPACE, "workers"))
    group = "management.agentctl.dev"
    assert asked == [
        Access("create", group, "agentfleets", NAMESPACE, "workers", "pause"),
        Access("get", group, "agentfleets", NAMESPACE, "workers", "status"),
    ]


async def test_who_may_not_does_not_hear_whether_there_is_one(world: World):
    with pytest.raises(DeniedError):
        await world.management.act(
            world.bearer("administrator/other.bob"), order(Verb.DRAIN, Kind.AGENT, "nobody")
        )


@pytest.mark.parametrize("verb", ALL)
async def test_a_dry_run_reaches_the_agents_and_asks_none_of_them_to_do_anything(world: World, verb: Verb):
    workload = await world.fleet()
    _, agent = await world.running(workload, "workers", fleet="workers")
    gone = await world.pod(workload, "workers", fleet="workers")
    await agent.put(run("item-1"))
    report = await world.management.act(
        world.bearer(),
        order(verb, Kind.FLEET, "workers", dry_run=True, until=Stage.FINISHED, deadline=timedelta(seconds=2)),
    )
    assert agent.asked == []
    assert not agent.called.is_set()
    would, cannot = report.outcomes
    assert (would.stage, would.run_count) == (Stage.WOULD, 1)
    assert (cannot.pod, cannot.reason) == (gone["metadata"]["name"], "DEADLINE")
    assert report.done == 1


@pytest.mark.parametrize(
    ("verb", "rest", "word"),
    [
        (Verb.DRAIN, {"deadline": timedelta(hours=2)}, "deadline"),
        (Verb.DRAIN, {"run_id": "item-1"}, "run_id"),
        (Verb.CANCEL, {"run_id": "no such/id"}, "run_id"),
        (Verb.CANCEL, {"pod": "x" * 254}, "pod"),
    ],
)
async def test_a_wrong_order_is_refused_before_anybody_is_asked_and_audited(
    world: World, caplog: pytest.LogCaptureFixture, verb: Verb, rest: dict[str, Any], word: str
):
    with caplog.at_level(logging.INFO, audit.LOGGER), pytest.raises(InvalidError, match=word):
        await world.management.act(world.bearer(), order(verb, Kind.AGENT, "writer", **rest))
    assert [each.outcome for each in audited(caplog)] == ["invalid"]


def audited(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [each for each in caplog.records if each.name == audit.LOGGER]


async def test_a_pause_that_is_accepted_and_not_yet_in_effect_is_audited_as_late(
    world: World, caplog: pytest.LogCaptureFixture
):
    _, agent = await world.running(await world.agent(), "writer")
    agent.holds_at_once = False
    await agent.put(run("item-1"))
    with caplog.at_level(logging.INFO, audit.LOGGER):
        await world.management.act(
            world.bearer(),
            order(Verb.PAUSE, Kind.AGENT, "writer", until=Stage.IN_EFFECT, deadline=SHORT),
        )
    assert [each.outcome for each in audited(caplog)] == ["late: 0 of 1 pod"]


async def test_a_dry_run_for_one_run_counts_that_run(world: World):
    _, agent = await world.running(await world.agent(), "writer")
    for name in ("item-1", "item-2"):
        await agent.put(run(name))
    report = await world.management.act(
        world.bearer(), order(Verb.CANCEL, Kind.AGENT, "writer", run_id="item-1", dry_run=True)
    )
    assert [each.run_count for each in report.outcomes] == [1]


# --- What is told of it ---


async def test_each_call_is_one_audit_line_and_one_count(world: World, caplog: pytest.LogCaptureFixture):
    await world.running(await world.agent(), "writer")
    count = VERBS.labels("cancel", "agents", "done")
    before = count._value.get()
    with caplog.at_level(logging.INFO, audit.LOGGER):
        await world.management.act(world.bearer(), order(Verb.CANCEL, Kind.AGENT, "writer", reason="why"))
        with pytest.raises(DeniedError):
            await world.management.act(
                world.bearer("administrator/other.bob"), order(Verb.CANCEL, Kind.AGENT, "writer")
            )
    lines = audited(caplog)
    assert [(each.event, each.who, each.target, each.decision, each.outcome) for each in lines] == [
        (
            "management.cancel", "system:serviceaccount:demo:ann", "demo/agents/writer", "allowed",
            "done: 1 of 1 pod",
        ),
        ("management.cancel", "system:serviceaccount:other:bob", "demo/agents/writer", "denied", "denied"),
    ]  # fmt: skip
    assert lines[0].reason == "why"
    assert count._value.get() == before + 1


async def test_a_status_has_every_pod_and_why_one_could_not_be_asked(world: World):
    workload = await world.fleet()
    _, agent = await world.running(workload, "workers", fleet="workers")
    await agent.put(run("item-1"))
    await world.pod(workload, "workers", fleet="workers", phase="Pending")
    await world.pod(workload, "workers", fleet="workers")
    found = await world.management.status(world.bearer(), Target(Kind.FLEET, NAMESPACE, "workers"), within=10)
    assert [each.phase for each in found] == ["Running", "Pending", "Running"]
    assert found[0].condition is not None
    assert [each.id for each in found[0].condition.runs] == ["item-1"]
    assert (found[1].condition, found[1].error) == (None, "it does not run")
    assert found[2].condition is None
    assert found[2].error.startswith("ipv4:127.0.0.1:1: ")
