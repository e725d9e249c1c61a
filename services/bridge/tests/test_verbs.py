"""The contract through the bridge, by a real process that speaks agentd's: every verb by its effect."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from datetime import timedelta

import aiohttp
import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client import REGISTRY

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from libs.errors import (
    DeadlineError,
    ExhaustedError,
    ExistsError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from services.bridge.foreign import Foreign
from services.bridge.metrics import OURS

from .lab import ROLE, kill, lab, until

WORKING, PAUSED = run_pb2.RUN_STATE_WORKING, run_pb2.RUN_STATE_PAUSED
COMPLETED, CANCELED, FAILED, REFUSED = (
    run_pb2.RUN_STATE_COMPLETED,
    run_pb2.RUN_STATE_CANCELED,
    run_pb2.RUN_STATE_FAILED,
    run_pb2.RUN_STATE_REFUSED,
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
        assert manifest.contract_version == "1.1"
        assert manifest.implementation == "agentd"
        assert manifest.mode == "reactive"
        assert manifest.model == "m-1"
        assert manifest.placement.pod_uid == "uid-1"
        assert list(manifest.surfaces.verbs) == ["Drain", "LameDuck", "Cancel", "Pause", "Resume"]
        assert manifest.surfaces.messages
        assert manifest.surfaces.pause_holds_runs
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


async def test_a_run_whose_sender_left_before_the_agent_answered_is_a_run_like_any_other(tmp_path):
    async with lab(tmp_path) as it, it.agentd() as agentd:
        await it.stub.ListRuns(pb.ListRunsRequest())  # so that it is connected
        agentd.send_signal(signal.SIGSTOP)
        sending = [it.stub.SendMessage(message(run_id=f"r-{n}"), timeout=1) for n in range(4)]
        left = await asyncio.gather(*sending, return_exceptions=True)
        assert {type(each) for each in left} == {DeadlineError}
        assert len(it.bridge.agent.runs()) == 4
        agentd.send_signal(signal.SIGCONT)
        async with asyncio.timeout(20):
            for n in range(4):
                assert (await ended(it.stub, f"r-{n}")).state == COMPLETED
        assert (await it.stub.GetStatus(pb.GetStatusRequest())).free_slots == 4


async def test_a_run_that_the_agent_may_have_begun_unheard_asks_no_model(tmp_path, monkeypatch):
    async def unheard(foreign, text, message_id):
        await send(foreign, text, message_id)
        raise DeadlineError("no answer")

    send = Foreign.send
    async with lab(tmp_path) as it, it.agentd():
        with monkeypatch.context() as patch:
            patch.setattr(Foreign, "send", unheard)
            with pytest.raises(DeadlineError):
                await it.stub.SendMessage(message())
        await until(lambda: is_idle(it))
        assert it.model.asked == []
        assert (await it.stub.SendMessage(message(wait=10))).run.state == COMPLETED
        assert len(it.model.asked) == 1


async def is_idle(it):
    return not (await it.stub.GetStatus(pb.GetStatusRequest())).runs


async def test_a_pause_holds_between_turns_and_says_so_only_then(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        it.model.calls_tool_first = True
        await it.stub.SendMessage(message())
        await it.asked()
        (run,) = (await it.stub.Pause(pb.PauseRequest(wait=lasting(0.2)))).runs
        assert run.state == WORKING  # in a call of the model
        with pytest.raises(UnavailableError, match="paused"):
            await it.stub.SendMessage(message(run_id="r-2"))
        it.model.may_answer.set()
        (run,) = (await it.stub.Pause(pb.PauseRequest(wait=lasting(10)))).runs
        assert run.state == PAUSED
        assert len(it.model.asked) == 1
        assert (await it.stub.GetStatus(pb.GetStatusRequest())).paused
        (run,) = (await it.stub.Resume(pb.ResumeRequest())).runs
        assert run.state == WORKING
        assert (await ended(it.stub)).state == COMPLETED
        assert len(it.model.asked) == 2
        told = [name for name in await names(it) if not name.startswith("tool.")]
        assert told == [
            *("run.started", "model.called", "run.paused", "run.resumed", "model.called", "run.ended")
        ]


async def names(it, run_id="r-1"):
    """Events of the run, up to its end, in their order."""
    found = []
    async for answer in it.stub.WatchEvents(pb.WatchEventsRequest()):
        if answer.event.run_id == run_id:
            found.append(answer.event.name)
            if found[-1] == "run.ended":
                return found


async def test_a_paused_agent_is_not_ready_until_it_is_resumed(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        await it.stub.Pause(pb.PauseRequest())
        status = await it.stub.GetStatus(pb.GetStatusRequest())
        assert (status.ready, status.not_ready_reason) == (False, "paused")
        assert (await plain(it, "/readyz")) == (503, "paused\n")
        await it.stub.Resume(pb.ResumeRequest())
        assert (await plain(it, "/readyz"))[0] == 200


async def test_one_run_is_paused_and_the_others_go_on(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        it.model.calls_tool_first = True
        await it.stub.SendMessage(message())
        await it.asked()
        (run,) = (await it.stub.Pause(pb.PauseRequest(run_id="r-1", wait=lasting(0)))).runs
        assert run.state == WORKING
        it.model.may_answer.set()
        assert (await it.stub.SendMessage(message(run_id="r-2", wait=10))).run.state == COMPLETED
        await until(lambda: is_in(it, PAUSED))
        assert not (await it.stub.GetStatus(pb.GetStatusRequest())).paused
        await it.stub.Resume(pb.ResumeRequest(run_id="r-1"))
        assert (await ended(it.stub)).state == COMPLETED


async def is_in(it, state, run_id="r-1"):
    return (await get(it.stub, run_id)).state == state


async def test_a_run_that_asks_no_more_ends_although_it_is_paused(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        await it.stub.SendMessage(message())
        await it.asked()
        pausing = asyncio.create_task(it.stub.Pause(pb.PauseRequest(wait=lasting(10))))
        await until(lambda: is_paused(it))
        it.model.may_answer.set()
        (run,) = (await pausing).runs
        assert run.state == COMPLETED


async def test_a_cancel_ends_a_call_of_the_model_at_once(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.may_answer.clear()
        await it.stub.SendMessage(message())
        await it.stub.SendMessage(message(run_id="r-2"))
        await it.asked(2)
        (run,) = (await it.stub.Cancel(pb.CancelRequest(run_id="r-1", reason="enough"), timeout=10)).runs
        assert (run.state, run.status, run.error) == (CANCELED, "cancelled", "enough")
        it.model.may_answer.set()
        assert (await ended(it.stub, "r-2")).state == COMPLETED
        assert len(it.model.asked) == 2
        (run,) = (await it.stub.Cancel(pb.CancelRequest(run_id="r-2"))).runs
        assert run.state == COMPLETED  # as it was


async def test_a_cancel_reaches_what_is_held(tmp_path):
    async with lab(tmp_path) as it, it.agentd():
        it.model.calls_tool_first = True
        it.model.may_answer.clear()
        await it.stub.SendMessage(message())
        await it.asked()
        await it.stub.Pause(pb.PauseRequest(wait=lasting(0)))
        it.model.may_answer.set()
        await until(lambda: is_in(it, PAUSED))
        (run,) = (await it.stub.Cancel(pb.CancelRequest(reason="enough"), timeout=10)).runs
        assert (run.state, run.error) == (CANCELED, "enough")
        assert len(it.model.asked) == 1


@pytest.mark.parametrize(
    ("reply", "state", "status", "result"),
    [
        ({"message": {"content": None, "refusal": "I will not"}}, REFUSED, "refused", "I will not"),
        ({"message": {"content": "No."}, "finish_reason": "content_filter"}, REFUSED, "refused", "No."),
        ({"message": {"content": "half"}, "finish_reason": "length"}, FAILED, "too_large", "half"),
        ({"message": {"content": "ä" * 5000}}, COMPLETED, "completed", "ä" * 5000),
        (None, FAILED, "exhausted_tokens", ""),
    ],
)
async def test_a_run_ends_as_its_model_says(tmp_path, reply, state, status, result):
    async with lab(tmp_path) as it, it.agentd():
        it.model.choice = reply
        if reply is None:
            it.model.status, it.model.code = 429, "budget_exceeded"
        run = (await it.stub.SendMessage(message(wait=10))).run
        assert (run.state, run.status, run.result) == (state, status, result)
        assert run.usage.input_tokens == (9 if reply else 0)
        assert (await it.stub.GetStatus(pb.GetStatusRequest())).usage == run.usage


async def test_a_run_of_more_tokens_than_it_may_have_is_over(tmp_path):
    async with lab(tmp_path, max_tokens=10) as it, it.agentd():
        run = (await it.stub.SendMessage(message(wait=10))).run
        assert (run.state, run.status) == (FAILED, "exhausted_tokens")
        assert run.result == "an answer"


async def is_paused(it):
    return (await it.stub.GetStatus(pb.GetStatusRequest())).paused


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


async def test_a_second_drain_shortens_the_first_although_the_agent_keeps_to_that(tmp_path):
    async with lab(tmp_path, drain_timeout=timedelta(minutes=2)) as it:
        it.model.may_answer.clear()
        loop = ("--mode", "loop", "--interval", "1h", "--drain-timeout", "2m")
        async with it.agentd(*loop) as agentd:
            await it.asked()
            await it.stub.Drain(pb.DrainRequest())
            await until(lambda: is_told_to_drain(it))
            answer = await it.stub.Drain(pb.DrainRequest(deadline=lasting(0.5)))
            assert answer.remaining.ToTimedelta() <= timedelta(seconds=0.5)
            async with asyncio.timeout(30):
                assert await agentd.wait() == 0
                await it.bridge.agent.ended.wait()


async def is_told_to_drain(it):
    return it.bridge.agent.was_drained


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
    counted = {
        "agent_tokens_total": {"type": "in"},
        "agent_loop_steps_total": {},
        "agent_intel_calls_total": {},
    }

    def values():
        """What this process has counted; other tests may have before."""
        return [REGISTRY.get_sample_value(name, labels) or 0 for name, labels in counted.items()]

    async with lab(tmp_path) as it, it.agentd():
        before = values()
        await it.stub.SendMessage(message(wait=10))
        assert [now - then for now, then in zip(values(), before, strict=True)] == [9, 1, 1]
        _, text = await plain(it, "/metrics")
    lines = text.splitlines()
    assert "agent_up 1.0" in lines
    assert "agent_ready 1.0" in lines
    assert "agent_reactions_total" not in text  # no word of the contract
    told = families(text)
    assert "agent_runs_total" in told
    # Of what is not ours, this process may have counted some in tests of other services.
    assert {name: told.count(name) for name in OURS if told.count(name) > 1} == {}
    assert not [name for name in told if "subagent" in name]


async def test_what_the_agent_does_by_itself_is_held_too(tmp_path):
    async with lab(tmp_path) as it:
        it.model.may_answer.clear()
        it.model.calls_tool_first = True
        async with it.agentd("--mode", "once") as agentd:
            await it.asked()
            (run,) = (await it.stub.GetStatus(pb.GetStatusRequest())).runs
            assert (run.trigger, run.state) == (run_pb2.TRIGGER_ONCE, WORKING)
            (run,) = (await it.stub.Pause(pb.PauseRequest(wait=lasting(0)))).runs
            assert run.state == WORKING
            it.model.may_answer.set()
            (run,) = (await it.stub.Pause(pb.PauseRequest(wait=lasting(10)))).runs
            assert run.state == PAUSED
            (run,) = (await it.stub.Cancel(pb.CancelRequest())).runs
            assert run.state == PAUSED  # its process would end with a code that says: try again
            assert (await it.stub.Drain(pb.DrainRequest())).run_count == 1
            assert await agentd.wait() == 0

        async def is_away():
            return (await plain(it, "/readyz"))[0] == 503

        await until(is_away)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{it.bridge.forward_port}/mcp/none") as response,
        ):
            assert response.status == 404


async def test_a_cancel_ends_a_loops_run_and_not_the_loop(tmp_path):
    async with lab(tmp_path) as it:
        it.model.may_answer.clear()
        async with it.agentd("--mode", "loop", "--interval", "1h"):
            await it.asked()
            (run,) = (await it.stub.Cancel(pb.CancelRequest(reason="enough"))).runs
            assert (run.trigger, run.state) == (run_pb2.TRIGGER_LOOP, CANCELED)
            it.model.may_answer.set()
            assert (await it.stub.SendMessage(message(wait=10))).run.state == COMPLETED


async def test_an_agent_that_somebody_else_drains_is_told_to_drain(tmp_path):
    async with lab(tmp_path) as it:
        it.model.may_answer.clear()
        async with it.agentd("--mode", "loop", "--interval", "1h") as agentd:
            await it.asked()
            await it.stub.Pause(pb.PauseRequest(wait=lasting(0)))
            agentd.terminate()

            async def drains():
                return (await it.stub.GetStatus(pb.GetStatusRequest())).draining

            await until(drains)
            status = await it.stub.GetStatus(pb.GetStatusRequest())
            assert (status.ready, status.paused) == (False, False)
            with pytest.raises(UnavailableError, match="draining"):
                await it.stub.SendMessage(message())
            with pytest.raises(PreconditionError):
                await it.stub.Pause(pb.PauseRequest())
            it.model.may_answer.set()
            async with asyncio.timeout(20):
                assert await agentd.wait() == 0


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
