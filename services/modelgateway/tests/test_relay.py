"""Providers that fail, in every way and at every time."""

from __future__ import annotations

import asyncio
import json
import ssl
from datetime import timedelta

import pytest
from hpack import Encoder
from hyperframe.frame import HeadersFrame

from libs.testing import ca, h2

from .world import CHAT, STREAM, StubProvider, WithoutEnd, chunk, completion, endpoint, streamed, whole

STREAMED = {**CHAT, "stream": True}
NOWHERE = "http://127.0.0.1:1/v1"


async def two(world, first: str, **settings):
    """A gateway over a pool whose first endpoint is `first`, and whose second is the provider."""
    await world.pool("main", endpoints=[endpoint("first", first), endpoint("second", world.provider.url)])
    return await world.gateway(**settings)


def by_turns(*responds):
    """The n-th request is answered by the n-th of these, the last one by all that follow."""
    left = list(responds)

    async def respond(seen, writer):
        await (left.pop(0) if len(left) > 1 else left[0])(seen, writer)

    return respond


async def cut(_, writer):
    writer.transport.abort()


async def cut_after_the_head(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    await writer.drain()
    writer.transport.abort()


async def silent(_, writer):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("fails", "kinds"),
    [
        (cut, ("broken_off", "unreachable")),
        (cut_after_the_head, ("broken_off",)),
        (whole(b"{}", 500), ("provider_error",)),
        (whole(b"{}", 503), ("provider_error",)),
        (whole(b"{}", 429), ("rate_limited",)),
        (whole(b"{}", 401), ("credential",)),
        (whole(b"", 302, location="http://169.254.169.254/latest"), ("redirect",)),
        (silent, ("timeout",)),
    ],
)
@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
async def test_before_the_first_byte_the_next_endpoint_is_asked(world, fails, kinds, body):
    good = streamed(*STREAM) if body is STREAMED else whole(completion())
    world.provider.respond = by_turns(fails, good)
    gateway = await two(world, world.provider.url, first_byte_timeout=timedelta(seconds=0.5))
    answer = await gateway.post(body)
    assert answer.status_code == 200
    assert answer.headers["x-agentctl-endpoint"] == "second"
    (record,) = await gateway.records()
    assert (record.attempts, record.endpoint, record.error) == (2, "second", "")
    # alone, it is told
    world.provider.respond = fails
    await world.pool("alone", endpoints=[endpoint("only", world.provider.url)])
    refused = await gateway.post(body, role="user/ann", x_agentctl_pool="alone")
    assert refused.status_code >= 429
    assert (await gateway.records(2))[1].error in kinds
    assert all(each.path == "/v1/chat/completions" for each in world.provider.seen)


async def test_an_endpoint_that_cannot_be_reached_is_ejected_and_not_asked_again_and_again(world):
    gateway = await two(world, NOWHERE)
    for _ in range(5):
        assert (await gateway.post()).headers["x-agentctl-endpoint"] == "second"
    assert [each.attempts for each in await gateway.records(5)] == [2, 2, 2, 1, 1]


async def test_what_is_the_callers_own_fault_is_handed_back_as_it_is(world):
    gateway = await two(world, world.provider.url)
    said = b'{"error": {"message":"no", "odd": 1}}'
    world.provider.respond = whole(said, 400)
    answer = await gateway.post()
    assert (answer.status_code, answer.content) == (400, said)
    assert len(world.provider.seen) == 1
    (record,) = await gateway.records()
    assert (record.error, record.input_tokens, record.output_tokens) == ("refused", 0, 0)


