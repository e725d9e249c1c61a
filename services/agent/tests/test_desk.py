"""The desk: what it knows of runs, how they end, and what it forgets."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from libs.contract.events import Ring
from libs.contract.run import State, Trigger, Usage
from libs.contract.statuses import Status
from libs.errors import NotFoundError
from services.agent.desk import Desk
from services.agent.order import Ended, Order
from services.agent.underway import Underway


def order(id: str = "r", trigger: Trigger = Trigger.LOOP) -> Order:
    return Order(id, trigger, "Be brief.", "text")


def desk() -> Desk:
    return Desk(Ring(), 2)


async def done(run: Underway) -> Ended:
    run.spend(Usage(3, 2, 1))
    return Ended(Status.COMPLETED, "answer")


async def stuck(run: Underway) -> Ended:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_run_is_known_from_its_beginning_to_after_its_end():
    it = desk()
    go = asyncio.Event()
    before = REGISTRY.get_sample_value("agent_runs_total", {"status": "completed"}) or 0

    async def work(run: Underway) -> Ended:
        await go.wait()
        return await done(run)

    run = asyncio.create_task(it.execute(order(), work))
    await it.until(lambda: bool(it.underway()))
    now = it.find("r").snapshot()
    assert (now.state, now.status, now.took, it.free_slots) == (State.WORKING, None, None, 1)
    assert REGISTRY.get_sample_value("agent_active_runs") == 1
    assert REGISTRY.get_sample_value("agent_saturation") == 0.5
    go.set()
    assert await run == Ended(Status.COMPLETED, "answer")
    now = it.find("r").snapshot()
    assert (now.state, now.status, now.result) == (State.COMPLETED, Status.COMPLETED, "answer")
    assert now.took is not None
    assert now.usage == it.usage == Usage(3, 2, 1)
    assert (it.underway(), it.counts, it.free_slots) == ([], {"completed": 1}, 2)
    assert REGISTRY.get_sample_value("agent_active_runs") == 0
    assert REGISTRY.get_sample_value("agent_runs_total", {"status": "completed"}) == before + 1


async def test_an_interrupted_run_ends_as_its_first_interruption_says():
    it = desk()
    run = asyncio.create_task(it.execute(order(), stuck))
    await it.until(lambda: bool(it.underway()))
    it.interrupt(Ended(Status.CANCELLED, error="because"))
    it.interrupt(Ended(Status.DRAINED))
    assert await run == Ended(Status.CANCELLED, error="because")
    assert it.find("r").snapshot().state is State.CANCELED


async def test_a_run_that_is_interrupted_before_it_works_never_works():
    it = desk()
    run = it.begin(order())
    run.interrupt(Ended(Status.CANCELLED))
    assert (await it.carry(run, stuck)).status is Status.CANCELLED


async def test_whoever_cancels_the_caller_ends_the_run_with_it():
    it = desk()
    run = asyncio.create_task(it.execute(order(), stuck, interrupted=lambda: Status.LOST))
    await it.until(lambda: bool(it.underway()))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert it.counts == {"lost": 1}


async def test_a_bug_is_a_crash_and_is_not_hidden():
    it = desk()

    async def bug(run: Underway) -> Ended:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await it.execute(order(), bug)
    assert it.find("r").snapshot().status is Status.CRASHED


async def test_old_runs_are_forgotten():
    it = desk()
    for number in range(300):
        await it.execute(order(str(number)), done)
    assert len(it.past()) == 256
    assert it.counts == {"completed": 300}
    assert it.usage == Usage(900, 600, 300)
    with pytest.raises(NotFoundError):
        it.find("43")
    assert it.find("44").snapshot().result == "answer"


async def test_large_results_of_old_runs_are_forgotten_before_the_runs():
    it = desk()

    async def large(run: Underway) -> Ended:
        return Ended(Status.COMPLETED, "x" * 1024 * 1024)

    for number in range(12):
        await it.execute(order(str(number)), large)
    kept = [run.order.id for run in it.past() if run.snapshot().result]
    assert kept == ["10", "11"]
    assert len(it.past()) == 12
    assert all(run.order.text == "" for run in it.past())


async def test_a_model_that_refuses_us_is_remembered_until_one_answers():
    it = desk()

    async def refused(run: Underway) -> Ended:
        return Ended(Status.MODEL, error="HTTP 401", is_ours=True)

    await it.execute(order(), refused)
    assert it.unusable == "HTTP 401"
    await it.execute(order(), done)
    assert it.unusable == ""
