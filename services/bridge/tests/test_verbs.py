"""The contract through the bridge, by a real process that speaks agentd's: every verb by its effect."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import timedelta

import aiohttp
import pytest
from google.protobuf.duration_pb2 import Duration

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from libs.errors import (
    ExhaustedError,
    ExistsError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)
from services.bridge.metrics import OURS

from .lab import ROLE, kill, lab, until

WORKING, PAUSED = run_pb2.RUN_STATE_WORKING, run_pb2.RUN_STATE_PAUSED
COMPLETED, CANCELED, FAILED = (
    run_pb2.RUN_STATE_COMPLETED,
    run_pb2.RUN_STATE_CANCELED,
    run_pb2.RUN_STATE_FAILED,
)


def lasting(seconds: float) -> Duration:
    made = Duration()
    made.FromTimedelta(timedelta(seconds=seconds))
    return made


def message(text="a question", run_id="r-1", wait=0.0, **fields):
    return pb.SendMessageRequest(text=text, run_id=run_id, wait=lasting(wait), **fields)


async def get(stub, run_id="r-1"):
    return (await stub.GetRun(pb.GetRunRequest(run_id=run_id))).run


async def ended(stub, run_id="r-1"):
    async for answer in stub.WatchRun(pb.WatchRunRequest(run_id=run_id)):
        last = answer.run
    return last


async def plain(it, path):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{it.bridge.metrics_port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_what_the_agent_is(tmp_path):
    async with lab(tmp_path, queue="", subscribe=json.dumps(["notes://a"])) as it:
        with pytest.raises(UnavailableError, match="not begun"):
            await it.stub.GetManifest(pb.GetManifestRequest())
        assert (await plain(it, "/livez"))[0] == 200
        assert (await plain(it, "/readyz"))[0] == 503
        async with it.agentd():
            manifest = (await it.stub.GetManifest(pb.GetManifestRequest())).manifest
            assert (await plain(it, "/readyz"))[0] == 200
        assert manifest.contract_version == "1.0"
        assert manifest.implementation == "agentd"
        assert manifest.mode == "reactive"
        assert manifest.model == "m-1"
        assert manifest.placement.pod_uid == "uid-1"
        assert list(manifest.surfaces.verbs) == ["Drain", "LameDuck", "Cancel", "Pause", "Resume"]
        assert manifest.surfaces.messages
        assert not manifest.surfaces.pause_holds_runs  # what it begins by itself goes on
        assert manifest.limits.slots == 4
        assert manifest.limits.max_steps == 50


async def test_a_message_is_a_run_with_the_agents_answer(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        run = (await it.stub.SendMessage(message(wait=10))).run
        assert (run.state, run.status, run.result) == (COMPLETED, "completed", "an answer")
        assert run.trigger == run_pb2.TRIGGER_MESSAGE
        assert run.context_id
        (again,) = (await it.stub.ListRuns(pb.ListRunsRequest())).runs
        assert again.id == "r-1"
        assert (await it.stub.SendMessage(message())).run.state == COMPLETED  # the same message, the same run
        with pytest.raises(ExistsError):
            await it.stub.SendMessage(message("another"))
        assert len(it.model.asked) == 1
        assert it.model.callers == [it.mesh.principal(ROLE).id]
        assert "Authorization" not in it.model.headers[0]
        assert it.model.headers[0]["traceparent"]
        asked = it.model.asked[0]["messages"][-1]["content"]
        assert asked.startswith("Summarize.\n")
        assert "\na question\n" in asked


async def test_a_run_can_be_watched_to_its_end(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        await it.stub.SendMessage(message())
        await it.asked()
        watch = it.stub.WatchRun(pb.WatchRunRequest(run_id="r-1"))
        assert (await watch.read()).run.state == WORKING
        it.model.may_answer.set()
        assert (await watch.read()).run.state == COMPLETED
        with pytest.raises(NotFoundError):
            await get(it.stub, "r-2")


async def test_it_begins_no_more_than_it_has_slots_for(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        for n in range(4):
            await it.stub.SendMessage(message(run_id=f"r-{n}"))
        with pytest.raises(ExhaustedError, match="slots"):
            await it.stub.SendMessage(message(run_id="r-4"))
        with pytest.raises(NotFoundError):
            await get(it.stub, "r-4")
        it.model.may_answer.set()
        for n in range(4):
            assert (await ended(it.stub, f"r-{n}")).state == COMPLETED
        with pytest.raises(ExhaustedError, match="depth"):
            await it.stub.SendMessage(message(run_id="r-5", depth=5))


async def test_a_pause_holds_between_turns_and_says_so_only_then(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        it.model.calls_tool_first = True
        await it.stub.SendMessage(message())
        await it.asked()
        # The model's call is under way: the agent says `paused`, and is not.
        (run,) = (await it.stub.Pause(pb.PauseRequest(wait=lasting(0.5)))).runs
        assert run.state == WORKING
        with pytest.raises(UnavailableError, match="paused"):
            await it.stub.SendMessage(message(run_id="r-2"))
        it.model.may_answer.set()
        (run,) = (await it.stub.Pause(pb.PauseRequest(wait=lasting(10)))).runs
        assert run.state == PAUSED
        assert len(it.model.asked) == 1
        assert (await it.stub.GetStatus(pb.GetStatusRequest())).paused
        await it.stub.Resume(pb.ResumeRequest())
        assert (await ended(it.stub)).state == COMPLETED
        assert len(it.model.asked) == 2


async def test_a_run_of_one_turn_is_not_held_by_a_pause_and_ends_as_it_ends(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        await it.stub.SendMessage(message())
        await it.asked()
        pausing = asyncio.create_task(it.stub.Pause(pb.PauseRequest(wait=lasting(10))))
        await until(lambda: is_paused(it))
        it.model.may_answer.set()
        (run,) = (await pausing).runs
        assert run.state == COMPLETED
        with pytest.raises(UnimplementedError):
            await it.stub.Pause(pb.PauseRequest(run_id="r-1"))


async def test_a_cancel_answers_what_became_of_the_run(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        it.model.calls_tool_first = True
        await it.stub.SendMessage(message("long", "r-1"))
        await it.asked()
        cancelling = asyncio.create_task(it.stub.Cancel(pb.CancelRequest(run_id="r-1", reason="enough")))
        await until(lambda: is_asked_to_end(it))
        assert (await get(it.stub)).state == WORKING  # agentd says CANCELED by now
        it.model.may_answer.set()
        (run,) = (await cancelling).runs
        assert (run.state, run.status, run.error) == (CANCELED, "cancelled", "enough")
        assert len(it.model.asked) == 1


async def test_a_run_that_completes_all_the_same_is_not_called_cancelled(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        await it.stub.SendMessage(message())
        await it.asked()
        cancelling = asyncio.create_task(it.stub.Cancel(pb.CancelRequest(reason="enough")))
        await until(lambda: is_asked_to_end(it))
        it.model.may_answer.set()
        (run,) = (await cancelling).runs
        assert run.state == COMPLETED


async def is_paused(it):
    return (await it.stub.GetStatus(pb.GetStatusRequest())).paused


async def is_asked_to_end(it):
    return it.bridge.agent.run("r-1").activity == "ending"


async def test_a_lame_duck_is_not_ready_and_begins_nothing_and_can_be_taken_back(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        answer = await it.stub.LameDuck(pb.LameDuckRequest(enabled=True))
        assert not answer.ready
        assert (await plain(it, "/readyz")) == (503, "a lame duck\n")
        with pytest.raises(UnavailableError):
            await it.stub.SendMessage(message())
        assert (await it.stub.LameDuck(pb.LameDuckRequest(enabled=False))).ready
        assert (await it.stub.SendMessage(message(wait=10))).run.state == COMPLETED


async def test_a_drain_lets_the_run_finish_and_then_the_agent_ends_with_0(tmp_path):
    async with lab(tmp_path) as it, it.agentd() as agentd:
        it.model.may_answer.clear()
        it.model.calls_tool_first = True
        await it.stub.SendMessage(message())
        await it.asked()
        answer = await it.stub.Drain(pb.DrainRequest())
        assert answer.run_count == 1
        assert 0 < answer.remaining.ToTimedelta().total_seconds() <= 10
        with pytest.raises(PreconditionError):
            await it.stub.LameDuck(pb.LameDuckRequest())
        it.model.may_answer.set()
        assert (await ended(it.stub)).state == COMPLETED  # in two turns
        async with asyncio.timeout(15):
            assert await agentd.wait() == 0
            await it.bridge.agent.ended.wait()


async def test_a_drain_gives_up_at_its_deadline(tmp_path):
    async with lab(tmp_path) as it, it.agentd() as agentd:
        it.model.may_answer.clear()
        await it.stub.SendMessage(message())
        await it.asked()
        await it.stub.Drain(pb.DrainRequest(deadline=lasting(0.2)))
        run = await ended(it.stub)
        assert (run.state, run.status) == (CANCELED, "drained")
        async with asyncio.timeout(15):
            assert await agentd.wait() == 0


async def test_an_agent_that_is_killed_takes_its_runs_along_and_is_met_again(tmp_path):
    async with lab(tmp_path) as it:
        async with it.agentd() as agentd:
            it.model.may_answer.clear()
            await it.stub.SendMessage(message())
            await it.asked()
            kill(agentd)
            run = await ended(it.stub)
            assert (run.state, run.status) == (FAILED, "crashed")
            assert (await plain(it, "/readyz"))[0] == 503
        it.model.may_answer.set()
        async with it.agentd(wait=False):
            await it.here(life=2)
            assert (await it.stub.SendMessage(message(run_id="r-2", wait=10))).run.state == COMPLETED


async def test_events_are_the_contracts(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        await it.stub.SendMessage(message(wait=10))
        seen = []
        async with asyncio.timeout(10):
            async for answer in it.stub.WatchEvents(pb.WatchEventsRequest()):
                seen.append((answer.event.name, answer.event.run_id))
                if {("run.ended", "r-1"), ("agent.ready", "")} <= set(seen):
                    break
        assert ("run.started", "r-1") in seen
        assert not {name for name, _ in seen if name.startswith(("proc", "subagent", "intel"))}


def families(text):
    return [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE agent_")]


async def test_metrics_are_the_bridges_and_what_only_agentd_knows(tmp_path):
    async with lab(tmp_path) as it:
        # What other tests of this process have counted, and a bridge alone never does.
        foreign = set(families((await plain(it, "/metrics"))[1])) - OURS
        async with it.agentd():
            await it.stub.SendMessage(message(wait=10))
            _, text = await plain(it, "/metrics")
        lines = text.splitlines()
        assert "agent_up 1.0" in lines
        assert "agent_ready 1.0" in lines
        assert 'agent_tokens_total{type="in"} 9.0' in lines  # agentd's
        names = [name for name in families(text) if name not in foreign]
        assert "agent_loop_steps_total" not in names  # it says 0
        assert len(names) == len(set(names))
        assert not [name for name in names if "subagent" in name]


async def test_what_the_agent_does_by_itself_is_shown_and_not_claimed_to_be_held(tmp_path):
    async with lab(tmp_path) as it:
        it.model.may_answer.clear()
        async with it.agentd("--mode", "once") as agentd:
            await it.asked()
            (run,) = (await it.stub.GetStatus(pb.GetStatusRequest())).runs
            assert (run.trigger, run.state) == (run_pb2.TRIGGER_ONCE, WORKING)
            (paused,) = (await it.stub.Pause(pb.PauseRequest())).runs
            assert paused.state == WORKING
            (cancelled,) = (await it.stub.Cancel(pb.CancelRequest())).runs
            assert cancelled.state == WORKING
            assert (await it.stub.Drain(pb.DrainRequest())).run_count == 1
            it.model.may_answer.set()
            assert await agentd.wait() == 0

        async def is_away():
            return (await plain(it, "/readyz"))[0] == 503

        await until(is_away)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{it.bridge.forward_port}/mcp/none") as response,
        ):
            assert response.status == 404


async def test_a_renewed_certificate_is_taken_up_by_the_agent(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        before = served_certificate(it)
        it.bridge.loopback.renew()

        async def is_served():
            return await asyncio.to_thread(served_certificate, it) != before

        await until(is_served)
        assert (await it.stub.SendMessage(message(wait=10))).run.state == COMPLETED


def served_certificate(it):
    with (
        socket.create_connection(("127.0.0.1", it.settings.agent_port)) as plain_socket,
        it.bridge.loopback.context.wrap_socket(plain_socket, server_hostname="localhost") as secured,
    ):
        return secured.getpeercert(binary_form=True)


async def test_in_the_pod_of_a_job_it_stays_until_it_is_told_to_end(tmp_path):
    async with lab(tmp_path) as it, it.agentd("--mode", "once", wait=False) as agentd:
        async with asyncio.timeout(20):
            assert await agentd.wait() == 0

        async def is_away():
            return not it.bridge.presence.is_here

        await until(is_away)
        assert not it.bridge.agent.ended.is_set()
