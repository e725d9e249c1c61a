"""The agent against a model and a coordination service that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from libs import pki, telemetry
from libs.errors import DeniedError, NotFoundError, UnavailableError
from libs.exits import Exit
from libs.testing.mesh import mesh
from libs.work import connect
from services.agent import model
from services.agent.loop import Agent
from services.agent.settings import Settings

from .coordination import Coordination, queue

SETTINGS = Settings(
    queue="demo/docs",
    model="m",
    base_url="http://127.0.0.1:9/v1",
    tls_dir=Path(),
    instruction="Summarize.",
    slots=2,
    start_timeout=timedelta(seconds=0.5),
)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def agent(
    folder: Path, coordination: Coordination, answer: Answer | None, settings: Settings = SETTINGS
) -> AsyncIterator[Agent]:
    """An agent between the two; with no answer there is nobody at the model's address."""
    app = web.Application(client_max_size=4 * 1024 * 1024)
    if answer:
        app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    if answer is None:
        await runner.cleanup()

    def register(server: object) -> None:
        pb_grpc.add_CoordinationServiceServicer_to_server(coordination, server)  # type: ignore[arg-type]

    with mesh(folder) as ours:
        async with (
            ours.serve(register) as served,
            connect(served.address, ours.identity("agent")) as client,
            model.connect(
                f"http://{host}:{port}/v1", lambda: "key", timedelta(seconds=5), telemetry.tracer()
            ) as endpoint,
        ):
            try:
                yield Agent(settings, settings.prompt(), client, endpoint, pki.own(ours.identity("agent")))
            finally:
                await runner.cleanup()


@asynccontextmanager
async def running(it: Agent) -> AsyncIterator[asyncio.Task[Exit]]:
    """It runs in the block, and has ended after it."""
    run = asyncio.create_task(it.run())
    try:
        yield run
        async with asyncio.timeout(10):
            await run
    finally:
        run.cancel()


