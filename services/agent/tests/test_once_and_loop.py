"""The modes that begin runs by themselves."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import pytest

from libs.contract.agent import Message
from libs.contract.run import State, Trigger
from libs.contract.statuses import Status, exit_code
from libs.errors import ExhaustedError
from libs.exits import Exit
from services.agent.life import Life, Result
from services.agent.modes.loop import Loop
from services.agent.modes.once import Once
from services.agent.order import Ended
from services.agent.starting import Needs

from .fakes import NOW, SOON, Engine, Turns, failing, forever, living, reference

SHORT = timedelta(milliseconds=1)
LONG = timedelta(hours=1)


async def test_once_does_the_instruction_once_under_its_id():
    engine = Engine()
    agent = reference(engine, mode="once")
    async with living(agent, Once(agent.desk, engine, "Do it.", "job-7").run) as life:
        ended = await life
    assert ended == Ended(Status.COMPLETED, "about ")
    (order,) = engine.orders
    assert (order.id, order.instruction, order.text) == ("job-7", "Do it.", "")


async def test_once_that_is_drained_has_not_done_its_work():
    engine = Engine(forever)
    agent = reference(engine, mode="once", drain_timeout=NOW)
    async with living(agent, Once(agent.desk, engine, "Do it.", "job-7").run) as life:
        await engine.begun.acquire()
        agent.stop()
        ended = await life
    assert ended.status is Status.DRAINED
    assert exit_code(ended.status) is Exit.FAILURE


async def test_once_that_is_cancelled_should_not_be_done():
    engine = Engine(forever)
    agent = reference(engine, mode="once")
    async with living(agent, Once(agent.desk, engine, "Do it.", "job-7").run) as life:
        await engine.begun.acquire()
        await agent.cancel("job-7", "no")
        ended = await life
    assert exit_code(ended.status) is Exit.SEMANTIC


async def test_a_pause_before_the_run_keeps_it_from_beginning():
    engine = Engine()
    agent = reference(engine, mode="once")
    agent.desk.set_paused(True)
    async with living(agent, Once(agent.desk, engine, "Do it.", "job-7").run) as life:
        await agent.pause("", NOW)
        assert not engine.orders
        await agent.resume("")
        assert (await life).status is Status.COMPLETED


async def test_a_message_that_is_under_way_outlives_the_only_run():
    turns = Turns(1)
    engine = Engine(turns)
    agent = reference(engine, mode="once")
    async with living(agent, Once(agent.desk, engine, "Do it.", "job-7").run) as life:
        await turns.until(1)
        run = await agent.send(Message("hello"))
        await turns.until(2)
        turns.go.release()
        await agent.desk.until(lambda: agent.run("job-7").state.ended)
        assert not life.done()
        turns.go.release()
        await life
    assert agent.run(run.id).state is State.COMPLETED


async def test_a_loop_goes_on_until_a_drain():
    engine = Engine()
    agent = reference(engine)
    async with living(agent, Loop(agent.desk, engine, "Look.", SHORT).run) as life:
        for _ in range(3):
            await engine.begun.acquire()
        agent.stop()
        assert await life is Exit.OK
    assert len({order.id for order in engine.orders}) == len(engine.orders) >= 3


async def test_a_turn_of_a_loop_waits_while_messages_have_the_slots():
    turns = Turns(1)
    engine = Engine(turns)
    agent = reference(engine, slots=1)

    async def mode() -> Exit:
        await agent.send(Message("hello"))
        return await Loop(agent.desk, engine, "Look.", LONG).run()

    async with living(agent, mode):
        await turns.until(1)
        assert [run.order.trigger for run in agent.desk.underway()] == [Trigger.MESSAGE]
        turns.go.release()
        await turns.until(2)
        assert [run.order.trigger for run in agent.desk.underway()] == [Trigger.LOOP]
        with pytest.raises(ExhaustedError):
            await agent.send(Message("hello"))
        turns.go.release()


async def test_a_failed_run_does_not_end_the_loop():
    engine = Engine(failing(Status.EXHAUSTED_TOKENS))
    agent = reference(engine)
    async with living(agent, Loop(agent.desk, engine, "Look.", SHORT).run):
        for _ in range(3):
            await engine.begun.acquire()
    assert agent.desk.counts["exhausted_tokens"] >= 3


async def test_a_cancel_ends_the_run_and_not_the_loop():
    engine = Engine(forever)
    agent = reference(engine, drain_timeout=NOW)
    async with living(agent, Loop(agent.desk, engine, "Look.", SHORT).run):
        await engine.begun.acquire()
        await agent.cancel("", "stuck")
        await engine.begun.acquire()


async def test_a_drain_ends_the_rest_between_two_runs():
    engine = Engine()
    agent = reference(engine)
    async with living(agent, Loop(agent.desk, engine, "Look.", LONG).run) as life:
        await agent.desk.until(lambda: bool(agent.desk.counts))
        agent.stop()
        async with asyncio.timeout(5):
            await life
    assert len(engine.orders) == 1


async def test_a_loop_that_is_paused_or_a_lame_duck_begins_no_run():
    engine = Engine()
    agent = reference(engine)
    async with living(agent, Loop(agent.desk, engine, "Look.", SHORT).run):
        await engine.begun.acquire()
        for close, open in (
            (agent.pause("", SOON), agent.resume("")),
            (agent.lame_duck(True), agent.lame_duck(False)),
        ):
            await close
            await agent.desk.until(lambda: not agent.desk.underway())
            begun = len(engine.orders)
            await asyncio.sleep(0.02)  # many times the interval
            assert len(engine.orders) == begun
            await open
            await engine.begun.acquire()


async def test_a_process_that_began_without_stdout_reports_all_the_same(tmp_path, monkeypatch):
    agent = reference(Engine())
    once = Once(agent.desk, Engine(), "Do it.", "r")
    monkeypatch.setattr(sys, "stdout", None)
    code = await Life(agent, Needs(SOON)).end(once.run, Result("r", Trigger.ONCE, tmp_path / "report"))
    assert code is Exit.OK
    assert b'"completed"' in (tmp_path / "report").read_bytes()
