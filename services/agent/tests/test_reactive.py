"""Reactions: one run for what is there, one for each change of content, and none for anything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from libs.contract.agent import Message
from libs.contract.run import State
from libs.contract.statuses import Status
from libs.errors import NotFoundError, UnavailableError
from libs.exits import Exit
from services.agent.backoff import Pauses
from services.agent.modes.reactive import Reactive

from .fakes import NOW, SOON, Engine, Turns, failing, forever, living, reference, told

A, B = "file:///a", "file:///b"


@dataclass(frozen=True)
class Changed:
    uri: str


class Resources:
    """Contents that a test sets. `reads` are counted by `looked`."""

    def __init__(self, **contents: str) -> None:
        self.contents = {f"file:///{name}": text for name, text in contents.items()}
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        self.looked = asyncio.Semaphore(0)
        self.away = 0
        self.refusal: NotFoundError | None = None

    def tell(self, uri: str, content: str | None = None) -> None:
        if content is not None:
            self.contents[uri] = content
        self.changes.put_nowait(uri)

    async def watch(self, uris: Sequence[str]) -> AsyncIterator[Changed]:
        if self.refusal:
            raise self.refusal
        for uri in uris:
            yield Changed(uri)
        while True:
            yield Changed(await self.changes.get())

    async def read(self, uri: str) -> tuple[str, str]:
        self.looked.release()
        if self.away > 0:
            self.away -= 1
            raise UnavailableError("away")
        return self.contents[uri], f"digest of {self.contents[uri]}"


def reacting(
    engine: Engine,
    resources: Resources,
    *uris: str,
    debounce: timedelta = timedelta(milliseconds=20),
    **options,
):
    agent = reference(engine, mode="reactive", **options)
    mode = Reactive(
        agent.desk,
        engine,
        "React.",
        resources,
        uris or (A,),
        debounce=debounce,
        waits=lambda: Pauses(0.01, 0.01),
    )
    agent.waiting = mode.waiting
    return agent, living(agent, mode.run)


async def test_what_is_there_at_the_start_is_handled_once():
    engine, resources = Engine(), Resources(a="one", b="two")
    agent, life = reacting(engine, resources, A, B)
    async with life:
        for _ in range(2):
            await engine.begun.acquire()
        await agent.desk.until(lambda: agent.desk.counts == {"completed": 2})
    assert {order.subject: order.text for order in engine.orders} == {
        A: "The resource file:///a changed. Its current content is:\n\none",
        B: "The resource file:///b changed. Its current content is:\n\ntwo",
    }
    assert engine.orders[0].instruction == "React."


async def test_a_change_of_content_is_a_run_and_a_rumour_is_none():
    engine, resources = Engine(), Resources(a="one")
    agent, life = reacting(engine, resources)
    async with life:
        await engine.begun.acquire()
        await agent.desk.until(lambda: agent.desk.counts == {"completed": 1})
        await resources.looked.acquire()
        resources.tell(A)
        await resources.looked.acquire()
        resources.tell(A, "two")
        await engine.begun.acquire()
    assert [order.text[-3:] for order in engine.orders] == ["one", "two"]


async def test_changes_during_a_run_are_one_next_run_with_the_last_content():
    turns = Turns(1)
    engine, resources = Engine(turns), Resources(a="v1")
    agent, life = reacting(engine, resources)
    async with life:
        await turns.until(1)
        for version in ("v2", "v3", "v4"):
            resources.tell(A, version)
        await agent.desk.until(lambda: agent.waiting() == 1)
        assert (await agent.condition()).pending_events == 1
        assert len(engine.orders) == 1
        turns.go.release()
        await turns.until(2)
        turns.go.release()
        await agent.desk.until(lambda: agent.desk.counts == {"completed": 2})
    assert [order.text[-2:] for order in engine.orders] == ["v1", "v4"]


async def test_several_changes_at_once_are_one_look():
    engine, resources = Engine(), Resources(a="v1")
    for version in ("v2", "v3", "v4"):
        resources.tell(A, version)
    _, life = reacting(engine, resources, debounce=timedelta(milliseconds=200))
    async with life:
        await engine.begun.acquire()
    assert [order.text[-2:] for order in engine.orders] == ["v4"]
    assert resources.looked._value == 1


async def test_different_resources_are_handled_side_by_side_up_to_the_slots():
    turns = Turns(1)
    uris = tuple(f"file:///{name}" for name in "abc")
    engine, resources = Engine(turns), Resources(a="1", b="2", c="3")
    agent, life = reacting(engine, resources, *uris, slots=2)
    async with life:
        await turns.until(2)
        assert len(agent.desk.underway()) == 2
        assert agent.waiting() == 1
        turns.go.release()
        await turns.until(3)
        for _ in range(2):
            turns.go.release()
        await agent.desk.until(lambda: agent.desk.counts == {"completed": 3})


async def test_a_failure_that_passes_is_tried_again_and_another_waits_for_a_change():
    engine, resources = Engine(failing(Status.MODEL, passes=True)), Resources(a="one")
    agent, life = reacting(engine, resources)
    async with life:
        for _ in range(3):
            await engine.begun.acquire()
        engine.do = failing(Status.REFUSED)
        await agent.desk.until(lambda: agent.desk.counts.get("refused") == 1)
        begun = len(engine.orders)
        while resources.looked._value:
            await resources.looked.acquire()
        resources.tell(A)
        await resources.looked.acquire()
        assert len(engine.orders) == begun
        resources.tell(A, "two")
        await agent.desk.until(lambda: agent.desk.counts.get("refused") == 2)


async def test_an_endpoint_that_asks_for_a_day_is_asked_again_before():
    tomorrow = failing(Status.MODEL, passes=True, retry_after=timedelta(hours=24))
    engine = Engine(tomorrow)
    _, life = reacting(engine, Resources(a="one"))
    async with asyncio.timeout(10), life:
        for _ in range(2):
            await engine.begun.acquire()


async def test_a_message_and_a_reaction_do_not_share_a_slot():
    turns = Turns(1)
    agent, life = reacting(Engine(turns), Resources(a="one"), slots=1, debounce=timedelta(milliseconds=1))
    async with life:
        await agent.send(Message("hello"))
        await agent.desk.until(lambda: agent.waiting() == 1)
        await asyncio.sleep(0.02)  # many times the debounce
        assert [run.order.text for run in agent.desk.underway()] == ["hello"]
        turns.go.release()
        await turns.until(2)
        assert [run.order.subject for run in agent.desk.underway()] == [A]
        turns.go.release()


async def test_a_resource_that_cannot_be_read_is_read_again():
    engine, resources = Engine(), Resources(a="one")
    resources.away = 2
    _, life = reacting(engine, resources)
    async with life:
        await engine.begun.acquire()
    assert len(engine.orders) == 1


async def test_large_content_is_cut_and_says_so():
    engine, resources = Engine(), Resources(a="x" * 300_000)
    _, life = reacting(engine, resources)
    async with life:
        await engine.begun.acquire()
    assert engine.orders[0].text.endswith("characters):\n\n" + "x" * 262_144)
    assert "content is (the first 262144 of 300000 characters)" in engine.orders[0].text


async def test_resources_that_cannot_be_subscribed_end_the_agent():
    engine, resources = Engine(), Resources(a="one")
    resources.refusal = NotFoundError("no server gives it")
    _, life = reacting(engine, resources)
    async with life as task:
        assert await asyncio.wait_for(asyncio.shield(task), 5) is Exit.SERVER


async def test_a_pause_holds_a_reaction_and_begins_none():
    turns = Turns(2)
    engine, resources = Engine(turns), Resources(a="1", b="2")
    agent, life = reacting(engine, resources, A, slots=2)
    async with life:
        await turns.until(1)
        pausing = asyncio.create_task(agent.pause("", SOON))
        await agent.desk.until(lambda: agent.desk.paused)
        turns.go.release()
        (held,) = await pausing
        assert (held.state, held.subject) == (State.PAUSED, A)
        resources.tell(A, "changed")
        await agent.desk.until(lambda: agent.waiting() == 1)
        await agent.resume("")
        for _ in range(3):
            turns.go.release()
        await agent.desk.until(lambda: agent.desk.counts == {"completed": 2})


async def test_a_cancelled_reaction_is_over_and_the_next_change_is_handled():
    engine, resources = Engine(forever), Resources(a="one")
    agent, life = reacting(engine, resources, drain_timeout=NOW)
    async with life:
        await engine.begun.acquire()
        (run,) = await agent.cancel("", "no")
        assert run.status is Status.CANCELLED
        resources.tell(A, "two")
        await engine.begun.acquire()
    assert [order.text[-3:] for order in engine.orders] == ["one", "two"]


async def test_a_lame_duck_keeps_changes_for_later():
    engine, resources = Engine(), Resources(a="one")
    agent, life = reacting(engine, resources)
    async with life:
        await agent.desk.until(lambda: agent.desk.counts == {"completed": 1})
        await agent.lame_duck(True)
        resources.tell(A, "two")
        await agent.desk.until(lambda: agent.waiting() == 1)
        await agent.lame_duck(False)
        await agent.desk.until(lambda: agent.desk.counts == {"completed": 2})


async def test_a_drain_finishes_the_reaction_and_begins_no_other():
    turns = Turns(1)
    engine, resources = Engine(turns), Resources(a="one")
    agent, life = reacting(engine, resources)
    async with life as task:
        await turns.until(1)
        resources.tell(A, "two")
        await agent.desk.until(lambda: agent.waiting() == 1)
        await agent.drain(timedelta(seconds=5))
        turns.go.release()
        async with asyncio.timeout(5):
            assert await task is Exit.OK
    assert len(engine.orders) == 1


class Slow(Resources):
    """Reads when `go` is set."""

    def __init__(self, **contents: str) -> None:
        super().__init__(**contents)
        self.go = asyncio.Event()

    async def read(self, uri: str) -> tuple[str, str]:
        found = await super().read(uri)
        await self.go.wait()
        return found


async def test_what_is_read_while_a_gate_closes_begins_nothing_until_it_opens():
    engine, resources = Engine(), Slow(a="one")
    agent, life = reacting(engine, resources)
    async with life:
        await resources.looked.acquire()
        await agent.lame_duck(True)
        resources.go.set()
        async with asyncio.timeout(10):
            await agent.desk.until(lambda: agent.waiting() == 1)
        assert engine.orders == []
        await agent.lame_duck(False)
        await engine.begun.acquire()
    assert len(engine.orders) == 1


async def test_a_read_that_hangs_does_not_hold_a_drain_up():
    engine, resources = Engine(), Slow(a="one")
    agent, life = reacting(engine, resources)
    async with life as task:
        await resources.looked.acquire()
        agent.stop()
        assert await asyncio.wait_for(asyncio.shield(task), 10) is Exit.OK
    assert engine.orders == []


async def test_a_storm_of_changes_is_one_event():
    engine, resources = Engine(), Slow(a="one")
    agent, life = reacting(engine, resources, debounce=timedelta(seconds=30))
    async with life:
        for _ in range(500):
            resources.tell(A)
        await agent.desk.until(lambda: agent.waiting() == 1)
        while not resources.changes.empty():  # noqa: ASYNC110  (nothing tells what it has taken)
            await asyncio.sleep(0)
    assert (await told(agent)).count("resource.changed") == 1