async def echo(http: web.Request) -> web.Response:
    """Answers the document itself."""
    text = (await http.json())["messages"][1]["content"]
    return web.json_response(
        {
            "choices": [{"message": {"content": f"about {text}"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 3},
        }
    )


def failing(status: int, **headers: str) -> Answer:
    """Answers with an error."""

    async def answer(http: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)

    return answer


class Held:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.let_go = asyncio.Event()

    async def answer(self, http: web.Request) -> web.Response:
        self.asked.release()
        await self.let_go.wait()
        return await echo(http)


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_before_it_claims_it_gives_back_what_its_pod_held(tmp_path):
    coordination = queue(b"one")
    async with agent(tmp_path, coordination, echo) as it, running(it):
        await coordination.settled(1)
        it.stop()
    assert coordination.given_back == [("demo", "uid-worker", 0)]


async def test_every_item_is_answered(tmp_path):
    coordination = queue(*(f"text {i}".encode() for i in range(7)))
    before = metric("agent_items_total", outcome="completed"), metric("agent_tokens_total", type="in")
    async with agent(tmp_path, coordination, echo) as it, running(it) as run:
        await coordination.settled(7)
        await it.ready()
        it.stop()
        with pytest.raises(UnavailableError, match="draining"):
            await it.ready()
    assert run.result() is Exit.OK
    assert {i: ack.result for i, ack in coordination.acked.items()} == {
        str(i): f"about text {i}".encode() for i in range(7)
    }
    assert coordination.acked["0"].result_content_type == "text/plain; charset=utf-8"
    after = metric("agent_items_total", outcome="completed"), metric("agent_tokens_total", type="in")
    assert (after[0] - before[0], after[1] - before[1]) == (7, 70)


@pytest.mark.parametrize(
    ("payload", "answer", "retryable", "after", "words"),
    [
        (b"\xff", echo, False, None, "not UTF-8"),
        (b"text", failing(400), False, None, "HTTP 400: no"),
        (b"text", failing(503), True, None, "HTTP 503"),
        (b"text", failing(429, **{"Retry-After": "7"}), True, 7, "HTTP 429"),
    ],
)
async def test_a_run_without_an_answer_fails_with_its_reason(
    tmp_path, payload, answer, retryable, after, words
):
    coordination = queue(payload)
    async with agent(tmp_path, coordination, answer) as it, running(it) as run:
        await coordination.settled(1)
        it.stop()
    failure = coordination.failed["0"]
    assert words in failure.error
    assert failure.retryable is retryable
    assert failure.HasField("retry_after") is (after is not None)
    assert failure.retry_after.seconds == (after or 0)
    assert run.result() is Exit.OK


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_an_agent_that_the_model_refuses_gives_everything_back_and_ends(tmp_path, status):
    coordination = queue(b"one", b"two", b"three")
    async with agent(tmp_path, coordination, failing(status)) as it, running(it) as run:
        pass
    assert run.result() is Exit.INTELLIGENCE
    assert len(coordination.released) == coordination.granted
    assert not coordination.failed
    assert not coordination.acked


async def test_a_drain_finishes_what_is_begun_and_begins_nothing(tmp_path):
    held = Held()
    coordination = queue(b"one", b"two", b"three")
    async with agent(tmp_path, coordination, held.answer) as it, running(it) as run:
        for _ in range(SETTINGS.slots):
            await held.asked.acquire()
        it.stop()
        held.let_go.set()
    assert run.result() is Exit.OK
    assert set(coordination.acked) == {"0", "1"}
    assert coordination.granted == 2


async def test_a_drain_that_takes_too_long_gives_the_rest_back(tmp_path):
    held = Held()
    coordination = queue(b"one", b"two")
    settings = replace(SETTINGS, drain_timeout=timedelta(milliseconds=50))
    before = metric("agent_claims_released_total")
    async with agent(tmp_path, coordination, held.answer, settings) as it, running(it) as run:
        for _ in range(SETTINGS.slots):
            await held.asked.acquire()
        it.stop()
    assert run.result() is Exit.OK
    assert coordination.released == {"0", "1"}
    assert metric("agent_claims_released_total") - before == 2


async def test_a_second_stop_does_not_wait(tmp_path):
    held = Held()
    coordination = queue(b"one")
    async with agent(tmp_path, coordination, held.answer) as it, running(it) as run:
        await held.asked.acquire()
        it.stop()
        it.stop()
    assert run.result() is Exit.OK
    assert coordination.released == {"0"}


async def test_a_model_that_stays_away_ends_the_start(tmp_path):
    coordination = queue(b"one")
    async with agent(tmp_path, coordination, None) as it, running(it) as run:
        with pytest.raises(UnavailableError, match="starting"):
            await it.ready()
    assert run.result() is Exit.INTELLIGENCE
    assert coordination.granted == 0


async def test_a_stop_during_the_start_is_a_clean_one(tmp_path):
    settings = replace(SETTINGS, start_timeout=timedelta(minutes=1))
    async with agent(tmp_path, queue(b"one"), None, settings) as it, running(it) as run:
        it.stop()
    assert run.result() is Exit.OK


@pytest.mark.parametrize(("refusal", "code"), [(NotFoundError("no"), 2), (DeniedError("no"), 6)])
async def test_claims_that_are_refused_end_the_agent(tmp_path, refusal, code):
    coordination = queue(b"one", refusal=refusal)
    async with agent(tmp_path, coordination, echo) as it, running(it) as run:
        pass
    assert run.result() == code


async def test_coordination_that_stays_away_ends_the_start(tmp_path, unused_port):
    async def answer(http: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    with mesh(tmp_path) as ours:
        async with (
            connect(f"127.0.0.1:{unused_port}", ours.identity("agent")) as client,
            model.connect(
                f"http://{host}:{port}/v1", lambda: "", timedelta(seconds=5), telemetry.tracer()
            ) as endpoint,
        ):
            it = Agent(SETTINGS, "Summarize.", client, endpoint, pki.own(ours.identity("agent")))
            async with running(it) as run:
                pass
    await runner.cleanup()
    assert run.result() is Exit.SERVER


async def test_the_model_sees_the_submitters_trace(tmp_path):
    trace = "0af7651916cd43dd8448eb211c80319c"
    coordination = queue(b"one", trace={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    seen: list[str] = []

    async def answer(http: web.Request) -> web.Response:
        seen.append(http.headers["traceparent"].split("-")[1])
        return await echo(http)

    async with agent(tmp_path, coordination, answer) as it, running(it):
        await coordination.settled(1)
        it.stop()
    assert seen == [trace]
