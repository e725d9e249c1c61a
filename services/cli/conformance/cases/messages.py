"""RUN: messages begin runs; runs are found, listed and watched."""

from __future__ import annotations

from collections.abc import AsyncIterable
from datetime import timedelta
from typing import TYPE_CHECKING

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from libs.errors import ExhaustedError, ExistsError, InvalidError, MeshError, NotFoundError

from ..case import Group, SkippedError, becomes, demand
from ..model import Fail, Say, Use
from ..sending import has_ended, holding, name_of, request, send
from ..subject import Subject, is_refused
from ..world import World

if TYPE_CHECKING:
    from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

GROUP = Group("messages", lambda world: World.standing(world, AGENT_SLOTS="3", AGENT_MAX_DEPTH="4"))


async def _stub(agent: Subject) -> AgentServiceAsyncStub:
    agent.needs_messages()
    return await agent.steer()


@GROUP.case("RUN-01", "SendMessage with a wait answers the ended run, with its result, trigger, use and time")
async def _answers(agent: Subject) -> None:
    talk = agent.needs_model().script(
        Use(input_tokens=31, output_tokens=2), Say("the answer", input_tokens=40)
    )
    run = await send(agent, talk)
    demand(
        run.state == run_pb2.RUN_STATE_COMPLETED, f"it is {name_of(run.state)} ({run.status}: {run.error})"
    )
    demand(run.status == "completed", f"its status is {run.status!r}, not 'completed'")
    demand(run.result == "the answer", f"its result is {run.result!r}, the model said 'the answer'")
    demand(run.trigger == run_pb2.TRIGGER_MESSAGE, "its trigger is not MESSAGE")
    demand(run.id and run.context_id, "it has no id, or no conversation")
    demand(run.HasField("took"), "it has ended, and does not say how long it took")
    use = (run.usage.input_tokens, run.usage.output_tokens, run.usage.steps)
    demand(use == (71, 7, 2), f"its use is {use} (in, out, steps), the model counted (71, 7, 2)")


@GROUP.case("RUN-02", "SendMessage without a wait answers at once; the text reaches the model")
async def _answers_at_once(agent: Subject) -> None:
    async with holding(agent) as held:
        demand(not has_ended(await agent.run(held.run_id)), "the run has ended while the model is held")
        demand(any(held.talk.word in text for text in held.talk.texts), "the text does not reach the model")


@GROUP.case("RUN-03", "the same message with the same id is the same run, begun once")
async def _is_idempotent(agent: Subject) -> None:
    stub = await _stub(agent)
    talk = agent.needs_model().script(Say("only once"))
    first = (await stub.SendMessage(request(talk, wait=8, run_id=f"{talk.word}.a"))).run
    second = (await stub.SendMessage(request(talk, wait=8, run_id=f"{talk.word}.a"))).run
    demand(first.id == second.id == f"{talk.word}.a", f"ids are {first.id} and {second.id}")
    demand(len(talk.requests) == 1, f"the model was asked {len(talk.requests)} times")
    demand(second.result == "only once", f"the second answer is {second.result!r}")


@GROUP.case("RUN-04", "another message with a known id is ALREADY_EXISTS, and begins nothing")
async def _tells_apart(agent: Subject) -> None:
    stub, model = await _stub(agent), agent.needs_model()
    talk, other = model.script(Say()), model.script(Say())
    await stub.SendMessage(request(talk, wait=8, run_id=f"{talk.word}.b"))
    again = stub.SendMessage(request(other, run_id=f"{talk.word}.b"))
    await is_refused(again, ExistsError, what="another message with a known id")
    demand(not other.requests, "the other message reached the model")


@GROUP.case("RUN-05", "unknown runs are NOT_FOUND for GetRun and WatchRun")
async def _knows_not(agent: Subject) -> None:
    stub = await agent.steer()
    await is_refused(stub.GetRun(pb.GetRunRequest(run_id="no-such-run")), NotFoundError, what="GetRun")
    await is_refused(
        _first(stub.WatchRun(pb.WatchRunRequest(run_id="no-such-run"))), NotFoundError, what="WatchRun"
    )


@GROUP.case("RUN-06", "bad fields are INVALID_ARGUMENT that names the field, and change nothing")
async def _names_fields(agent: Subject) -> None:
    stub = await _stub(agent)
    too_long = pb.SendMessageRequest(text="x")
    too_long.wait.FromTimedelta(timedelta(minutes=6))
    bad = {
        "text": pb.SendMessageRequest(text=""),
        "run_id": pb.SendMessageRequest(text="x", run_id="not an id"),
        "context_id": pb.SendMessageRequest(text="x", context_id="x" * 129),
        "depth": pb.SendMessageRequest(text="x", depth=-1),
        "wait": too_long,
    }
    for field, message in bad.items():
        await is_refused(
            stub.SendMessage(message), InvalidError, saying=field, what=f"SendMessage with a bad {field}"
        )
    large = pb.SendMessageRequest(text="x" * (1024 * 1024 + 1))
    await is_refused(
        stub.SendMessage(large), InvalidError, saying="text", what="SendMessage with 1 MiB and a byte"
    )
    page = stub.ListRuns(pb.ListRunsRequest(page_size=501))
    await is_refused(page, InvalidError, saying="page_size", what="ListRuns with 501 a page")
    page = stub.ListRuns(pb.ListRunsRequest(page_token="nonsense"))
    await is_refused(page, InvalidError, saying="page_token", what="ListRuns with a foreign page_token")
    reason = stub.Cancel(pb.CancelRequest(reason="x" * 1025))
    await is_refused(reason, InvalidError, saying="reason", what="Cancel with a reason of 1025 bytes")


