"""An OpenAI-compatible endpoint that says what it is told to say, one reply after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP reply. `hangs`: it never comes; `waits`: for `Provider.go`; `breaks`: the connection does."""

    body: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False
    waits: bool = False
    breaks: bool = False


HANGS, BREAKS = Reply(hangs=True), Reply(breaks=True)


def says(
    text: str = "",
    *calls: tuple[str, Any],
    tokens: tuple[int, int] = (10, 5),
    finish: str = "",
    **message: Any,
) -> Reply:
    """An answer, or with `calls` (a tool's name; its arguments, or text that is to be taken for them) a wish
    to have tools called, as call_0, call_1 and so on."""
    body: dict[str, Any] = {"role": "assistant", "content": text or None, **message}
    if calls:
        body["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": it if isinstance(it, str) else json.dumps(it)},
            }
            for number, (name, it) in enumerate(calls)
        ]
    choice = {"index": 0, "message": body, "finish_reason": finish or ("tool_calls" if calls else "stop")}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return Reply(
        {"id": "c", "object": "chat.completion", "model": "m-1", "choices": [choice], "usage": usage}
    )


def fails(status: int, code: str = "", **headers: str) -> Reply:
    """An error in OpenAI's shape. `retry_after="3"` is the header of that name."""
    body = {"error": {"message": "because", "type": "error", "code": code or None}}
    return Reply(body, status, {name.replace("_", "-").title(): value for name, value in headers.items()})


@dataclass
class Provider:
    """The endpoint: what it still has to say, the last of which it repeats, and what it was asked."""

    replies: list[Reply | Callable[[dict[str, Any]], Reply]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @property
    def heard(self) -> Sequence[str]:
        """The results of tools in the last request, in order."""
        return [each["content"] for each in self.asked[-1]["messages"] if each["role"] == "tool"]

    async def answer(self, http: web.Request) -> web.StreamResponse:
        self.asked.append(await http.json())
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if callable(reply):
            reply = reply(self.asked[-1])
        if reply.hangs:
            self.hung.set()
            await asyncio.Event().wait()
        if reply.waits:
            await self.go.wait()
        if reply.breaks:
            assert http.transport
            http.transport.abort()
        return web.json_response(reply.body, status=reply.status, headers=reply.headers)


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": []})


@asynccontextmanager
async def provider(*replies: Reply | Callable[[dict[str, Any]], Reply]) -> AsyncIterator[Provider]:
    """Such an endpoint, on loopback, while the block runs."""
    it = Provider(list(replies))
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", it.answer)
    app.router.add_get("/v1/models", _models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield it
    finally:
        await runner.cleanup()
