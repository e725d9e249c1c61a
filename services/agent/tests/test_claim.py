"""Claiming, against a coordination service that does as it is told: what becomes of items, and the verbs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs import pki
from libs.contract.agent import Message
from libs.contract.run import State
from libs.contract.statuses import Status
from libs.errors import DeniedError, ExhaustedError, NotFoundError, UnavailableError
from libs.exits import Exit
from libs.testing.mesh import mesh
from libs.work import connect
from services.agent.modes.claim import Claim
from services.agent.steering import ReferenceAgent

from .coordination import Coordination, queue
from .fakes import SOON, Engine, Turns, failing, forever, living, reference, told

LEASE = timedelta(seconds=30)


@asynccontextmanager
async def claiming(
    folder: Path,
    coordination: Coordination,
    engine: Engine,
    *,
    slots: int = 2,
    drain: timedelta = SOON,
    paused: bool = False,
) -> AsyncIterator[tuple[ReferenceAgent, asyncio.Task[object]]]:
    """An agent that works on the queue, and has ended after the block."""

    def register(server: object) -> None:
        pb_grpc.add_CoordinationServiceServicer_to_server(coordination, server)  # type: ignore[arg-type]

    with mesh(folder) as ours:
        async with (
            ours.serve(register) as served,
            connect(served.address, ours.identity("agent")) as client,
        ):
            agent = reference(engine, mode="claim", slots=slots, drain_timeout=drain)
            agent.desk.set_paused(paused)
            me = pki.own(ours.identity("agent"))
            claim = Claim(agent.desk, engine, "Summarize.", client, me, "demo/docs", LEASE)
            agent.check = claim.check
            agent.on_drain.append(claim.drain)
            async with living(agent, claim.run) as life:
                yield agent, life


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_before_it_claims_it_gives_back_what_its_pod_held(tmp_path):
    coordination = queue(b"one")
    async with claiming(tmp_path, coordination, Engine()):
        await coordination.settled(1)
    assert coordination.given_back == [("demo", "uid-worker", 0)]


async def test_every_item_is_answered(tmp_path):
    coordination = queue(*(f"text {i}".encode() for i in range(7)))
    engine = Engine()
    before = metric("agent_runs_total", status="completed"), metric("agent_claims_granted_total")
    async with claiming(tmp_path, coordination, engine) as (agent, life):
        await coordination.settled(7)
        await agent.ready()
        agent.stop()
        with pytest.raises(UnavailableError, match="draining"):
            await agent.ready()
    assert life.result() is Exit.OK
    assert {i: ack.result for i, ack in coordination.acked.items()} == {
        str(i): f"about text {i}".encode() for i in range(7)
    }
    assert coordination.acked["0"].result_content_type == "text/plain; charset=utf-8"
    after = metric("agent_runs_total", status="completed"), metric("agent_claims_granted_total")
    assert (after[0] - before[0], after[1] - before[1]) == (7, 7)
    assert {order.instruction for order in engine.orders} == {"Summarize."}
    assert agent.run("3").result == "about text 3"


@pytest.mark.parametrize(
    ("payload", "do", "retryable", "after", "words"),
    [
        (b"\xff", None, False, None, "not UTF-8"),
        (b" ", None, False, None, "empty"),
        (b"text", failing(Status.REFUSED, "HTTP 400: no"), False, None, "HTTP 400: no"),
        (b"text", failing(Status.MODEL, "HTTP 503", passes=True), True, None, "HTTP 503"),
        (
            b"text",
            failing(Status.MODEL, "HTTP 429", passes=True, retry_after=timedelta(seconds=7)),
            True,
            7,
            "HTTP 429",
        ),
    ],
)
async def test_a_run_without_an_answer_fails_with_its_reason(tmp_path, payload, do, retryable, after, words):
    coordination = queue(payload)
    engine = Engine(do) if do else Engine()
    async with claiming(tmp_path, coordination, engine) as (agent, life):
        await coordination.settled(1)
    failure = coordination.failed["0"]
    assert words in failure.error
    assert failure.retryable is retryable
    assert failure.HasField("retry_after") is (after is not None)
    assert failure.retry_after.seconds == (after or 0)
    assert life.result() is Exit.OK
    assert agent.run("0").state in (State.FAILED, State.REFUSED)


async def test_an_agent_that_the_model_refuses_gives_everything_back_and_ends(tmp_path):
    coordination = queue(b"one", b"two", b"three")
    engine = Engine(failing(Status.MODEL, "HTTP 401", is_ours=True))
    async with claiming(tmp_path, coordination, engine) as (_, life):
        assert await asyncio.wait_for(asyncio.shield(life), 10) is Exit.INTELLIGENCE
    assert len(coordination.released) == coordination.granted
    assert not coordination.failed
    assert not coordination.acked


async def test_a_drain_finishes_what_is_begun_and_begins_nothing(tmp_path):
    turns = Turns(1)
    coordination = queue(b"one", b"two", b"three")
    async with claiming(tmp_path, coordination, Engine(turns)) as (agent, life):
        await turns.until(2)
        agent.stop()
        for _ in range(2):
            turns.go.release()
    assert life.result() is Exit.OK
    assert set(coordination.acked) == {"0", "1"}
    assert coordination.granted == 2


async def test_a_drain_that_takes_too_long_gives_the_rest_back(tmp_path):
    engine = Engine(forever)
    coordination = queue(b"one", b"two")
    before = metric("agent_claims_released_total")
    async with claiming(tmp_path, coordination, engine, drain=timedelta(milliseconds=50)) as (agent, life):
        for _ in range(2):
            await engine.begun.acquire()
    assert life.result() is Exit.OK
    assert coordination.released == {"0", "1"}
    assert not coordination.failed
    assert metric("agent_claims_released_total") - before == 2
    assert agent.desk.counts == {"drained": 2}


async def test_a_second_stop_does_not_wait(tmp_path):
    engine = Engine(forever)
    coordination = queue(b"one")
    async with claiming(tmp_path, coordination, engine, drain=timedelta(minutes=1)) as (agent, life):
        await engine.begun.acquire()
        agent.stop()
        agent.stop()
    assert life.result() is Exit.OK
    assert coordination.released == {"0"}


@pytest.mark.parametrize(("refusal", "code"), [(NotFoundError("no"), 2), (DeniedError("no"), 6)])
async def test_claims_that_are_refused_end_the_agent(tmp_path, refusal, code):
    coordination = queue(b"one", refusal=refusal)
    async with claiming(tmp_path, coordination, Engine()) as (_, life):
        assert await asyncio.wait_for(asyncio.shield(life), 10) == code


async def test_a_pause_holds_items_and_claims_none_and_a_resume_goes_on(tmp_path):
    turns = Turns(2)
    coordination = queue(b"a", b"b", b"c")
    async with claiming(tmp_path, coordination, Engine(turns)) as (agent, _):
        await turns.until(2)
        pausing = asyncio.create_task(agent.pause("", SOON))
        await agent.desk.until(lambda: agent.desk.paused)
        for _ in range(2):
            turns.go.release()
        runs = await pausing
        assert [run.state for run in runs] == [State.PAUSED, State.PAUSED]
        assert (coordination.granted, len(turns.taken), coordination.settled_now()) == (2, 2, 0)
        await agent.resume("")
        for _ in range(4):
            turns.go.release()
        await coordination.settled(3)
    assert set(coordination.acked) == {"0", "1", "2"}


async def test_a_lame_duck_finishes_items_claims_none_and_claims_again(tmp_path):
    turns = Turns(1)
    coordination = queue(b"a", b"b", b"c", b"d")
    async with claiming(tmp_path, coordination, Engine(turns)) as (agent, _):
        await turns.until(2)
        await agent.lame_duck(True)
        for _ in range(2):
            turns.go.release()
        await coordination.settled(2)
        await agent.desk.until(lambda: not agent.desk.underway())
        assert coordination.granted == 2
        with pytest.raises(UnavailableError, match="lame duck"):
            await agent.ready()
        assert (await agent.lame_duck(False)).ready
        for _ in range(2):
            turns.go.release()
        await coordination.settled(4)
    assert set(coordination.acked) == {"0", "1", "2", "3"}


async def test_a_cancelled_item_is_dead_with_the_reason_and_the_agent_goes_on(tmp_path):
    turns = Turns(1)
    coordination = queue(b"a", b"b")
    async with claiming(tmp_path, coordination, Engine(turns), slots=1) as (agent, _):
        await turns.until(1)
        (run,) = await agent.cancel("0", "by mistake")
        assert run.status is Status.CANCELLED
        await coordination.settled(1)
        turns.go.release()
        await coordination.settled(2)
    assert (coordination.failed["0"].error, coordination.failed["0"].retryable) == ("by mistake", False)
    assert set(coordination.acked) == {"1"}
    events = await told(agent)
    assert events.count("item.claimed") == events.count("item.settled") == 2


async def test_messages_are_served_beside_items(tmp_path):
    turns = Turns(1)
    coordination = queue(b"a")
    async with claiming(tmp_path, coordination, Engine(turns)) as (agent, _):
        await turns.until(1)
        run = await agent.send(Message("hello"))
        await turns.until(2)
        for _ in range(2):
            turns.go.release()
        await coordination.settled(1)
        await agent.desk.until(lambda: agent.run(run.id).state.ended)
    assert agent.run(run.id).result == "about hello"


async def test_messages_and_items_share_the_slots_and_no_item_is_claimed_without_one(tmp_path):
    turns = Turns(1)
    coordination = queue(b"a", b"b", b"c")
    async with claiming(tmp_path, coordination, Engine(turns)) as (agent, _):
        at_once = []
        agent.desk.on_change.append(lambda: at_once.append(len(agent.desk.underway())))
        await agent.send(Message("hello"))
        await turns.until(2)
        with pytest.raises(ExhaustedError):
            await agent.send(Message("too many"))
        for _ in range(5):  # time enough for a claim
            assert agent.check is not None
            await agent.check()
        assert (coordination.granted, (await agent.condition()).free_slots) == (1, 0)
        for _ in range(4):
            turns.go.release()
        await coordination.settled(3)
    assert max(at_once) == 2
    assert set(coordination.acked) == {"0", "1", "2"}
    assert not coordination.released


async def test_a_message_that_takes_the_last_slot_withdraws_the_claim(tmp_path):
    turns = Turns(1)
    coordination = queue(b"a", b"b")
    async with claiming(tmp_path, coordination, Engine(turns)) as (agent, _):
        await turns.until(2)
        for _ in range(2):
            turns.go.release()
        await coordination.settled(2)
        await agent.desk.until(lambda: not agent.desk.underway())
        for _ in range(2):
            await agent.send(Message("hello"))
        await turns.until(4)
        coordination.payloads.append(b"c")
        for _ in range(5):  # time enough for a claim
            assert agent.check is not None
            await agent.check()
        assert coordination.granted == 2
        turns.go.release()
        await turns.until(5)
        for _ in range(2):
            turns.go.release()
        await coordination.settled(3)
    assert set(coordination.acked) == {"0", "1", "2"}


async def test_the_run_is_part_of_the_submitters_trace(tmp_path):
    from opentelemetry import trace

    id = "0af7651916cd43dd8448eb211c80319c"
    seen: list[str] = []

    async def look(order, live):
        seen.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")
        return await failing()(order, live)

    coordination = queue(b"one", trace={"traceparent": f"00-{id}-b7ad6b7169203331-01"})
    async with claiming(tmp_path, coordination, Engine(look)):
        await coordination.settled(1)
    assert seen == [id]


async def test_an_agent_that_was_paused_before_it_could_claim_claims_nothing(tmp_path):
    coordination = queue(b"a")
    async with claiming(tmp_path, coordination, Engine(), paused=True) as (agent, _):
        for _ in range(5):  # time enough for a claim
            assert agent.check is not None
            await agent.check()
        assert coordination.granted == 0
        await agent.resume("")
        await coordination.settled(1)
