"""The stand-in as a real process in a test, and the client that speaks to it."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from .foreign import WAIT, Authority, Model, ToolServer

PROGRAM = Path(__file__).parents[1] / "agentd"


class Agent:
    """One process of the stand-in."""

    def __init__(self, process: asyncio.subprocess.Process, client: ssl.SSLContext) -> None:
        self.process = process
        self.client = client
        self.events: list[dict[str, Any]] = []
        self.stderr = ""
        self._news = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            line = raw.decode()
            self.stderr += line
            async with self._news:
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                self._news.notify_all()

    async def event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Waits for the so-manieth event of a name."""

        def found() -> list[dict[str, Any]]:
            return [event for event in self.events if event["event"] == name]

        async with asyncio.timeout(WAIT), self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]

    async def exit(self) -> tuple[int, str]:
        """Its exit code and what it wrote to stdout."""
        assert self.process.stdout is not None
        out = await asyncio.wait_for(self.process.stdout.read(), WAIT)
        await asyncio.wait_for(asyncio.gather(self.process.wait(), self._reader), WAIT)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode()

    async def kill(self) -> None:
        """Ends it if it has not ended, and lets go of its pipes."""
        with anyio.CancelScope(shield=True):
            if self.process.returncode is None:
                self.process.kill()
            await self.exit()

    async def post(self, body: Any, **headers: str) -> aiohttp.ClientResponse:
        """A raw POST of /mcp."""
        return await self.request("POST", data=json.dumps(body), headers=headers)

    async def request(
        self, verb: str, client: ssl.SSLContext | None = None, **how: Any
    ) -> aiohttp.ClientResponse:
        """Any call of /mcp, with our certificate or another; the answer is read."""
        address = (await self.event("mcp.serving"))["addr"]
        async with (
            aiohttp.ClientSession() as http,
            http.request(verb, f"https://{address}/mcp", ssl=client or self.client, **how) as answer,
        ):
            await answer.read()
        return answer

    @asynccontextmanager
    async def stream(
        self, method: str, params: dict[str, Any]
    ) -> AsyncIterator[Callable[[], Coroutine[Any, Any, dict[str, Any] | None]]]:
        """Opens a stream; each call is its next frame, None is its end."""
        address = (await self.event("mcp.serving"))["addr"]
        body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"https://{address}/mcp", ssl=self.client, json=body) as answer,
        ):
            assert answer.content_type == "text/event-stream"

            async def frame() -> dict[str, Any] | None:
                async with asyncio.timeout(WAIT):
                    async for line in answer.content:
                        if line.startswith(b"data: "):
                            found: dict[str, Any] = json.loads(line[6:])
                            return found
                return None

            yield frame

    async def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """A JSON-RPC call: the whole answer."""
        answer = await self.post({"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}})
        body: dict[str, Any] = await answer.json()
        assert body["id"] == 7
        return body

    async def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        body = await self.call(method, params)
        assert "error" not in body, body
        result: dict[str, Any] = body["result"]
        return result

    async def code(self, method: str, params: dict[str, Any] | None = None) -> int:
        """The code of a call that is refused."""
        code: int = (await self.call(method, params))["error"]["code"]
        return code

    async def resource(self, uri: str) -> dict[str, Any]:
        contents = (await self.result("resources/read", {"uri": uri}))["contents"]
        body: dict[str, Any] = json.loads(contents[0]["text"])
        return body

    async def send(self, text: str, *, wait: bool = False) -> dict[str, Any]:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
        configuration = {"configuration": {"returnImmediately": True}}
        result = await self.result("SendMessage", {"message": message} | ({} if wait else configuration))
        task: dict[str, Any] = result["task"]
        return task

    async def task(self, task_id: str, state: str) -> dict[str, Any]:
        """Waits until a task is in a state, by asking."""
        async with asyncio.timeout(WAIT):
            while True:
                task = await self.result("GetTask", {"id": task_id})
                if task["status"]["state"] == state:
                    return task
                await asyncio.sleep(0.02)

    async def plain(self, path: str) -> tuple[int, str]:
        """A GET of the plain port."""
        address = (await self.event("metrics.serving"))["addr"]
        async with aiohttp.ClientSession() as http, http.get(f"http://{address}{path}") as answer:
            return answer.status, await answer.text()


class Lab:
    """Starts agents; all that it started has ended when the test has."""

    def __init__(self, folder: Path, model: Model, tools: ToolServer, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.model = model
        self.tools = tools
        self.authority = Authority(folder)
        self.server = self.authority.leaf("server")
        self._stack = stack

    def client(self, authority: Authority | None = None, name: str | None = "client") -> ssl.SSLContext:
        """A client's context that believes our authority, with a certificate by the given one or none."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if name is not None:
            leaf = (authority or self.authority).leaf(name)
            context.load_cert_chain(leaf / "tls.crt", leaf / "tls.key")
        return context

    @property
    def serving(self) -> list[str]:
        """Flags of an agent that listens and has the plain port."""
        return [
            *("--serve-mcp", "https://127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"),
            *("--serve-cert", f"{self.server}/tls.crt", "--serve-key", f"{self.server}/tls.key"),
            *("--serve-client-ca", str(self.authority.file), "--standin-stream-close", "300ms"),
        ]

    async def start(self, *flags: str, **environ: str) -> Agent:
        """With these flags and nothing else of ours, apart from the environment given."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            *flags,
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"} | environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        agent = Agent(process, self.client())
        self._stack.push_async_callback(agent.kill)
        return agent

    async def run(self, *flags: str) -> Agent:
        """With the model, and a task."""
        return await self.start("--instruction", "Do it.", "--intelligence", self.model.url, *flags)

    async def idle(self, *flags: str) -> Agent:
        """A reactive agent without a server that could push: it serves, and is otherwise idle."""
        agent = await self.run("--mode", "reactive", "--subscribe", "x://y", *self.serving, *flags)
        await agent.event("proc.ready")
        return agent
