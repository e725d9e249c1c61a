"""An agent that is not what it was, or not what we can speak to: by a listener that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession, web

from libs.contract.agent import Message
from libs.contract.events import Ring
from libs.contract.run import State
from libs.errors import (
    DeadlineError,
    ExhaustedError,
    InternalError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)
from libs.identity import Principal
from services.bridge.agent import BridgedAgent
from services.bridge.foreign import Foreign
from services.bridge.manifest import Known
from services.bridge.presence import Presence
from services.bridge.turns import Turns
from services.bridge.work import Work

from .lab import until

ME = Principal.parse("spiffe://mesh.test/ns/demo/agent/worker/pod/worker-0/uid-1")


@dataclass
class Agentd:
    """Answers by method; what it has no answer for is -32601."""

    version: str = "1.0"
    pid: int = 1
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def resource(self, uri: str) -> Any:
        match uri.partition("?")[0]:
            case "agent://status":
                return {"run_id": "r", "pid": self.pid, "uptime_ms": 1000}
            case "agent://capabilities":
                return {"contract_version": self.version, "surfaces": {"a2a": {"version": "1.0"}}}
            case "agent://events":
                return {"newest_seq": 0, "events": []}
        return {"ready": True, "nodes": []}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        call = await request.json()
        method, params = call["method"], call["params"]
        self.asked.append(method)
        if method == "resources/read":
            text = json.dumps(self.resource(params["uri"]))
            return self.said(call, {"result": {"contents": [{"text": text}]}})
        answer = self.answers.get(method, {"error": {"code": -32601, "message": method}})
        if callable(answer):
            answer = await answer(params)
        return answer if isinstance(answer, web.Response) else self.said(call, answer)

    def said(self, call: dict[str, Any], body: dict[str, Any]) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], **body})


def task(task_id, state="WORKING"):
    return {"id": task_id, "status": {"state": f"TASK_STATE_{state}"}}


@asynccontextmanager
async def listening(agentd):
    app = web.Application()
    app.router.add_post("/mcp", agentd.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with ClientSession() as session:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
            yield Foreign(session, url, ssl.create_default_context)
    finally:
        await runner.cleanup()


async def nothing_waits():
    return 0


@asynccontextmanager
async def bridged(agentd):
    async with AsyncExitStack() as stack:
        foreign = await stack.enter_async_context(listening(agentd))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        presence, events = Presence(foreign), Ring()
        turns = Turns(events)
        work = Work(foreign, presence, events, turns, tasks, instruction="", slots=4, counts_runs=False)
        known = Known(ME, "", 4, 4, (), 9090)
        agent = BridgedAgent(
            foreign, presence, work, turns, events, known, timedelta(seconds=5), tasks, nothing_waits
        )
        tasks.start_soon(presence.run, agent)

        async def met():
            return presence.is_here

        await until(met)
        yield agent, presence


async def test_an_agent_of_another_major_version_is_not_spoken_to():
    async with bridged(Agentd(version="2.0")) as (agent, _):
        with pytest.raises(PreconditionError, match=r"contract 2\.0"):
            agent.manifest()
        condition = await agent.condition()
        assert not condition.ready
        assert "2.0" in condition.not_ready_reason
        with pytest.raises(UnavailableError):
            await agent.send(Message("hello"))


async def test_a_task_id_that_comes_again_tells_that_the_agent_was_started_again():
    agentd = Agentd()
    agentd.answers["SendMessage"] = {"result": {"task": task("served.1")}}
    agentd.answers["GetTask"] = {"result": task("served.1")}
    async with bridged(agentd) as (agent, presence):
        first = await agent.send(Message("one", run_id="r-1"))
        assert first.state is State.WORKING
        agentd.pid = 2
        await agent.send(Message("two", run_id="r-2"))
        lost = agent.run("r-1")
        assert (lost.state, lost.status) == (State.FAILED, "crashed")

        async def met_again():
            return presence.life == 2 and presence.is_here

        await until(met_again)
        assert agent.run("r-2").state is State.WORKING  # of the new process
        agentd.answers["GetTask"] = {"result": task("served.1", "REJECTED")}
        async with asyncio.timeout(10):
            states = [run.state async for run in agent.watch("r-2")]
        assert states[-1] is State.REFUSED


async def test_a_run_that_waits_for_an_answer_of_somebody_fails():
    agentd = Agentd()
    agentd.answers["SendMessage"] = {"result": {"task": task("served.1")}}
    agentd.answers["GetTask"] = {"result": task("served.1", "INPUT_REQUIRED")}
    agentd.answers["CancelTask"] = {"result": task("served.1", "CANCELED")}
    async with bridged(agentd) as (agent, _):
        await agent.send(Message("one", run_id="r-1"))
        async with asyncio.timeout(10):
            last = [run async for run in agent.watch("r-1")][-1]
        assert last.state is State.FAILED
        assert "waits for an answer" in last.error

        async def told_to_end():
            return "CancelTask" in agentd.asked

        await until(told_to_end)


@dataclass
class Runs:
    """Runs of an agent that is deaf to the first call of CancelTask."""

    state: str
    begun: int = 0
    cancelled: set[str] = field(default_factory=set)
    is_deaf: bool = True

    def answers(self) -> dict[str, Any]:
        return {"SendMessage": self.begin, "GetTask": self.get, "CancelTask": self.cancel}

    async def begin(self, params):
        self.begun += 1
        return {"result": {"task": task(f"served.{self.begun}")}}

    async def get(self, params):
        return {"result": task(params["id"], "CANCELED" if params["id"] in self.cancelled else self.state)}

    async def cancel(self, params):
        if self.is_deaf:
            self.is_deaf = False
            return {"error": {"code": -32603, "message": "not now"}}
        self.cancelled.add(params["id"])
        return {"result": task(params["id"], "CANCELED")}


async def test_what_could_not_be_ended_at_once_leaves_its_slot_all_the_same():
    runs = Runs("INPUT_REQUIRED")
    async with bridged(Agentd(answers=runs.answers())) as (agent, _):
        await agent.send(Message("one", run_id="r-1"))

        async def has_left():
            return runs.cancelled and (await agent.condition()).free_slots == 4

        await until(has_left)
        assert agent.run("r-1").state is State.FAILED


async def test_a_cancel_of_everything_ends_all_although_one_cannot_be_ended_at_once():
    async with bridged(Agentd(answers=Runs("WORKING").answers())) as (agent, _):
        for run_id in ("r-1", "r-2"):
            await agent.send(Message("one", run_id=run_id))
        async with asyncio.timeout(10):
            runs = await agent.cancel("", "enough")
        assert [run.state for run in runs] == [State.CANCELED] * 2


async def test_a_run_ends_although_the_agent_cannot_be_asked_to_end_it():
    runs = Runs("WORKING")
    deaf = {"error": {"code": -32603, "message": "never"}}
    async with bridged(Agentd(answers={**runs.answers(), "CancelTask": deaf})) as (agent, _):
        await agent.send(Message("one", run_id="r-1"))
        cancelling = asyncio.create_task(agent.cancel("r-1", "enough"))
        runs.state = "COMPLETED"
        async with asyncio.timeout(10):
            (run,) = await cancelling
        assert run.state is State.COMPLETED


async def test_a_cancel_of_a_run_that_does_not_begin_after_all_is_answered():
    may_answer = asyncio.Event()

    async def refuse(params):
        await may_answer.wait()
        return {"error": {"code": -32603, "message": "spawn refused"}}

    async with bridged(Agentd(answers={"SendMessage": refuse})) as (agent, _):
        sending = asyncio.create_task(agent.send(Message("one", run_id="r-1")))

        async def is_known():
            return agent.runs()

        await until(is_known)
        cancelling = asyncio.create_task(agent.cancel("", "enough"))
        await asyncio.sleep(0)  # so that it waits
        may_answer.set()
        with pytest.raises(ExhaustedError):
            await sending
        async with asyncio.timeout(10):
            (run,) = await cancelling
        assert (run.state, run.error) == (State.FAILED, "the agent did not begin it")


async def test_a_verb_is_done_although_its_caller_leaves():
    may_answer = asyncio.Event()

    async def lame_duck(params):
        await may_answer.wait()
        return {"result": {}}

    agentd = Agentd(answers={"a2a.LameDuck": lame_duck})
    async with bridged(agentd) as (agent, _):
        call = asyncio.create_task(agent.lame_duck(True))

        async def asked():
            return "a2a.LameDuck" in agentd.asked

        await until(asked)
        call.cancel()
        await asyncio.wait({call})
        may_answer.set()

        async def is_lame():
            return (await agent.condition()).lame_duck

        await until(is_lame)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"error": {"code": -32001, "message": "no task"}}, NotFoundError),
        ({"error": {"code": -32004, "message": "it has ended"}}, PreconditionError),
        ({"error": {"code": -32601, "message": "no method"}}, UnimplementedError),
        ({"error": {"code": -32603, "message": "oh"}}, InternalError),
        (web.Response(text="no JSON"), UnavailableError),
        (
            web.Response(body=b"x" * (1024 * 1024), headers={"Content-Length": str(1024 * 1024)}),
            UnavailableError,
        ),
        ({"result": []}, None),
        ({"result": "text"}, UnavailableError),
    ],
)
async def test_what_the_agent_says_wrongly_is_an_error_of_ours(answer, error):
    async with listening(Agentd(answers={"GetTask": answer})) as foreign:
        if error is None:
            assert await foreign.call("GetTask") == {}
        else:
            with pytest.raises(error):
                await foreign.call("GetTask")


async def test_a_refused_run_and_a_late_answer():
    async with listening(
        Agentd(answers={"SendMessage": {"error": {"code": -32603, "message": "spawn refused"}}})
    ) as foreign:
        with pytest.raises(ExhaustedError, match="spawn refused"):
            await foreign.send("text", "r-1")
        with pytest.raises(DeadlineError):
            await foreign.call("GetTask", seconds=0)


async def test_runs_of_a_bridge_that_was_killed_are_ended_before_anything_is_begun():
    agentd = Agentd()
    agentd.answers["ListTasks"] = {"result": {"tasks": [task("served.1"), task("served.2", "COMPLETED")]}}
    agentd.answers["CancelTask"] = {"result": task("served.1", "CANCELED")}
    async with bridged(agentd) as (agent, _):
        assert agentd.asked.count("CancelTask") == 1
        assert (await agent.condition()).ready
