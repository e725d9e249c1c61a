"""The client against an endpoint that misbehaves on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, Tracer

from libs import telemetry
from services.agent.model import MAX_REPLY_BYTES, Model, connect
from services.agent.run import Answer, Failure, Fault, opening, request

ASK = request("m", opening("Summarize.", "A text."))
REPLY = {"choices": [{"message": {"content": "Short."}, "finish_reason": "stop"}]}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@asynccontextmanager
async def endpoint(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
    key: str = "",
    seconds: float = 5,
    tracer: Tracer | None = None,
) -> AsyncIterator[Model]:
    app = web.Application(client_max_size=4 * 1024 * 1024)
    app.router.add_route("*", "/v1/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        limit = timedelta(seconds=seconds)
        async with connect(f"http://{host}:{port}/v1/", lambda: key, limit, tracer or NoOpTracer()) as model:
            yield model
    finally:
        await runner.cleanup()


async def test_the_request_carries_the_key_and_the_trace():
    seen: list[web.Request] = []

    async def answer(http: web.Request) -> web.Response:
        seen.append(http)
        assert await http.json() == ASK
        return web.json_response(REPLY)

    async with endpoint(answer, key="secret") as model:
        context = telemetry.extract({"traceparent": TRACE})
        with telemetry.tracer().start_as_current_span("item", context):
            assert await model.complete(ASK) == Answer("Short.", finish_reason="stop")
    assert seen[0].path == "/v1/chat/completions"
    assert seen[0].headers["Authorization"] == "Bearer secret"
    assert seen[0].headers["traceparent"].split("-")[1] == TRACE.split("-")[1]


async def test_the_largest_item_fits():
    text = "é" * (512 * 1024)

    async def answer(http: web.Request) -> web.Response:
        assert (await http.json())["messages"][1]["content"] == text
        return web.json_response(REPLY)

    async with endpoint(answer) as model:
        assert isinstance(await model.complete(request("m", opening("Summarize.", text))), Answer)


async def test_without_a_key_none_is_sent():
    async def answer(http: web.Request) -> web.Response:
        assert "Authorization" not in http.headers
        return web.json_response(REPLY)

    async with endpoint(answer) as model:
        assert isinstance(await model.complete(ASK), Answer)


async def test_retry_after_is_found_whatever_its_case():
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"retry-after": "7"})

    async with endpoint(answer) as model:
        failure = await model.complete(ASK)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.retry_after) == ("throttled", timedelta(seconds=7))


async def test_a_slow_answer_is_given_up():
    async def answer(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with endpoint(answer, seconds=0.1) as model:
        failure = await model.complete(ASK)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.fault) == ("timeout", Fault.MODEL)


async def test_an_endless_reply_is_cut_off():
    async def answer(http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(http)
        for _ in range(MAX_REPLY_BYTES // 65536 + 2):
            await response.write(b"x" * 65536)
        return response

    async with endpoint(answer) as model:
        failure = await model.complete(ASK)
    assert isinstance(failure, Failure)
    assert failure.fault is Fault.ITEM


async def test_a_redirect_takes_the_key_nowhere():
    seen: list[str] = []

    async def answer(http: web.Request) -> web.Response:
        seen.append(http.path)
        raise web.HTTPTemporaryRedirect("/v1/elsewhere")

    async with endpoint(answer, key="secret") as model:
        assert isinstance(await model.complete(ASK), Failure)
    assert seen == ["/v1/chat/completions"]


async def test_a_connection_cut_in_the_middle_is_tried_again_later():
    async def answer(http: web.Request) -> web.Response:
        assert http.transport
        http.transport.abort()
        return web.Response()

    async with endpoint(answer) as model:
        failure = await model.complete(ASK)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.fault) == ("unreachable", Fault.MODEL)


async def test_nobody_there(unused_port):
    async with connect(
        f"http://127.0.0.1:{unused_port}/v1", lambda: "", timedelta(seconds=5), NoOpTracer()
    ) as model:
        failure = await model.check()
    assert isinstance(failure, Failure)
    assert failure.kind == "unreachable"


@pytest.mark.parametrize(
    ("status", "useless"), [(200, False), (404, False), (503, False), (401, True), (403, True)]
)
async def test_check_minds_only_what_would_fail_every_item(status, useless):
    async def answer(http: web.Request) -> web.Response:
        assert http.path == "/v1/models"
        return web.Response(status=status)

    async with endpoint(answer) as model:
        assert bool(await model.check()) is useless


async def test_a_key_that_cannot_be_read_is_the_agents_fault():
    def key() -> str:
        raise FileNotFoundError("gone")

    async with connect("http://127.0.0.1:9/v1", key, timedelta(seconds=5), NoOpTracer()) as model:
        failure = await model.complete(ASK)
    assert isinstance(failure, Failure)
    assert failure.fault is Fault.AGENT


async def _spans(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> tuple[ReadableSpan, ...]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with endpoint(answer, tracer=provider.get_tracer("test")) as model:
        await model.complete(ASK)
    provider.shutdown()
    return exporter.get_finished_spans()


async def test_a_call_is_a_span_in_the_words_of_the_conventions():
    async def answer(_: web.Request) -> web.Response:
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        return web.json_response(REPLY | {"id": "c1", "model": "m-1", "usage": usage})

    (span,) = await _spans(answer)
    assert span.name == "chat m"
    assert span.attributes
    port = span.attributes["server.port"]
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-1",
        "gen_ai.response.id": "c1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "server.address": "127.0.0.1",
        "server.port": port,
    }


async def test_a_failed_call_is_a_failed_span():
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=500)

    (span,) = await _spans(answer)
    assert span.attributes
    assert span.attributes["error.type"] == "5xx"
    assert not span.status.is_ok


async def test_a_key_of_two_lines_is_the_agents_fault_and_is_not_told():
    async with connect("http://127.0.0.1:9/v1", lambda: "a\nb", timedelta(seconds=5), NoOpTracer()) as model:
        failure = await model.complete(ASK)
    assert failure == Failure("OPENAI_API_KEY: the key is more than one line of text", "auth", Fault.AGENT)