async def test_of_a_provider_that_limits_rates_the_caller_hears_what_it_said(world):
    gateway = await world.gateway()
    world.provider.respond = whole(b'{"error":{"code":"rate_limit_exceeded"}}', 429, retry_after="7")
    answer = await gateway.post()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json() == {"error": {"code": "rate_limit_exceeded"}}


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_after_the_first_byte_the_caller_gets_an_error_event_and_what_was_seen_is_booked(world, path):
    await world.pool(
        "main",
        endpoints=[endpoint("first", world.provider.url), endpoint("second", world.provider.url)],
        budgets=[{"per": "pool", "tokens": 10_000}],
    )
    gateway = await world.gateway()
    words = [chunk("x" * 40), chunk("y" * 44)]
    world.provider.respond = streamed(*words, b"data: {half", dies=True)
    answer = await gateway.post(STREAMED, path=path)
    assert answer.content.startswith(b"".join(words))
    rest = answer.content.removeprefix(b"".join(words))
    assert b"half" not in rest
    assert json.loads(rest.split(b"data: ")[1])["error"]["code"] == "broken_off"
    assert len(world.provider.seen) == 1
    (record,) = await gateway.records()
    assert (record.error, record.estimated, record.attempts) == ("broken_off", True, 1)
    assert record.output_tokens == 2
    assert record.input_tokens == -(-len(json.dumps(STREAMED)) // 4)
    assert await gateway.levels() == {("pool", ""): (record.input_tokens + record.output_tokens, 0)}


async def test_a_stream_that_goes_silent_ends_with_an_error(world):
    async def respond(seen, writer):
        await streamed(chunk("a"))(seen, WithoutEnd(writer))
        await silent(seen, writer)

    world.provider.respond = respond
    gateway = await world.gateway(idle_timeout=timedelta(seconds=0.3))
    answer = await gateway.post(STREAMED)
    assert b'"code":"timeout"' in answer.content
    assert (await gateway.records())[0].error == "timeout"


@pytest.mark.parametrize("piece", [chunk("x" * 1000), b"x" * 1000], ids=["events", "one event"])
async def test_an_endless_stream_is_cut_and_the_provider_hears_of_it(world, piece):
    async def respond(seen, writer):
        await streamed(piece)(seen, WithoutEnd(writer))
        while True:
            await WithoutEnd(writer).chunk(piece)

    world.provider.respond = respond
    gateway = await world.gateway(max_answer=100_000)
    answer = await gateway.post(STREAMED)
    assert answer.content.endswith(b"\n\n")
    assert b'"code":"too_large"' in answer.content[-300:]
    assert len(answer.content) < 110_000
    async with asyncio.timeout(10):
        await world.provider.left.wait()


async def test_an_answer_that_is_too_large_is_refused_and_asked_for_nowhere_else(world):
    gateway = await two(world, world.provider.url, max_answer=1000)
    world.provider.respond = whole(completion("x" * 2000))
    answer = await gateway.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "too_large")
    assert len(world.provider.seen) == 1


@pytest.mark.parametrize("role", ["agent/writer"])
async def test_a_caller_who_leaves_stops_the_provider_and_is_booked_by_what_was_seen(world, role):
    async def respond(seen, writer):
        await streamed(chunk("a"))(seen, WithoutEnd(writer))
        while True:
            await WithoutEnd(writer).chunk(chunk("bb"))
            await asyncio.sleep(0.01)

    world.provider.respond = respond
    await world.pool("main", budgets=[{"per": "agent", "tokens": 10_000}])
    gateway = await world.gateway()
    async with (
        gateway.http(role) as client,
        client.stream("POST", "chat/completions", json=STREAMED) as answer,
    ):
        await anext(answer.aiter_bytes())
    async with asyncio.timeout(20):
        await world.provider.left.wait()
    (record,) = await gateway.records()
    assert (record.error, record.status, record.estimated) == ("left", 499, True)
    assert record.output_tokens >= 1
    assert await gateway.levels() == {("agent", "writer"): (record.input_tokens + record.output_tokens, 0)}


async def test_a_provider_is_believed_by_the_system_or_by_the_file_and_not_otherwise(world, tmp_path):
    served = ca.identity(world.mesh.authority, tmp_path, "/cp/provider", dns_names=["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served.certificate, served.key)
    async with StubProvider.serve(context) as provider:
        named = [endpoint("first", f"https://localhost:{provider.port}/v1")]
        await world.pool("main", endpoints=named)
        trusting = await world.gateway(provider_ca_file=served.root)
        assert (await trusting.post()).status_code == 200
        asked = len(provider.seen)
        wary = await world.gateway()
        assert (await wary.post()).json()["error"]["code"] == "unreachable"
        await world.pool("main", endpoints=[{**named[0], "url": f"https://127.0.0.1:{provider.port}/v1"}])
        async with asyncio.timeout(10):
            while (await trusting.post()).status_code == 200:  # until it has heard of the other name
                asked = len(provider.seen)
        assert len(provider.seen) == asked


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
async def test_a_caller_who_leaves_in_http2_is_heard_of_at_once(world, body):
    patience = timedelta(seconds=3)  # the HTTP client's, with a request whose answer has not begun
    gateway = await world.gateway(first_byte_timeout=patience, idle_timeout=patience)
    asked = asyncio.Event()

    async def respond(seen, writer):
        if body is STREAMED:
            await streamed(chunk("a"))(seen, WithoutEnd(writer))
        asked.set()
        await seen.gone()

    world.provider.respond = respond
    port, caller = int(gateway.serves.edge.rpartition(":")[2]), world.mesh.identity("agent/writer")
    connection = await asyncio.to_thread(h2.Connection, port, caller)
    with connection:
        fields = {":method": "POST", ":scheme": "https", ":path": "/v1/chat/completions", ":authority": "x"}
        head = HeadersFrame(1, Encoder().encode(list(fields.items())), flags=["END_HEADERS"]).serialize()
        request = h2.PREFACE + head + h2.data(json.dumps(body).encode())
        await asyncio.to_thread(connection.say, request)
        async with asyncio.timeout(20):
            await asked.wait()
        await asyncio.to_thread(connection.say, h2.reset(1))
        (record,) = await gateway.records()
    assert (record.error, record.status, record.estimated) == ("left", 499, True)
    async with asyncio.timeout(20):
        await world.provider.left.wait()
