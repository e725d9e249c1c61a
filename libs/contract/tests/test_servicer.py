"""AgentService as any agent gets it: who sees it, what a request may hold, waiting, paging, streams."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from libs.contract import wire
from libs.contract.manifest import Surfaces
from libs.contract.run import Run, State, Trigger
from libs.contract.statuses import Status
from libs.errors import (
    DeadlineError,
    DeniedError,
    ExistsError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)

TOO_LONG = Duration(seconds=301)
BACKWARDS = Duration(seconds=-1)
HALF = Duration(seconds=1, nanos=-5)
WORKING = Run("r", Trigger.ITEM)


def seconds(n):
    return Duration(seconds=n)


# --- Who sees it ---


@pytest.mark.parametrize("role", ["user", "administrator", "cp/operator", "cp/gateway"])
async def test_who_may_look_sees_the_manifest(served, call_as, agent, role):
    async with call_as(served, role) as stub:
        answer = await stub.GetManifest(pb.GetManifestRequest())
    assert wire.manifest_from_pb(answer.manifest) == agent.manifest()


async def test_a_user_of_another_namespace_sees_nothing(served, call_as):
    async with call_as(served, "user", "elsewhere") as stub:
        with pytest.raises(NotFoundError):
            await stub.GetManifest(pb.GetManifestRequest())
        with pytest.raises(NotFoundError):
            await stub.GetStatus(pb.GetStatusRequest())
        with pytest.raises(NotFoundError):
            await stub.WatchEvents(pb.WatchEventsRequest()).read()


async def test_a_user_may_not_steer(served, call_as, agent):
    async with call_as(served, "user") as stub:
        with pytest.raises(DeniedError):
            await stub.Drain(pb.DrainRequest())
    assert not agent.asked


# --- What a request may hold ---

BAD = [
    ("Drain", pb.DrainRequest(deadline=BACKWARDS), "deadline"),
    ("Drain", pb.DrainRequest(deadline=HALF), "deadline"),
    ("Drain", pb.DrainRequest(deadline=Duration(seconds=2**62)), "deadline"),
    ("Cancel", pb.CancelRequest(run_id="a b"), "run_id"),
    ("Cancel", pb.CancelRequest(reason="é" * 513), "reason"),
    ("Pause", pb.PauseRequest(run_id="x" * 129), "run_id"),
    ("Pause", pb.PauseRequest(wait=TOO_LONG), "wait"),
    ("Resume", pb.ResumeRequest(run_id="ü"), "run_id"),
    ("SendMessage", pb.SendMessageRequest(), "text"),
    ("SendMessage", pb.SendMessageRequest(text="x" * (1024 * 1024 + 1)), "text"),
    ("SendMessage", pb.SendMessageRequest(text="x", run_id="/"), "run_id"),
    ("SendMessage", pb.SendMessageRequest(text="x", context_id="x" * 129), "context_id"),
    ("SendMessage", pb.SendMessageRequest(text="x", depth=-1), "depth"),
    ("SendMessage", pb.SendMessageRequest(text="x", wait=TOO_LONG), "wait"),
    ("GetRun", pb.GetRunRequest(), "run_id"),
    ("ListRuns", pb.ListRunsRequest(page_size=501), "page_size"),
    ("ListRuns", pb.ListRunsRequest(page_size=-1), "page_size"),
    ("ListRuns", pb.ListRunsRequest(state=77), "state"),  # type: ignore[arg-type]
    ("ListRuns", pb.ListRunsRequest(context_id="x" * 129), "context_id"),
    ("ListRuns", pb.ListRunsRequest(page_token="?"), "page_token"),
    ("ListRuns", pb.ListRunsRequest(page_token=base64.b64encode(b"nothing of ours").decode()), "page_token"),
    ("ListRuns", pb.ListRunsRequest(page_token=base64.b64encode(b"\xff/x").decode()), "page_token"),
]


@pytest.mark.parametrize(("method", "request_", "field"), BAD)
async def test_a_malformed_request_names_its_field_and_changes_nothing(stub, agent, method, request_, field):
    with pytest.raises(InvalidError) as raised:
        await getattr(stub, method)(request_)
    assert list(raised.value.violations) == [field]
    assert not agent.asked
    assert not agent.texts


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("WatchRun", pb.WatchRunRequest(), "run_id"),
        ("WatchEvents", pb.WatchEventsRequest(after_sequence=-1), "after_sequence"),
        ("WatchEvents", pb.WatchEventsRequest(name_prefixes=["x"] * 17), "name_prefixes"),
        ("WatchEvents", pb.WatchEventsRequest(name_prefixes=["run.", ""]), "name_prefixes[1]"),
    ],
)
async def test_a_malformed_watch_names_its_field(stub, method, request_, field):
    with pytest.raises(InvalidError) as raised:
        await getattr(stub, method)(request_).read()
    assert list(raised.value.violations) == [field]


async def test_the_bounds_themselves_are_allowed(stub, agent):
    await agent.put(WORKING)
    await stub.Cancel(pb.CancelRequest(run_id="r", reason="é" * 512))
    await stub.ListRuns(pb.ListRunsRequest(page_size=500))
    sent = await stub.SendMessage(
        pb.SendMessageRequest(text="x" * 1024 * 1024, run_id="x" * 128, context_id="x" * 128)
    )
    assert sent.run.id == "x" * 128


# --- What the manifest does not name ---


async def test_what_the_manifest_leaves_out_is_unimplemented(stub, agent):
    agent.told = replace(agent.told, surfaces=Surfaces(verbs=("Drain",), messages=False, events=False))
    for method, request in [
        ("LameDuck", pb.LameDuckRequest()),
        ("Cancel", pb.CancelRequest()),
        ("Pause", pb.PauseRequest()),
        ("Resume", pb.ResumeRequest()),
        ("SendMessage", pb.SendMessageRequest(text="x")),
    ]:
        with pytest.raises(UnimplementedError):
            await getattr(stub, method)(request)
    with pytest.raises(UnimplementedError):
        await stub.WatchEvents(pb.WatchEventsRequest()).read()
    await stub.Drain(pb.DrainRequest())
    assert agent.asked == [("drain", None)]


# --- Verbs ---


async def test_a_drain_is_told_its_deadline(stub, agent):
    await agent.put(WORKING)
    answer = await stub.Drain(pb.DrainRequest(deadline=Duration(nanos=500_000_000)))
    assert answer.run_count == 1
    assert agent.asked == [("drain", timedelta(milliseconds=500))]
    status = await stub.GetStatus(pb.GetStatusRequest())
    assert status.draining
    assert [run.id for run in status.runs] == ["r"]
    with pytest.raises(PreconditionError):
        await stub.LameDuck(pb.LameDuckRequest(enabled=True))


async def test_a_lame_duck_is_one_until_it_is_taken_back(stub, agent):
    assert not (await stub.LameDuck(pb.LameDuckRequest(enabled=True))).ready
    with pytest.raises(UnavailableError):
        await stub.SendMessage(pb.SendMessageRequest(text="x"))
    assert (await stub.LameDuck(pb.LameDuckRequest(enabled=False))).ready
    assert (await stub.GetStatus(pb.GetStatusRequest())).ready


async def test_cancel_answers_how_the_runs_ended(stub, agent):
    await agent.put(WORKING)
    await agent.put(replace(WORKING, id="done"))
    await agent.end("done", Status.COMPLETED, "the answer")
    answer = await stub.Cancel(pb.CancelRequest(reason="enough"))
    assert {run.id: run.status for run in answer.runs} == {"r": "cancelled", "done": "completed"}
    assert agent.asked == [("cancel", "", "enough")]
    with pytest.raises(NotFoundError):
        await stub.Cancel(pb.CancelRequest(run_id="other"))


async def test_a_pause_waits_as_long_as_the_call_lets_it(stub, agent):
    await agent.put(WORKING)
    paused = await stub.Pause(pb.PauseRequest(run_id="r", wait=seconds(2)), timeout=60)
    assert paused.runs[0].state == run_pb2.RUN_STATE_PAUSED
    await stub.Pause(pb.PauseRequest(run_id="r"), timeout=10)
    await stub.Pause(pb.PauseRequest(run_id="r", wait=seconds(60)), timeout=10)
    await stub.Pause(pb.PauseRequest(run_id="r"), timeout=3600)
    first, *bounded, last = [wait for _, _, wait in agent.asked]
    assert first == timedelta(seconds=2)
    assert all(timedelta(0) < wait < timedelta(seconds=10) for wait in bounded)
    assert last == timedelta(minutes=5)
    assert (await stub.Resume(pb.ResumeRequest())).runs[0].state == run_pb2.RUN_STATE_WORKING


# --- Messages ---


async def test_a_message_answers_at_once_unless_it_waits(stub, agent):
    answer = await stub.SendMessage(pb.SendMessageRequest(text="x", run_id="m"))
    assert answer.run.state == run_pb2.RUN_STATE_WORKING
    waiting = asyncio.ensure_future(
        stub.SendMessage(pb.SendMessageRequest(text="x", run_id="m", wait=seconds(60)), timeout=60)
    )
    await agent.watched.wait()
    await agent.end("m", Status.COMPLETED, "the answer")
    answer = await waiting
    assert (answer.run.status, answer.run.result) == ("completed", "the answer")
    with pytest.raises(ExistsError):
        await stub.SendMessage(pb.SendMessageRequest(text="other", run_id="m"))


async def test_a_wait_ends_before_the_caller_gives_up(stub, agent):
    request = pb.SendMessageRequest(text="x", run_id="m", wait=seconds(60))
    answer = await stub.SendMessage(request, timeout=0.5)  # DeadlineError if it were not
    assert answer.run.state == run_pb2.RUN_STATE_WORKING


async def test_a_caller_that_leaves_takes_nothing_back(stub, agent):
    call = stub.SendMessage(pb.SendMessageRequest(text="x", run_id="m", wait=seconds(60)), timeout=60)
    reading = asyncio.ensure_future(call)
    await agent.watched.wait()
    reading.cancel()
    with pytest.raises((asyncio.CancelledError, DeadlineError)):
        await reading
    assert (await stub.GetRun(pb.GetRunRequest(run_id="m"))).run.state == run_pb2.RUN_STATE_WORKING


# --- Runs ---


async def test_a_run_is_told_with_its_result_but_lists_are_not(stub, agent):
    await agent.put(WORKING)
    ended = await agent.end("r", Status.TOO_LARGE, "a part of it")
    answer = await stub.GetRun(pb.GetRunRequest(run_id="r"))
    assert wire.run_from_pb(answer.run) == ended
    (listed,) = (await stub.ListRuns(pb.ListRunsRequest())).runs
    assert (listed.id, listed.result) == ("r", "")
    with pytest.raises(NotFoundError):
        await stub.GetRun(pb.GetRunRequest(run_id="other"))


async def pages(stub, size, between=None, **matching):
    """The ids of each page; `between` is awaited after the first."""
    found, token = [], ""
    while True:
        request = pb.ListRunsRequest(page_size=size, page_token=token, **matching)
        answer = await stub.ListRuns(request)
        found.append([run.id for run in answer.runs])
        token = answer.next_page_token
        if not token:
            return found
        if between is not None:
            await between()
            between = None


async def test_pages_have_every_run_once_newest_first(stub, agent):
    for n in range(7):
        await agent.put(replace(WORKING, id=f"r{n}"))
    assert await pages(stub, 3) == [["r6", "r5", "r4"], ["r3", "r2", "r1"], ["r0"]]
    assert await pages(stub, 7) == [["r6", "r5", "r4", "r3", "r2", "r1", "r0"]]


async def test_new_runs_shift_no_page(stub, agent):
    for n in range(4):
        await agent.put(replace(WORKING, id=f"r{n}"))

    async def more():
        await agent.put(replace(WORKING, id="new"))

    assert await pages(stub, 2, more) == [["r3", "r2"], ["r1", "r0"]]


async def test_no_run_is_left_out_when_the_place_is_gone(stub, agent):
    for n in range(4):
        await agent.put(replace(WORKING, id=f"r{n}"))

    async def less():
        agent.forget("r2")

    assert await pages(stub, 2, less) == [["r3", "r2"], ["r1", "r0"]]


async def test_two_runs_of_one_id_do_not_make_pages_go_round(stub, agent):
    agent.runs = lambda: [replace(WORKING, id=name) for name in ("x", "y", "x", "z")]
    assert await pages(stub, 1) == [["x"], ["y"], ["x"], ["z"]]


async def test_a_list_can_be_of_one_state_and_one_conversation(stub, agent):
    for n in range(6):
        await agent.put(Run(f"r{n}", Trigger.MESSAGE, context_id="even" if n % 2 == 0 else "odd"))
    await agent.end("r4", Status.COMPLETED)
    assert await pages(stub, 1, context_id="even", state=run_pb2.RUN_STATE_WORKING) == [["r2"], ["r0"]]
    assert await pages(stub, 9, state=run_pb2.RUN_STATE_COMPLETED) == [["r4"]]
    assert await pages(stub, 9, context_id="none") == [[]]


async def test_a_watch_of_a_run_ends_with_it(stub, agent):
    await agent.put(WORKING)
    watching = stub.WatchRun(pb.WatchRunRequest(run_id="r"))
    assert (await watching.read()).run.state == run_pb2.RUN_STATE_WORKING
    await agent.put(replace(WORKING, state=State.PAUSED))
    assert (await watching.read()).run.state == run_pb2.RUN_STATE_PAUSED
    await agent.end("r", Status.COMPLETED, "the answer")
    assert [each.run.result async for each in watching] == ["the answer"]
    with pytest.raises(NotFoundError):
        await stub.WatchRun(pb.WatchRunRequest(run_id="other")).read()


# --- Events ---


async def test_events_are_told_from_the_ring_and_as_they_happen(stub, agent):
    for name in ("agent.started", "run.started", "model.called"):
        agent.events.tell(name, "r", tokens=3)
    watching = stub.WatchEvents(pb.WatchEventsRequest(after_sequence=1, name_prefixes=["run.", "agent."]))
    first = await watching.read()
    assert (first.event.name, first.event.sequence, first.dropped_count) == ("run.started", 2, 0)
    assert dict(first.event.fields) == {"tokens": "3"}
    agent.events.tell("agent.ready")
    assert (await watching.read()).event.name == "agent.ready"
    agent.events.close()
    assert [each async for each in watching] == []


async def test_who_comes_from_another_process_is_told_so(stub, agent):
    agent.events.tell("agent.started")
    with pytest.raises(PreconditionError, match="ask from 0"):
        await stub.WatchEvents(pb.WatchEventsRequest(after_sequence=2)).read()
