"""The verbs and messages, by their effects on runs."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from libs.contract.agent import Message
from libs.contract.run import State, Trigger
from libs.contract.statuses import Status
from libs.errors import (
    ExhaustedError,
    ExistsError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
)
from libs.exits import Exit
from services.agent.order import Order
from services.agent.steering import ReferenceAgent

from .fakes import NOW, SOON, Engine, Turns, echo, failing, forever, living, reference, told


def idle(agent: ReferenceAgent):
    """A mode that begins nothing."""

    async def run() -> Exit:
        await agent.desk.until(lambda: agent.desk.draining)
        return Exit.OK

    return run


async def test_a_message_becomes_a_run_with_an_answer():
    engine = Engine()
    agent = reference(engine)
    async with living(agent, idle(agent)):
        begun = await agent.send(Message("seven", context_id="c", depth=2))
        seen = [run async for run in agent.watch(begun.id)]
    assert begun.state is State.WORKING
    assert begun.trigger is Trigger.MESSAGE
    assert (seen[-1].state, seen[-1].result, seen[-1].context_id) == (State.COMPLETED, "about seven", "c")
    order = engine.orders[0]
    assert (order.instruction, order.text, order.depth, order.id) == ("Be brief.", "seven", 2, begun.id)


async def test_the_same_message_again_is_the_same_run():
    engine = Engine()
    agent = reference(engine)
    async with living(agent, idle(agent)):
        first = await agent.send(Message("seven", run_id="m1"))
        again = await agent.send(Message("seven", run_id="m1"))
        await agent.desk.until(lambda: not agent.desk.underway())
        after = await agent.send(Message("seven", run_id="m1"))
        with pytest.raises(ExistsError):
            await agent.send(Message("eight", run_id="m1"))
    assert first.id == again.id == after.id == "m1"
    assert after.result == "about seven"
    assert len(engine.orders) == 1


async def test_what_is_too_much_is_refused_and_begins_nothing():
    engine = Engine(forever)
    agent = reference(engine, slots=1, drain_timeout=NOW)
    async with living(agent, idle(agent)):
        with pytest.raises(ExhaustedError, match="depth 5"):
            await agent.send(Message("deep", depth=5))
        await agent.send(Message("one"))
        with pytest.raises(ExhaustedError, match="slots"):
            await agent.send(Message("two"))
        assert len(agent.desk.underway()) == 1


async def test_an_agent_without_a_model_takes_no_message():
    agent = reference(None)
    async with living(agent, idle(agent)):
        with pytest.raises(UnimplementedError):
            await agent.send(Message("one"))


async def test_a_pause_holds_runs_at_their_next_step_and_a_resume_lets_them_go_on():
    turns = Turns(3)
    agent = reference(Engine(turns))
    async with living(agent, idle(agent)):
        run = await agent.send(Message("a"))
        await turns.until(1)
        pausing = asyncio.create_task(agent.pause("", SOON))
        await agent.desk.until(lambda: agent.desk.paused)
        with pytest.raises(UnavailableError, match="paused"):
            await agent.send(Message("b"))
        assert not pausing.done()
        turns.go.release()
        (held,) = await pausing
        assert (held.id, held.state, held.activity) == (run.id, State.PAUSED, "turn 1")
        assert turns.taken == [("a", 0)]
        assert (await agent.condition()).not_ready_reason == "paused"
        (going,) = await agent.resume("")
        assert going.state is State.WORKING
        await turns.until(2)
        assert (await agent.condition()).ready
        turns.go.release()
        turns.go.release()
        seen = [each async for each in agent.watch(run.id)]
    assert seen[-1].state is State.COMPLETED
    events = await told(agent)
    assert [name for name in events if name.startswith(("run.", "agent.p", "agent.resumed"))] == [
        "run.started", "agent.paused", "run.paused", "agent.resumed", "run.resumed", "run.ended",
    ]  # fmt: skip


async def test_a_pause_of_one_run_holds_no_other():
    turns = Turns(2)
    agent = reference(Engine(turns))
    async with living(agent, idle(agent)):
        one, two = await agent.send(Message("a")), await agent.send(Message("b"))
        await turns.until(2)
        (now,) = await agent.pause(one.id, NOW)
        assert now.state is State.WORKING  # not at its next step yet
        for _ in range(2):
            turns.go.release()
        await turns.until(3)
        await agent.desk.until(lambda: agent.run(one.id).state is State.PAUSED)
        turns.go.release()
        await agent.desk.until(lambda: agent.run(two.id).state.ended)
        assert agent.run(one.id).state is State.PAUSED
        assert (await agent.condition()).ready
        (now,) = await agent.resume(one.id)
        assert now.state is State.WORKING
        turns.go.release()
        await agent.desk.until(lambda: agent.run(one.id).state.ended)
    assert agent.run(one.id).status is agent.run(two.id).status is Status.COMPLETED


async def test_a_resume_of_everything_lets_those_go_on_that_were_paused_alone():
    turns = Turns(1)
    agent = reference(Engine(turns))
    async with living(agent, idle(agent)):
        run = await agent.send(Message("a"))
        (held,) = await agent.pause(run.id, SOON)
        assert held.state is State.PAUSED
        (going,) = await agent.resume("")
        assert going.state is State.WORKING
        turns.go.release()
    assert agent.run(run.id).status is Status.COMPLETED


async def test_a_cancel_ends_runs_at_once_inside_of_a_call_or_held():
    engine = Engine(forever)
    agent = reference(engine)
    async with living(agent, idle(agent)):
        one, two = await agent.send(Message("a")), await agent.send(Message("b"))
        for _ in range(2):
            await engine.begun.acquire()
        (ended,) = await agent.cancel(one.id, "wrong question")
        assert (ended.status, ended.error) == (Status.CANCELLED, "wrong question")
        assert agent.run(two.id).state is State.WORKING
        turns = Turns(1)
        engine.do = turns
        three = await agent.send(Message("c"))
        (held,) = await agent.pause(three.id, SOON)
        assert held.state is State.PAUSED
        assert {run.id for run in await agent.cancel("", "")} == {two.id, three.id}
        assert agent.run(three.id).state is agent.run(two.id).state is State.CANCELED
        assert await agent.cancel("", "") == []
        (as_it_was,) = await agent.cancel(one.id, "again")
        assert as_it_was.error == "wrong question"
        with pytest.raises(NotFoundError):
            await agent.cancel("nobody", "")


async def test_a_lame_duck_begins_nothing_finishes_what_is_begun_and_comes_back():
    turns = Turns(1)
    agent = reference(Engine(turns))
    async with living(agent, idle(agent)):
        run = await agent.send(Message("a"))
        await turns.until(1)
        condition = await agent.lame_duck(True)
        assert (condition.ready, condition.lame_duck, len(condition.runs)) == (False, True, 1)
        with pytest.raises(UnavailableError, match="lame duck"):
            await agent.ready()
        with pytest.raises(UnavailableError):
            await agent.send(Message("b"))
        turns.go.release()
        await agent.desk.until(lambda: agent.run(run.id).state.ended)
        assert agent.run(run.id).status is Status.COMPLETED
        assert (await agent.lame_duck(False)).ready
        await agent.ready()
        turns.go.release()
        await agent.send(Message("b"))


async def test_a_drain_finishes_what_it_can_and_is_one_way():
    turns = Turns(1)
    agent = reference(Engine(turns))
    async with living(agent, idle(agent)) as life:
        run = await agent.send(Message("a"))
        await turns.until(1)
        draining = await agent.drain(timedelta(hours=1))
        assert draining.run_count == 1
        assert NOW < draining.remaining <= SOON
        for verb in (agent.pause("", NOW), agent.lame_duck(False)):
            with pytest.raises(PreconditionError):
                await verb
        with pytest.raises(UnavailableError, match="draining"):
            await agent.send(Message("b"))
        turns.go.release()
        async with asyncio.timeout(5):
            await life
    assert agent.run(run.id).status is Status.COMPLETED


async def test_a_drain_lets_a_held_run_finish():
    turns = Turns(1)
    agent = reference(Engine(turns))
    async with living(agent, idle(agent)):
        run = await agent.send(Message("a"))
        await agent.pause("", SOON)
        turns.go.release()
        await agent.drain(None)
    assert agent.run(run.id).status is Status.COMPLETED


async def test_a_second_drain_may_only_shorten_the_first():
    agent = reference(Engine(forever))
    async with living(agent, idle(agent)) as life:
        run = await agent.send(Message("a"))
        first = await agent.drain(SOON)
        second = await agent.drain(timedelta(hours=1))
        assert second.remaining <= first.remaining
        await agent.drain(NOW)
        async with asyncio.timeout(3):
            await life
    assert agent.run(run.id).status is Status.DRAINED


async def test_a_sigterm_during_a_drain_leaves_it_its_time_and_a_second_one_does_not():
    agent = reference(Engine(forever))
    async with living(agent, idle(agent)) as life:
        run = await agent.send(Message("a"))
        await agent.drain(None)
        agent.stop()
        assert (await agent.drain(None)).remaining > SOON / 2
        assert agent.run(run.id).state is State.WORKING
        agent.stop()
        async with asyncio.timeout(3):
            await life
    assert agent.run(run.id).status is Status.DRAINED


async def test_an_agent_that_its_model_refuses_is_not_ready_until_one_answers():
    engine = Engine(failing(Status.MODEL, "HTTP 401", is_ours=True))
    agent = reference(engine)
    async with living(agent, idle(agent)):
        await agent.ready()
        await agent.send(Message("a"))
        await agent.desk.until(lambda: not agent.desk.underway())
        with pytest.raises(UnavailableError, match="HTTP 401"):
            await agent.ready()
        assert (await agent.condition()).not_ready_reason == "HTTP 401"
        engine.do = echo
        await agent.send(Message("b"))
        await agent.desk.until(lambda: not agent.desk.underway())
        await agent.ready()


async def test_what_a_mode_depends_on_is_asked_by_probes_and_remembered():
    agent = reference(Engine())
    asked = 0

    async def check() -> None:
        nonlocal asked
        asked += 1
        raise UnavailableError("coordination is away")

    agent.check = check
    async with living(agent, idle(agent)):
        assert (await agent.condition()).ready
        with pytest.raises(UnavailableError, match="coordination"):
            await agent.ready()
        condition = await agent.condition()
        assert (condition.ready, condition.not_ready_reason) == (False, "coordination is away")
    assert asked == 1


async def test_a_watcher_that_is_slow_misses_no_end():
    turns = Turns(1)
    agent = reference(Engine(turns))
    async with living(agent, idle(agent)):
        run = await agent.send(Message("x"))
        seen = agent.watch(run.id)
        await anext(seen)
        turns.go.release()
        await agent.desk.until(lambda: agent.run(run.id).state.ended)
        async with asyncio.timeout(10):
            assert (await anext(seen)).state is State.COMPLETED


async def test_of_a_pause_and_a_resume_at_once_both_answer():
    agent = reference(Engine(forever), drain_timeout=NOW)
    async with living(agent, idle(agent)):
        await agent.send(Message("x"))
        pausing = asyncio.create_task(agent.pause("", timedelta(minutes=5)))
        await agent.desk.until(lambda: agent.desk.paused)
        async with asyncio.timeout(10):
            await agent.resume("")
            assert [run.state for run in await pausing] == [State.WORKING]


async def test_a_resume_that_is_taken_back_at_once_answers():
    turns = Turns(1)
    agent = reference(Engine(turns), drain_timeout=NOW)
    async with living(agent, idle(agent)):
        await agent.pause("", NOW)
        agent.desk.begin(order := Order("r", Trigger.MESSAGE, "", "x"))
        held = agent.desk.find("r")
        carrying = asyncio.create_task(agent.desk.carry(held, lambda live: turns(order, live)))
        await agent.desk.until(lambda: held.state is State.PAUSED)
        async with asyncio.timeout(10):
            await asyncio.gather(agent.resume(""), agent.pause("", NOW))
        agent.desk.set_paused(False)
        turns.go.release()
        await carrying


async def test_runs_keep_their_order_when_they_end():
    turns = Turns(1)
    agent = reference(Engine(turns), slots=3, drain_timeout=NOW)
    async with living(agent, idle(agent)):
        for name in ("first", "second", "third"):
            await agent.send(Message("x", run_id=name))
        await turns.until(3)
        before = [run.id for run in agent.runs()]
        await agent.cancel("second", "")
        assert [run.id for run in agent.runs()] == before == ["third", "second", "first"]


async def test_an_id_that_is_used_again_is_one_run():
    agent = reference(Engine())
    async with living(agent, idle(agent)):
        for _ in range(2):
            run = agent.desk.begin(order := Order("r", Trigger.ITEM, "", "x"))
            assert [run.state for run in agent.runs()] == [State.WORKING]
            await agent.desk.carry(run, functools.partial(echo, order))


async def test_a_drain_that_cuts_runs_off_is_counted_as_forced():
    def forced() -> float:
        return REGISTRY.get_sample_value("agent_drains_total", {"phase": "forced"}) or 0.0

    before = forced()
    async with living(quiet := reference(Engine(), drain_timeout=NOW), idle(quiet)):
        pass
    assert forced() == before
    async with living(busy := reference(Engine(forever), drain_timeout=NOW), idle(busy)):
        await busy.send(Message("x"))
    assert forced() == before + 1
