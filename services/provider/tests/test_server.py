"""The stand-in as the official client sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from io import BytesIO
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from openai.types.chat import (
    ChatCompletionContentPartTextParam,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
)

from libs.settings import SettingsError, load
from services.provider.server import MAX_BODY_BYTES, Provider
from services.provider.settings import Settings
from services.provider.summary import summarize
from services.provider.wire import CONTEXT_TOKENS, DISCLOSURE, MODEL

TEXT = (
    "The fox saw the grapes on the vine. The grapes hung too high for the fox. It rained elsewhere that day."
)
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}
ASK: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Summarize."},
    {"role": "user", "content": TEXT},
]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    runner = web.AppRunner(
        Provider(Settings(**settings)).application(), access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(**settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(**settings) as url,
        openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as api,
    ):
        yield api


async def test_a_completion_is_the_summary_and_says_what_made_it():
    async with client() as api:
        reply = await api.chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
    completion = reply.parse()
    assert completion.choices[0].message.content == summarize(TEXT)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.system_fingerprint == reply.headers["X-Agentctl-Model"] == DISCLOSURE
    assert "no language model" in DISCLOSURE
    assert completion.usage
    assert (
        completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    )
    assert completion.usage.prompt_tokens == pytest.approx(len(TEXT) / 4, rel=0.2)


async def test_the_same_question_gets_the_same_answer():
    async with client() as api:
        replies = [await api.chat.completions.create(model=MODEL, messages=ASK) for _ in range(3)]
    assert len({reply.choices[0].message.content for reply in replies}) == 1
    assert len({reply.id for reply in replies}) == 3


async def test_a_stream_adds_up_to_the_same_answer():
    async with client() as api:
        stream = await api.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == summarize(TEXT)
    assert len(texts) > 5
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage
    assert all(chunk.system_fingerprint == DISCLOSURE for chunk in chunks)


async def test_max_tokens_cuts_the_answer():
    async with client() as api:
        reply = await api.chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=3)
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content == summarize(TEXT)[:12]
    assert reply.usage
    assert reply.usage.completion_tokens == 3


async def test_what_every_agent_sends_is_taken_and_no_tool_is_called():
    """Also in the second turn of a conversation in which somebody else has called one."""
    called: list[ChatCompletionMessageParam] = [
        *ASK,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ]
    async with client() as api:
        for messages in (ASK, called):
            reply = await api.chat.completions.create(
                model=MODEL,
                messages=messages,
                tools=[TOOL],
                tool_choice="auto",
                parallel_tool_calls=True,
                max_completion_tokens=1000,
                temperature=0.2,
                top_p=0.9,
                seed=1,
                stop=["END"],
                user="somebody",
                metadata={"run": "r"},
            )
            [choice] = reply.choices
            assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
            assert choice.message.content == summarize(TEXT)


async def test_text_parts_are_read():
    parts: list[ChatCompletionContentPartTextParam] = [{"type": "text", "text": TEXT}]
    async with client() as api:
        reply = await api.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])
    assert reply.choices[0].message.content == summarize(TEXT)


async def test_the_models():
    async with client() as api:
        cards = [card async for card in api.models.list()]
        assert [card.id for card in cards] == [MODEL]
        assert (await api.models.retrieve(MODEL)).model_dump()["description"] == DISCLOSURE
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("gpt")


def _bad_requests() -> Iterator[tuple[dict[str, object], str | None, str | None]]:
    good: dict[str, object] = {"model": MODEL, "messages": ASK}
    yield good | {"model": "gpt-9"}, "model", "model_not_found"
    yield {"messages": ASK}, "model", None
    yield {"model": MODEL}, "messages", None
    yield good | {"messages": []}, "messages", None
    yield good | {"messages": [ASK[0]]}, "messages", None
    yield good | {"messages": ["hello"]}, "messages[0]", None
    yield good | {"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role", None
    yield good | {"messages": [{"role": [], "content": "x"}]}, "messages[0].role", None
    yield good | {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", None
    yield (
        good | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
        None,
    )
    yield good | {"n": 2}, "n", "unsupported_parameter"
    yield good | {"tools": {"type": "function"}}, "tools", None
    yield good | {"tools": ["a"]}, "tools", None
    for insisting in ("required", {"type": "function", "function": {"name": "add"}}):
        yield good | {"tools": [TOOL], "tool_choice": insisting}, "tool_choice", "unsupported_parameter"
    yield good | {"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"
    yield good | {"response_format": "text"}, "response_format", None
    yield good | {"max_tokens": 0}, "max_tokens", None
    yield good | {"max_tokens": True}, "max_tokens", None
    yield good | {"stream": "yes"}, "stream", None
    long = [{"role": "user", "content": "x" * (CONTEXT_TOKENS * 4 + 1)}]
    yield good | {"messages": long}, "messages", "context_length_exceeded"


@pytest.mark.parametrize(("body", "param", "code"), list(_bad_requests()))
async def test_a_bad_request_is_refused_by_name(body, param, code):
    async with serving() as url, aiohttp.ClientSession() as http:
        reply = await http.post(f"{url}/chat/completions", json=body)
        error = (await reply.json())["error"]
    assert reply.status == (404 if code == "model_not_found" else 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert reply.headers["X-Agentctl-Model"] == DISCLOSURE


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_refused(body):
    async with serving() as url, aiohttp.ClientSession() as http:
        reply = await http.post(f"{url}/chat/completions", data=body)
        assert (await reply.json())["error"]["type"] == "invalid_request_error"
    assert reply.status == 400


async def test_what_is_not_served_is_refused_in_the_same_shape():
    async with serving() as url, aiohttp.ClientSession() as http:
        for method, path, status in (
            ("GET", "/chat/completions", 405),
            ("POST", "/embeddings", 404),
        ):
            reply = await http.request(method, url + path)
            assert (reply.status, "message" in (await reply.json())["error"]) == (status, True)
        big = await http.post(f"{url}/chat/completions", data=BytesIO(b" " * (MAX_BODY_BYTES + 1)))
        assert (big.status, (await big.json())["error"]["type"]) == (413, "invalid_request_error")


async def test_every_so_many_th_completion_fails():
    body = {"model": MODEL, "messages": ASK}
    async with serving(fail_every=3, fail_status=429) as url, aiohttp.ClientSession() as http:
        replies = [await http.post(f"{url}/chat/completions", json=body) for _ in range(6)]
    assert [reply.status for reply in replies] == [200, 200, 429] * 2
    assert replies[2].headers["Retry-After"] == "1"


async def test_a_key_is_asked_for_when_there_is_one():
    async with client(api_key="right") as api:
        with pytest.raises(openai.AuthenticationError):
            await api.chat.completions.create(model=MODEL, messages=ASK)
        right = api.with_options(api_key="right")
        assert await right.chat.completions.create(model=MODEL, messages=ASK)


async def test_latency_is_spent_side_by_side():
    async with client(latency=timedelta(milliseconds=200)) as api:
        began = time.monotonic()
        await asyncio.gather(*(api.chat.completions.create(model=MODEL, messages=ASK) for _ in range(4)))
        assert 0.2 <= time.monotonic() - began < 0.8


@pytest.mark.parametrize(
    "environ",
    [
        {"PROVIDER_FAIL_EVERY": "-1"},
        {"PROVIDER_FAIL_STATUS": "200"},
        {"PROVIDER_LISTEN": "7480"},
        {"PROVIDER_LATENCY": "1"},
        {"PROVIDER_LATENZ": "1s"},
    ],
)
def test_bad_settings_are_refused(environ):
    with pytest.raises(SettingsError, match=next(iter(environ)).replace("LATENZ", "LATENCY")):
        load(Settings, "PROVIDER_", environ)
