"""Calls through the edge: whose they are, what passes, and what they are told."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, generate_latest

from libs import telemetry
from libs.cluster.kinds import AGENT
from libs.cluster.kinds import NAMESPACE as NAMESPACES

from .world import (
    CHAT,
    KEY,
    MODEL,
    MUTE,
    STREAM,
    WithoutEnd,
    chunk,
    completion,
    endpoint,
    event,
    secret,
    streamed,
    whole,
)


async def test_bytes_pass_both_ways_as_they_are(world):
    gateway = await world.gateway()
    body = b'{"model":"small-1","messages":[{"content":"\xc3\xa9 \\n"}],"unknown":{"b":1,"a":[1e400]}}'
    said = (
        b'{ "id":"c1", "odd" : [1.0, 1e5, "\\u00e9"],\n "usage":{"prompt_tokens":7,"completion_tokens":3} }'
    )
    world.provider.respond = whole(said, x_request_id="r-1", set_cookie="a=b")
    answer = await gateway.post(body, openai_beta="b1", x_forwarded_for="10.0.0.1")
    assert answer.content == said
    assert answer.headers["x-request-id"] == "r-1"
    assert answer.headers["x-agentctl-endpoint"] == "first"
    assert "set-cookie" not in answer.headers
    (seen,) = world.provider.seen
    assert seen.body == body
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["openai-beta"] == "b1"
    assert "x-forwarded-for" not in seen.headers


async def test_events_pass_as_they_are_with_unknown_fields_and_odd_line_ends(world):
    gateway = await world.gateway()
    pieces = (
        b": a comment\n\n",
        chunk("ni", odd={"x": [1.0]}),
        b'event: strange\r\ndata: {"a":\r\ndata: 1}\r\n\r\nda',
        b'ta: {"choices":[]',
        b"}\n\n",
        STREAM[3],
        STREAM[4],
    )
    world.provider.respond = streamed(*pieces)
    answer = await gateway.post({**CHAT, "stream": True, "stream_options": {"include_usage": True, "x": 1}})
    assert answer.content == b"".join(pieces)
    assert world.provider.seen[0].json["stream_options"] == {"include_usage": True, "x": 1}
    (record,) = await gateway.records()
    assert (record.input_tokens, record.output_tokens, record.estimated) == (7, 3, False)


async def test_each_event_is_with_the_caller_before_the_provider_makes_the_next(world):
    gateway = await world.gateway()
    heard = asyncio.Event()

    async def respond(seen, writer):
        await streamed()(seen, WithoutEnd(writer))
        for piece in STREAM[:2]:
            await WithoutEnd(writer).chunk(piece)
            await heard.wait()
            heard.clear()
        writer.write(b"0\r\n\r\n")

    world.provider.respond = respond
    async with (
        asyncio.timeout(10),
        gateway.http() as client,
        client.stream("POST", "chat/completions", json={**CHAT, "stream": True}) as answer,
    ):
        pieces = answer.aiter_bytes()
        for piece in STREAM[:2]:
            assert await anext(pieces) == piece
            heard.set()


async def test_usage_is_asked_for_on_streams_and_hidden_again_if_the_caller_did_not_ask(world):
    gateway = await world.gateway()
    answer = await gateway.post({**CHAT, "stream": True, "stream_options": {"other": 1}})
    assert answer.content == b"".join((*STREAM[:3], STREAM[4]))
    assert world.provider.seen[0].json["stream_options"] == {"other": 1, "include_usage": True}
    (record,) = await gateway.records()
    assert (record.input_tokens, record.output_tokens, record.estimated) == (7, 3, False)


async def test_a_model_that_is_absent_is_the_pools_first_and_one_of_no_pool_is_refused(world):
    gateway = await world.gateway()
    assert (await gateway.post({"messages": []})).status_code == 200
    assert world.provider.seen[0].json == {"messages": [], "model": MODEL}
    refused = await gateway.post({**CHAT, "model": "huge"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert len(world.provider.seen) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"small-1","messages":[],"model":"huge"}',
        b'{"model":"huge","messages":[],"mod\\u0065l":"small-1"}',
        b'{"model":"huge", "model":"small-1"}',
    ],
)
async def test_a_second_model_cannot_be_smuggled_past_the_list(world, body):
    gateway = await world.gateway()
    answer = await gateway.post(body)
    assert answer.status_code == 404 or (b"huge" not in world.provider.seen[0].body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model":1}', b"[" * 100_000, b'{"stream":"yes"}', b"\xff"]
)
async def test_what_is_no_request_is_refused(world, body):
    gateway = await world.gateway()
    answer = await gateway.post(body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_pools_of_other_namespaces_are_not_there_and_others_of_ours_are_denied(world):
    await world.cluster.create({"apiVersion": "v1", "kind": NAMESPACES.name, "metadata": {"name": "other"}})
    await world.pool("theirs", namespace="other")
    await world.pool("spare")
    await world.put(AGENT, "mute", MUTE)
    gateway = await world.gateway()

    async def status(role: str, pool: str, namespace: str = "demo"):
        answer = await gateway.post(role=role, x_agentctl_pool=pool, namespace=namespace)
        return answer.status_code

    assert await status("agent/writer", "main") == 200
    assert await status("agent/writer", "demo/main") == 200
    assert await status("agent/crew", "") == 200
    assert await status("agent/crew-coordinator", "") == 200
    assert await status("agent/writer", "spare") == 403
    assert await status("agent/writer", "nowhere") == 404
    assert await status("agent/writer", "theirs") == 404
    assert await status("agent/writer", "other/theirs") == 404
    assert await status("agent/writer", "other/nowhere") == 404
    assert await status("agent/mute", "") == 403
    assert await status("agent/nobody", "") == 403
    assert await status("agent/nobody-coordinator", "") == 403
    assert await status("user/ann", "spare") == 200
    assert await status("user/ann", "") == 400
    assert await status("user/ann", "other/theirs") == 404
    assert await status("administrator", "other/theirs") == 502  # its Secret is not there
    await world.cluster.create(secret(namespace="other"))
    async with asyncio.timeout(10):
        while await status("administrator", "other/theirs") != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await status("administrator", "demo/spare") == 200
    assert await status("producer/p", "main") == 403
    assert await status("cp/scaler", "main") == 403


async def test_headers_that_name_another_agent_mean_nothing_beside_a_certificate(world):
    await world.put(AGENT, "rich", {**MUTE, "model": {"pool": "spare"}})
    await world.pool("spare")
    gateway = await world.gateway()
    before = REGISTRY.get_sample_value("agentctl_edge_ignored_names_total") or 0
    answer = await gateway.post(x_agentctl_agent="rich", x_agentctl_namespace="demo", x_agentctl_pool="spare")
    assert answer.status_code == 403
    assert (REGISTRY.get_sample_value("agentctl_edge_ignored_names_total") or 0) == before + 1
    assert (await gateway.post(x_agentctl_agent="rich")).status_code == 200
    assert (await gateway.records())[-1].agent == "writer"


async def test_without_a_certificate_only_the_bearer_counts_and_only_with_a_name(world, tmp_path):
    token = tmp_path / "bearer"
    token.write_text("front-proxy-token\n")
    open_to_proxy = await world.gateway(bearer_file=token)
    closed = await world.gateway()
    named = {"x_agentctl_agent": "writer", "x_agentctl_namespace": "demo"}
    good = {"authorization": "Bearer front-proxy-token"}
    assert (await open_to_proxy.post(role=None, **good, **named)).status_code == 200
    assert world.provider.seen[0].headers["authorization"] == f"Bearer {KEY}"
    for gateway, headers in (
        (open_to_proxy, good),
        (open_to_proxy, named),
        (open_to_proxy, {**named, "authorization": "Bearer front-proxy-tokeN"}),
        (open_to_proxy, {**named, "authorization": "Bearer"}),
        (open_to_proxy, {**good, **named, "x_agentctl_namespace": "a/b"}),
        (closed, {**good, **named}),
        (closed, {**named, "authorization": "Bearer"}),
        (closed, {}),
    ):
        answer = await gateway.post(role=None, **headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert len(world.provider.seen) == 1


async def test_who_is_put_on_the_deny_list_is_let_in_no_more_and_its_stream_ends(world):
    gateway = await world.gateway()
    denied = asyncio.Event()

    async def respond(seen, writer):
        await streamed(chunk("a"))(seen, WithoutEnd(writer))
        await denied.wait()
        while True:
            await WithoutEnd(writer).chunk(chunk("b"))
            await asyncio.sleep(0.05)

    world.provider.respond = respond
    async with (
        asyncio.timeout(20),
        gateway.http() as client,
        client.stream("POST", "chat/completions", json={**CHAT, "stream": True}) as answer,
    ):
        pieces = answer.aiter_bytes()
        assert await anext(pieces) == chunk("a")
        (gateway.identity.folder / "denied").write_text(world.mesh.principal("agent/writer").id)
        denied.set()
        rest = b"".join([piece async for piece in pieces])
    assert rest.endswith(b"\n\n")
    last = json.loads(rest.split(b"data: ")[-1])
    assert last["error"]["code"] == "invalid_api_key"
    assert (await gateway.post()).status_code == 401


async def test_models_are_those_of_the_pool(world):
    gateway = await world.gateway()
    async with gateway.http() as client:
        listed = (await client.get("models")).json()
        assert [each["id"] for each in listed["data"]] == [MODEL, "large-1"]
        assert (await client.get("models/large-1")).json()["owned_by"] == "main"
        assert (await client.get("models/huge")).status_code == 404
        assert (await client.get("nothing")).json()["error"]["code"] == "unknown_url"


async def test_a_credential_is_where_the_endpoint_wants_it_and_follows_its_secret(world):
    credential = {"secretRef": {"name": "key", "key": "token"}}
    gateway = await world.gateway()
    for credential_of, header, value in (
        (credential, "authorization", f"Bearer {KEY}"),
        ({**credential, "header": "api-key"}, "api-key", KEY),
    ):
        await world.pool("main", endpoints=[endpoint("first", world.provider.url, credential=credential_of)])

        def is_there(header=header, value=value):
            return world.provider.seen[-1].headers.get(header) == value

        await _until(gateway, is_there)
    await world.pool(
        "main",
        endpoints=[
            {**endpoint("first", f"{world.provider.url}?v=1"), "credential": {**credential, "query": "key"}}
        ],
    )
    await _until(gateway, lambda: world.provider.seen[-1].path == f"/v1/chat/completions?v=1&key={KEY}")
    await world.cluster.apply(secret(value="another"), "test")
    await _until(gateway, lambda: world.provider.seen[-1].path.endswith("key=another"))
    assert all("x-agentctl" not in name for each in world.provider.seen for name in each.headers)


async def _until(gateway, look) -> None:
    async with asyncio.timeout(10):
        while (await gateway.post()).status_code != 200 or not look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_credential_is_in_no_log_metric_or_error(world, caplog):
    caplog.set_level(logging.DEBUG)
    gateway = await world.gateway()
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
    for status in (200, 400, 401, 403, 404, 429, 500):
        world.provider.respond = whole(echo if status >= 400 else completion(), status)
        answer = await gateway.post()
        assert KEY not in answer.text
        assert KEY not in str(answer.headers)
        assert answer.status_code not in (401, 403)
    world.provider.respond = streamed(chunk("x"), dies=True)
    assert KEY not in (await gateway.post({**CHAT, "stream": True})).text
    credential = {"secretRef": {"name": "key", "key": "token"}, "query": "key"}
    for url in ("http://127.0.0.1:1/v1", world.provider.url):
        await world.pool("main", endpoints=[{**endpoint("first", url), "credential": credential}])
        for _ in range(3):
            assert KEY not in (await gateway.post()).text
    await gateway.records(8)
    assert KEY not in caplog.text
    assert KEY not in generate_latest().decode()
    assert KEY not in str((await gateway.store.calls("demo")).records)


async def test_messages_pass_to_providers_that_speak_them(world):
    await world.pool("main", provider="anthropic")
    gateway = await world.gateway()
    pieces = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":5,"cache_read_input_tokens":2,"output_tokens":1}}}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":9}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    )
    world.provider.respond = streamed(*pieces)
    body = {**CHAT, "max_tokens": 10, "stream": True}
    answer = await gateway.post(body, path="messages", anthropic_beta="b1")
    assert answer.content == b"".join(pieces)
    (seen,) = world.provider.seen
    assert seen.json == body
    assert (seen.headers["x-api-key"], seen.headers["anthropic-beta"]) == (KEY, "b1")
    assert "authorization" not in seen.headers
    (record,) = await gateway.records()
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (7, 9, 2)
    refused = await gateway.post()
    assert refused.status_code == 400
    assert (await gateway.post({"x": 1, "model": "huge"}, path="messages")).json()["type"] == "error"


async def test_responses_and_embeddings_are_metered_too(world):
    gateway = await world.gateway()
    world.provider.respond = whole(b'{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}')
    assert (await gateway.post({"input": "x"}, path="embeddings")).status_code == 200
    usage = {"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 4}}
    world.provider.respond = streamed(
        event(type="response.created", response={"usage": None}),
        event(type="response.completed", response={"usage": usage}),
    )
    assert (await gateway.post({"input": "x", "stream": True}, path="responses")).status_code == 200
    assert "stream_options" not in world.provider.seen[-1].json
    first, second = await gateway.records(2)
    assert (first.input_tokens, first.output_tokens, first.estimated) == (8, 0, False)
    assert (second.input_tokens, second.output_tokens, second.cached_tokens) == (5, 6, 4)


async def test_a_span_says_what_conventions_want_and_nothing_of_what_was_said(world, monkeypatch):
    exporter, spans = InMemorySpanExporter(), TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "tracing", True)
    monkeypatch.setattr(telemetry, "tracer", lambda: spans.get_tracer("test"))
    gateway = await world.gateway()
    for body in (CHAT, {**CHAT, "stream": True}):
        assert (await gateway.post(body)).status_code == 200
    await gateway.records(2)
    told = [each for each in exporter.get_finished_spans() if each.name == f"chat {MODEL}"]
    assert [dict(each.attributes or {}) for each in told] == [
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": MODEL,
            "gen_ai.request.stream": is_streamed,
            "agentctl.model_pool": "demo/main",
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3,
            "agentctl.model_endpoint": "first",
        }
        for is_streamed in (False, True)
    ]
    assert all("nine" not in str(each.to_json()) for each in exporter.get_finished_spans())


async def test_metrics_count_by_pool_endpoint_and_models_of_the_pool(world):
    await world.pool("counted")
    gateway = await world.gateway()
    assert (await gateway.post(role="user/ann", x_agentctl_pool="counted")).status_code == 200
    await gateway.records()
    labels = {"namespace": "demo", "pool": "counted", "endpoint": "first", "model": MODEL}
    usage = "gen_ai_client_inference_usage"
    assert REGISTRY.get_sample_value(f"{usage}_input_tokens_total", labels) == 7
    assert REGISTRY.get_sample_value(f"{usage}_output_tokens_total", labels) == 3
    first = {name: value for name, value in labels.items() if name != "model"}
    assert REGISTRY.get_sample_value("gen_ai_server_time_to_first_token_seconds_count", first) == 1
