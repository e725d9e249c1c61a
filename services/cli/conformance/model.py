"""A scripted model behind an OpenAI-compatible endpoint. It says in each answer that it is no model."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

DISCLOSURE = "scripted by agentctl conformance; no model answered"
_HEADERS = {"X-Agentctl-Model": DISCLOSURE}


@dataclass(frozen=True, slots=True)
class Say:
    """Answers with a text."""

    text: str = "done"
    finish: str = "stop"
    refusal: str = ""
    input_tokens: int = 7
    output_tokens: int = 5


@dataclass(frozen=True, slots=True)
class Use:
    """Asks for a call of a tool."""

    tool: str = "note"
    arguments: dict[str, Any] = field(default_factory=dict)
    input_tokens: int = 11
    output_tokens: int = 3


@dataclass(frozen=True, slots=True)
class Fail:
    """Answers with a status of HTTP."""

    status: int
    message: str = "failure by the script"


Reply = Say | Use | Fail


class Talk:
    """What one run says to the model: found by a word that nobody else says. The last reply is for ever."""

    def __init__(self, replies: tuple[Reply, ...], held: frozenset[int]) -> None:
        self.word = f"conformance-{uuid.uuid4().hex}"
        self.requests: list[dict[str, Any]] = []
        self.broken_off = 0
        """Calls that the agent gave up while they were held."""
        self.answered: list[Reply] = []
        self._replies = replies
        self._held = set(held)
        self._open = asyncio.Event()

    def release(self) -> None:
        """Answers what is held; nothing is from now on."""
        self._held.clear()
        self._open.set()

    async def reply(self, body: dict[str, Any]) -> Reply:
        """The next one, once it is not held."""
        self.requests.append(body)
        number = len(self.requests)
        reply = self._replies[min(number, len(self._replies)) - 1]
        if number in self._held:
            try:
                await self._open.wait()
            except asyncio.CancelledError:
                self.broken_off += 1
                raise
        self.answered.append(reply)
        return reply

    @property
    def texts(self) -> list[str]:
        """Everything that was said in the last request, in order."""
        messages = self.requests[-1].get("messages", []) if self.requests else []
        return [_text(message) for message in messages]


class Model:
    """Answers by script; whoever says no word of a script gets `Say()`."""

    def __init__(self) -> None:
        self.base_url = ""
        self._talks: dict[str, Talk] = {}
        self._other = Talk((Say(),), frozenset())

    def script(self, *replies: Reply, hold: tuple[int, ...] = ()) -> Talk:
        """A conversation of its own. The requests of these numbers, from 1, are held until `release`."""
        talk = Talk(replies or (Say(),), frozenset(hold))
        self._talks[talk.word] = talk
        return talk

    @property
    def answered(self) -> list[Reply]:
        """Every reply that was given, to whomever."""
        talks = (*self._talks.values(), self._other)
        return [reply for talk in talks for reply in talk.answered]

    @property
    def requests(self) -> int:
        """How often it was asked."""
        return sum(len(talk.requests) for talk in (*self._talks.values(), self._other))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers on loopback while the block runs."""
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{id}", self._models)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield
        finally:
            for talk in self._talks.values():
                talk.release()
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        said = json.dumps(body)
        # the latest word counts: a run may have been begun with what another one said
        found = max(self._talks, key=lambda word: said.rfind(word), default="")
        talk = self._talks[found] if found and found in said else self._other
        reply = await talk.reply(body)
        if isinstance(reply, Fail):
            error = {"error": {"message": reply.message, "type": "scripted", "code": None}}
            return web.json_response(error, status=reply.status, headers=_HEADERS)
        return web.json_response(_completion(reply, body), headers=_HEADERS)

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": "scripted", "object": "model", "owned_by": DISCLOSURE}
        return web.json_response({"object": "list", "data": [card], **card}, headers=_HEADERS)


def _completion(reply: Say | Use, body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if isinstance(reply, Use):
        offered = [tool["function"]["name"] for tool in body.get("tools") or []]
        name = next((name for name in offered if name.endswith(reply.tool)), reply.tool)
        function = {"name": name, "arguments": json.dumps(reply.arguments)}
        call = {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
        message["tool_calls"], finish = [call], "tool_calls"
    elif reply.refusal:
        message["refusal"], finish = reply.refusal, reply.finish
    else:
        message["content"], finish = reply.text, reply.finish
    used = {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "system_fingerprint": DISCLOSURE,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": used | {"total_tokens": sum(used.values())},
    }


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)