@GROUP.case("RUN-07", "ListRuns gives every run once over pages, newest first, without results")
async def _lists(agent: Subject) -> None:
    stub, model = await _stub(agent), agent.needs_model()
    talk = model.script(Say("left out"))
    sent = []
    for n in range(5):
        message = request(talk, wait=8, run_id=f"{talk.word}.{n}", context_id=talk.word)
        sent.append((await stub.SendMessage(message)).run.id)
    found: list[run_pb2.Run] = []
    token = ""
    for _ in range(5):
        page = await stub.ListRuns(pb.ListRunsRequest(context_id=talk.word, page_size=2, page_token=token))
        demand(len(page.runs) <= 2, f"a page of 2 has {len(page.runs)}")
        found += page.runs
        if not (token := page.next_page_token):
            break
    demand(
        [run.id for run in found] == sent[::-1],
        f"listed {[run.id[-2:] for run in found]}, sent 5, newest last",
    )
    demand(not any(run.result for run in found), "the list has results")


@GROUP.case("RUN-08", "ListRuns filters by conversation and by state")
async def _filters(agent: Subject) -> None:
    stub, model = await _stub(agent), agent.needs_model()
    talk, refused = model.script(Say()), model.script(Fail(400, "refused by the script"))
    context = talk.word
    done = (await stub.SendMessage(request(talk, wait=8, context_id=context))).run
    other = (await stub.SendMessage(request(refused, wait=8, context_id=context))).run
    asked = pb.ListRunsRequest(context_id=context, state=run_pb2.RUN_STATE_COMPLETED)
    found = [run.id for run in (await stub.ListRuns(asked)).runs]
    demand(found == [done.id], f"COMPLETED ones of the conversation: {found}, it is {[done.id]}")
    demand(other.context_id == context, f"its conversation is {other.context_id!r}, sent was {context!r}")


@GROUP.case("RUN-09", "WatchRun tells the changes and ends with the state that ends the run")
async def _is_watched(agent: Subject) -> None:
    stub = await _stub(agent)
    async with holding(agent, Use(), Say("the end")) as held:
        states: list[run_pb2.Run] = []
        async for message in stub.WatchRun(pb.WatchRunRequest(run_id=held.run_id), timeout=10):
            if not states:
                held.talk.release()
            states.append(message.run)
    demand(not has_ended(states[0]), "the first state told is not what the run was in")
    demand(has_ended(states[-1]), f"the stream ends after {name_of(states[-1].state)}")
    demand(states[-1].result == "the end", f"the last state has the result {states[-1].result!r}")


@GROUP.case("RUN-10", "a refusal of the model ends the run REFUSED")
async def _refuses(agent: Subject) -> None:
    run = await send(agent, agent.needs_model().script(Say(refusal="I will not")))
    demand(run.state == run_pb2.RUN_STATE_REFUSED, f"the model refused, and the run is {name_of(run.state)}")
    demand(run.status == "refused", f"its status is {run.status!r}, not 'refused'")


@GROUP.case("RUN-11", "more messages than slots are RESOURCE_EXHAUSTED; a free slot takes the next")
async def _is_bounded(agent: Subject) -> None:
    stub, model = await _stub(agent), agent.needs_model()
    free = (await agent.status()).free_slots
    if free > 32:
        raise SkippedError(f"it has {free} free slots, more than a test should fill")
    talks = [model.script(Say(), hold=(1,)) for _ in range(free)]
    try:
        for talk in talks:
            await stub.SendMessage(request(talk))
        over = stub.SendMessage(request(model.script(Say())))
        await is_refused(over, ExhaustedError, what=f"a message beyond {free} slots")
    finally:
        for talk in talks:
            talk.release()

    async def taken() -> bool:
        try:
            return bool((await stub.SendMessage(request(model.script(Say()), wait=5))).run.result)
        except MeshError:
            return False

    await becomes(taken, "no message is taken after the slots are free")


@GROUP.case("RUN-12", "a message that came through more agents than max_depth is RESOURCE_EXHAUSTED")
async def _is_not_deep(agent: Subject) -> None:
    stub, most = await _stub(agent), agent.manifest.limits.max_depth
    if not most:
        raise SkippedError("not offered: its manifest says no max_depth")
    talk = agent.needs_model().script(Say())
    over = stub.SendMessage(request(talk, depth=most + 1))
    await is_refused(over, ExhaustedError, what=f"a message of depth {most + 1}, of {most} allowed")
    demand(not talk.requests, "it reached the model")


async def _first(stream: AsyncIterable[object]) -> object:
    async for message in stream:
        return message
    return None
