"""A model that says what a script tells it to, behind an OpenAI-compatible endpoint on loopback.

It runs in a thread, so that a test can hold it, let it go and look at what it was asked. Every script has an
endpoint of its own. What it says depends only on how many turns the conversation has had: an agent that
begins anew is told the same again. Each answer says that it is scripted.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

INPUT_TOKENS, OUTPUT_TOKENS = 10, 5
"""Of every answer."""

_DISCLOSURE = {"X-Agentctl-Model": "scripted by a test; no model answered"}


@dataclass(frozen=True, slots=True)
class Say:
    """Answers with a text."""

    text: str = "Done."
    finish: str = "stop"
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """Asks for a call of a tool, by its own name."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """Answers with a status of HTTP."""

    status: int
    code: str = ""


Reply = Say | Use | Fail

T = TypeVar("T")


class Script:
    """The replies of the turns of every conversation; the last one is for all that follow."""

    def __init__(self, replies: tuple[Reply, ...], url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.asked: list[dict[str, Any]] = []
        """Every request, when it has come."""
        self.held = 0
        """Requests that wait now."""
        self.broken_off = 0
        """Requests whose asker went away while they waited."""
        self._replies = replies
        self._loop = loop
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Answers nobody from now on."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        """Answers whoever waits, and everybody from now on."""
        self._loop.call_soon_threadsafe(self._open.set)

    def texts(self) -> list[str]:
        """What the user's side said last in each request."""
        return [
            next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user")
            for body in self.asked
        ]

    async def reply(self, body: dict[str, Any]) -> Reply:
        """The one for this turn, once nothing holds it."""
        self.asked.append(body)
        if not self._open.is_set():
            self.held += 1
            try:
                await self._open.wait()
            except asyncio.CancelledError:
                self.broken_off += 1
                raise
            finally:
                self.held -= 1
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        reply: Reply = self._replies[min(turn, len(self._replies) - 1)]
        return reply


class Model:
    """The scripts, by name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.port = 0
        self._scripts: dict[str, Script] = {}

    def script(self, *replies: Reply) -> Script:
        """A script of its own, at a URL of its own."""
        name = uuid.uuid4().hex[:8]
        script = Script(replies or (Say(),), f"http://127.0.0.1:{self.port}/{name}/v1", self.loop)
        self._scripts[name] = script
        return script

    async def complete(self, http: web.Request) -> web.Response:
        """POST /chat/completions of a script."""
        script, body = self._scripts[http.match_info["script"]], await http.json()
        reply = await script.reply(body)
        if isinstance(reply, Fail):
            error = {"message": "as the script says", "type": "scripted", "code": reply.code or None}
            return web.json_response({"error": error}, status=reply.status, headers=_DISCLOSURE)
        return web.json_response(_completion(reply, body), headers=_DISCLOSURE)

    async def models(self, _: web.Request) -> web.Response:
        """GET /models of a script."""
        return web.json_response({"object": "list", "data": []}, headers=_DISCLOSURE)


@contextmanager
def scripted() -> Iterator[Model]:
    """A model while the block runs."""
    with loop_beside() as loop:
        model, runners = Model(loop), list[web.AppRunner]()

        async def serve() -> None:
            app = web.Application(client_max_size=16 * 1024 * 1024)
            app.router.add_post("/{script}/v1/chat/completions", model.complete)
            app.router.add_get("/{script}/v1/models", model.models)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            model.port = runner.addresses[0][1]

        async def end() -> None:
            for runner in runners:
                await runner.cleanup()

        try:
            wait_for(loop, serve)
            yield model
        finally:
            wait_for(loop, end)


@contextmanager
def loop_beside() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own while the block runs; what is left in it is cancelled then."""
    found: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def live() -> None:
        stop = asyncio.Event()
        found.put((asyncio.get_running_loop(), stop))
        await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(live(),), daemon=True)
    thread.start()
    loop, stop = found.get()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def wait_for(loop: asyncio.AbstractEventLoop, what: Callable[[], Awaitable[T]]) -> T:
    """Runs it there, and waits for it here."""

    async def run() -> T:
        return await what()

    return asyncio.run_coroutine_threadsafe(run(), loop).result(30)


def _completion(reply: Say | Use, body: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if isinstance(reply, Use):
        offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
        name = next((name for name in offered if name.endswith(reply.tool)), reply.tool)
        function = {"name": name, "arguments": json.dumps(reply.arguments)}
        call = {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
        message["tool_calls"], finish = [call], "tool_calls"
    else:
        finish = reply.finish
        message |= {"content": reply.text, "refusal": reply.refusal}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": INPUT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        },
    }
