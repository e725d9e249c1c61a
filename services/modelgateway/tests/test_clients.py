"""Stock clients, as they come."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from pydantic import BaseModel

from .world import CHAT, MODEL, chunk, completion, streamed, whole

MESSAGES: Any = CHAT["messages"]


class Answer(BaseModel):
    number: int


def client_of(gateway) -> Any:
    http = httpx2.AsyncClient(verify=gateway.context())
    return openai.AsyncOpenAI(base_url=gateway.url, api_key="none", http_client=http, max_retries=0)


async def test_openai_whole_streamed_tools_and_structured(world):
    gateway = await world.gateway()
    async with client_of(gateway) as client:
        said = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert said.choices[0].message.content == "nine"
        assert said.usage.total_tokens == 10
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        chunks = [each async for each in stream]
        assert "".join(each.choices[0].delta.content for each in chunks) == "nine."
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [each async for each in stream]
        assert chunks[-1].usage.total_tokens == 10
        call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
        world.provider.respond = whole(completion(None, tool_calls=[call]))
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
        said = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[tool])
        assert said.choices[0].message.tool_calls[0].function.arguments == '{"at":"x"}'
        assert world.provider.seen[-1].json["tools"] == [tool]
        world.provider.respond = whole(completion('{"number":9}'))
        parsed = await client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Answer)
        assert parsed.choices[0].message.parsed == Answer(number=9)
        assert [each.id async for each in client.models.list()] == [MODEL, "large-1"]


async def test_openai_sync(world):
    gateway = await world.gateway()

    def ask() -> tuple[str | None, str]:
        http = httpx2.Client(verify=gateway.context())
        with openai.OpenAI(base_url=gateway.url, api_key="none", http_client=http) as client:
            said = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            return said.choices[0].message.content, "".join(
                each.choices[0].delta.content or "" for each in stream
            )

    assert await asyncio.to_thread(ask) == ("nine", "nine.")


async def test_openai_hears_of_a_budget_a_missing_pool_and_a_stream_that_breaks(world):
    await world.pool("tight", budgets=[{"per": "pool", "tokens": 1}])
    gateway = await world.gateway()
    async with client_of(gateway) as client:
        world.provider.respond = streamed(chunk("a"), dies=True)
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in stream:
                pass
        with pytest.raises(openai.NotFoundError):
            await client.with_options(default_headers={"X-Agentctl-Pool": "none"}).chat.completions.create(
                model=MODEL, messages=MESSAGES
            )
    http = httpx2.AsyncClient(verify=gateway.context("user/ann"))
    headers = {"X-Agentctl-Pool": "tight"}
    client = openai.AsyncOpenAI(
        base_url=gateway.url, api_key="none", http_client=http, default_headers=headers
    )
    async with client:
        with pytest.raises(openai.RateLimitError) as caught:  # at once: it does not try again
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert caught.value.code == "insufficient_quota"
    assert len(await gateway.records(2)) == 2


async def test_anthropic(world):
    await world.pool("main", provider="anthropic")
    gateway = await world.gateway()
    message = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "nine"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    world.provider.respond = whole(json.dumps(message).encode())
    http = httpx2.AsyncClient(verify=gateway.context())
    client: Any = anthropic.AsyncAnthropic(
        base_url=gateway.url.removesuffix("/v1"), api_key="none", http_client=http, max_retries=0
    )
    async with client:
        said = await client.messages.create(model=MODEL, max_tokens=10, messages=MESSAGES)
        assert said.content[0].text == "nine"
    (record,) = await gateway.records()
    assert (record.input_tokens, record.output_tokens, record.estimated) == (5, 2, False)
