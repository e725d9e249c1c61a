"""Workflows: order, results, retries, verbs between steps, and what is kept for the next process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from prometheus_client import REGISTRY

from libs.contract.run import State, Trigger, Usage
from libs.contract.statuses import Status
from services.agent.backoff import Pauses
from services.agent.calls import Calls
from services.agent.modes.calling import Caller
from services.agent.modes.kept import Kept
from services.agent.modes.steps import read
from services.agent.modes.workflow import Clock, Workflow
from services.agent.order import Bounds, Ended, Live, Order
from services.agent.tools import Result

from .fakes import NOW, SOON, Engine, Turns, echo, failing, forever, living, reference, told
from .runs import Kit, Seen

CHAIN = """
steps:
  - {name: a, instruction: A, input: start}
  - {name: b, instruction: B}
  - {name: c, instruction: C, input: "{{steps.a}} and {{steps.b}}"}
"""
DIAMOND = """
steps:
  - {name: left, instruction: L, input: l}
  - {name: right, instruction: R, input: r}
  - {name: both, instruction: B, needs: [left, right]}
"""


class Tools:
    """Answers with the arguments."""

    async def perform(self, name: str, arguments: Mapping[str, Any], order: Order, live: Live) -> Ended:
        live.spend(Usage(tool_calls=1))
        return Ended(Status.COMPLETED, f"{name} {dict(arguments)} for {order.id}")


def flowing(engine: Engine, document: str = CHAIN, **options: Any):
    agent = reference(engine, mode="workflow", drain_timeout=options.pop("drain_timeout", SOON))
    workflow = Workflow(
        agent.desk,
        read(document.encode()),
        "run",
        engine,
        Tools(),
        waits=lambda: Pauses(0.001, 0.001),
        **options,
    )
    return agent, living(agent, workflow.run)


async def outcome(life: Any) -> Ended:
    async with life as task:
        return await asyncio.wait_for(asyncio.shield(task), 10)


async def test_steps_run_in_order_and_results_flow():
    engine = Engine()
    agent, life = flowing(engine, instruction="You are terse.")
    ended = await outcome(life)
    assert ended == Ended(Status.COMPLETED, "about about start and about about start")
    assert [(order.id, order.instruction, order.text, order.subject) for order in engine.orders] == [
        ("run/a", "You are terse.\n\nA", "start", "a"),
        ("run/b", "You are terse.\n\nB", "about start", "b"),
        ("run/c", "You are terse.\n\nC", "about start and about about start", "c"),
    ]
    assert [name for name in await told(agent) if name.startswith("step.")] == [
        "step.started",
        "step.ended",
    ] * 3
    assert agent.desk.counts == {"completed": 1}


async def test_a_tool_is_called_with_what_a_step_found():
    document = """
    steps:
      - {name: find, instruction: Find., input: x}
      - {name: store, tool: docs.write, arguments: {text: "<{{steps.find}}>", times: 3}}
    """
    agent, life = flowing(Engine(), document)
    ended = await outcome(life)
    assert ended.text == "docs.write {'text': '<about x>', 'times': 3} for run/store"
    assert agent.desk.usage == Usage(tool_calls=1)


async def test_independent_steps_run_side_by_side():
    turns = Turns(1)
    engine = Engine(turns)
    _, life = flowing(engine, DIAMOND)
    async with life as task:
        await turns.until(2)
        assert {order.subject for order in engine.orders} == {"left", "right"}
        for _ in range(3):
            turns.go.release()
        ended = await task
    assert ended.text == "about left:\nabout l\n\nright:\nabout r"


async def test_a_failed_step_ends_the_run_with_its_status_and_the_others_with_it():
    async def do(order: Order, live: Live) -> Ended:
        if order.subject == "left":
            return await failing(Status.EXHAUSTED_STEPS, "50 steps")(order, live)
        return await forever(order, live)

    engine = Engine(do)
    _, life = flowing(engine, DIAMOND)
    ended = await outcome(life)
    assert (ended.status, ended.error) == (Status.EXHAUSTED_STEPS, "step left: 50 steps")
    assert "both" not in {order.subject for order in engine.orders}


@pytest.mark.parametrize(
    ("do", "tries"),
    [
        (failing(Status.FAILED), 2),
        (failing(Status.SERVER, passes=True), 2),
        (failing(Status.MODEL, passes=True, retry_after=timedelta(hours=24)), 2),
        (failing(Status.REFUSED), 1),
        (failing(Status.MODEL, is_ours=True), 1),
        (failing(Status.EXHAUSTED_TOKENS), 1),
    ],
)
async def test_what_may_pass_is_tried_again(do, tries):
    engine = Engine(do)
    _, life = flowing(engine, "steps: [{name: a, instruction: A, retries: 1}]")
    ended = await outcome(life)
    assert ended.status is (await do(engine.orders[0], None)).status
    assert len(engine.orders) == tries


async def test_a_step_has_a_deadline():
    engine = Engine(forever)
    _, life = flowing(engine, "steps: [{name: a, instruction: A, deadline: 50ms}]")
    ended = await outcome(life)
    assert (ended.status, ended.error) == (Status.DEADLINE, "step a: not done within 50ms")


async def test_a_workflow_has_a_deadline():
    before = REGISTRY.get_sample_value("agent_limit_exceeded_total", {"limit": "deadline"}) or 0
    agent, life = flowing(Engine(forever), deadline=timedelta(milliseconds=50))
    ended = await outcome(life)
    assert (ended.status, ended.error) == (Status.DEADLINE, "not done within 50ms")
    assert (await told(agent)).count("limit.reached") == 1
    assert REGISTRY.get_sample_value("agent_limit_exceeded_total", {"limit": "deadline"}) == before + 1


async def test_a_pause_between_steps_holds_and_a_resume_goes_on():
    turns = Turns(1)
    agent, life = flowing(Engine(turns))
    async with life as task:
        await turns.until(1)
        pausing = asyncio.create_task(agent.pause("", SOON))
        await agent.desk.until(lambda: agent.desk.paused)
        turns.go.release()
        (held,) = await pausing
        assert (held.state, held.subject, held.activity) == (State.PAUSED, "b", "step b")
        assert turns.taken == [("start", 0)]
        await agent.resume("")
        for _ in range(2):
            turns.go.release()
        assert (await task).status is Status.COMPLETED


async def test_steps_side_by_side_are_paused_when_each_of_them_holds():
    turns = Turns(2)
    agent, life = flowing(Engine(turns), DIAMOND)
    async with life as task:
        await turns.until(2)
        pausing = asyncio.create_task(agent.pause("", SOON))
        await agent.desk.until(lambda: agent.desk.paused)
        turns.go.release()
        run = agent.desk.find("run")
        await agent.desk.until(lambda: run.holding == 1)
        assert agent.run("run").state is State.WORKING
        assert not pausing.done()
        turns.go.release()
        assert [held.state for held in await pausing] == [State.PAUSED]
        assert len(turns.taken) == 2
        await agent.resume("")
        for _ in range(4):
            turns.go.release()
        assert (await task).status is Status.COMPLETED
    events = await told(agent)
    assert (events.count("run.paused"), events.count("run.resumed")) == (1, 1)


async def test_a_deadline_stands_still_while_anything_is_held():
    scope = anyio.CancelScope(deadline=anyio.current_time() + 3600)
    clock = Clock(scope)
    clock.stop()
    clock.stop()
    assert scope.deadline == math.inf
    clock.go()
    assert scope.deadline == math.inf
    clock.go()
    assert 3500 < scope.deadline - anyio.current_time() < 3601


async def test_a_cancel_interrupts_a_step():
    engine = Engine(forever)
    agent, life = flowing(engine)
    async with life as task:
        await engine.begun.acquire()
        (run,) = await agent.cancel("run", "enough")
        assert (run.status, run.error) == (Status.CANCELLED, "enough")
        assert (await task).status is Status.CANCELLED


async def test_a_drain_that_is_too_short_cuts_the_run_off_and_what_is_finished_is_kept(tmp_path):
    async def do(order: Order, live: Live) -> Ended:
        return await (echo if order.subject == "a" else forever)(order, live)

    engine = Engine(do)
    kept = Kept(tmp_path, "run", "d")
    agent, life = flowing(engine, kept=kept, drain_timeout=NOW)
    async with life as task:
        for _ in range(2):
            await engine.begun.acquire()
        agent.stop()
        assert (await task).status is Status.DRAINED
    assert {name: finished.text for name, finished in kept.read().items()} == {"a": "about start"}


async def test_the_next_process_skips_finished_steps_and_counts_what_they_used(tmp_path):
    async def do(order: Order, live: Live) -> Ended:
        live.spend(Usage(10, 1, 1))
        if order.subject == "c":
            return await failing(Status.MODEL)(order, live)
        return await echo(order, live)

    first, second = Engine(do), Engine()
    assert (await outcome(flowing(first, kept=Kept(tmp_path, "run", "d"))[1])).status is Status.MODEL
    agent, life = flowing(second, kept=Kept(tmp_path, "run", "d"))
    ended = await outcome(life)
    assert [order.subject for order in second.orders] == ["c"]
    assert ended.text == "about about start and about about start"
    assert agent.run("run").usage == Usage(20, 2, 2)


async def test_another_run_and_another_document_begin_anew(tmp_path):
    Kept(tmp_path, "run", "d").read()
    await outcome(flowing(Engine(), kept=Kept(tmp_path, "run", "d"))[1])
    assert len(Kept(tmp_path, "run", "d").read()) == 3
    assert Kept(tmp_path, "other", "d").read() == {}
    assert Kept(tmp_path, "run", "e").read() == {}


async def test_a_file_that_is_not_whole_does_not_count(tmp_path):
    kept = Kept(tmp_path, "run", "d")
    await outcome(flowing(Engine(), kept=kept)[1])
    (file,) = tmp_path.glob("*/b.json")
    file.write_bytes(file.read_bytes()[:9])
    assert set(kept.read()) == {"a", "c"}


async def test_an_engine_sees_what_the_whole_run_has_used():
    seen: list[int] = []

    async def do(order: Order, live: Live) -> Ended:
        seen.append(live.usage.steps)
        live.spend(replace(Usage(), steps=2))
        return await echo(order, live)

    await outcome(flowing(Engine(do))[1])
    assert seen == [0, 2, 4]


async def test_what_is_no_step_of_ours_does_not_count(tmp_path):
    kept = Kept(tmp_path, "run", "d")
    await outcome(flowing(Engine(), kept=kept)[1])
    (folder,) = tmp_path.iterdir()
    (folder / "a.json").rename(folder / "stranger.json")
    (folder / "b.json").write_text('{"text": "half')
    (folder / "c.json").unlink()
    (folder / "c.json").mkdir()
    engine = Engine()
    assert (await outcome(flowing(engine, kept=kept)[1])).status is Status.COMPLETED
    assert [order.subject for order in engine.orders] == ["a", "b", "c"]


async def test_a_folder_that_cannot_be_made_costs_only_what_would_be_kept(tmp_path):
    (tmp_path / "file").touch()
    ended = await outcome(flowing(Engine(), kept=Kept(tmp_path / "file", "run", "d"))[1])
    assert ended.status is Status.COMPLETED


@pytest.mark.parametrize(("is_away", "status"), [(True, Status.SERVER), (False, Status.FAILED)])
async def test_a_server_that_is_away_is_another_thing_than_a_tool_that_fails(is_away, status):
    kit = Kit({"write": Result("error: no", "error", is_away=is_away)})
    order = Order("run/a", Trigger.WORKFLOW, "")
    ended = await Caller(Calls(kit, Bounds())).perform("docs.write", {}, order, Seen())
    assert (ended.status, ended.passes) == (status, is_away)
