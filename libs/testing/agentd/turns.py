"""One run: ask the model, do its tool calls, ask again; a reply without tool calls is the answer.

Cancel, pause and every limit act between turns only: before a model call, never in one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from dataclasses import dataclass, field

import aiohttp

from . import exits
from .exits import Json
from .journal import Journal
from .metrics import Metrics
from .model import Model, ModelError, Reply, ToolCall
from .options import Options
from .tools import McpError, ToolServer

_SYSTEM = (
    "You are an autonomous agent. Work on the task with the tools that you are offered."
    " When it is done, reply with the result and call no tool."
)
_OWN_TOOLS = (
    "subagent.spawn",
    "subagent.status",
    "subagent.await",
    "schedule",
    "subscribe",
    "unsubscribe",
    "await_resource",
    "workflow.define",
    "workflow.patch",
    "workflow.run",
    "resource.read",
)


class Cancelled(Exception):
    """The run was told to end at this boundary."""


class Control:
    """How a run is reached from outside."""

    def __init__(self) -> None:
        self.cancelled = False
        self._going = asyncio.Event()
        self._going.set()

    @property
    def paused(self) -> bool:
        """Whether the next boundary holds."""
        return not self._going.is_set()

    def pause(self) -> None:
        """Hold at the next boundary."""
        self._going.clear()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def cancel(self) -> None:
        """End at the next boundary, also when held there."""
        self.cancelled = True
        self._going.set()

    async def boundary(self) -> None:
        """Waits while paused. Raises Cancelled."""
        await self._going.wait()
        if self.cancelled:
            raise Cancelled


@dataclass
class Task:
    """What a run is told, by whom it is watched, and what it has used."""

    run_id: str
    instruction: str
    context: str | None = None
    handle: str = "0"
    control: Control = field(default_factory=Control)
    steps: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    text: str = ""
    touched: float = field(default_factory=time.monotonic)  # its last event


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: str
    exit_code: int
    text: str = ""

    @classmethod
    def of(cls, status: str, text: str = "") -> Outcome:
        """With the status's own exit code."""
        return cls(status, exits.EXIT_OF_STATUS[status], text)


class Runner:
    """Runs tasks; each connects to every tool server itself."""

    def __init__(
        self, options: Options, http: aiohttp.ClientSession, journal: Journal, metrics: Metrics
    ) -> None:
        self._options = options
        self._http = http
        self._journal = journal
        self._metrics = metrics
        self.model = Model(options, http)

    async def run(self, task: Task) -> Outcome:
        """A server that is away is exit code 6, a model that is away 4; both are `crashed`."""
        try:
            return await self._turns(task, _Toolbox(await self.connect(), task, self._options))
        except Cancelled:
            return Outcome.of("cancelled", task.text)
        except McpError as error:
            self._journal.emit("error", "loop.error", error=str(error), agent_id=task.handle)
            return Outcome("crashed", exits.MCP)
        except ModelError as error:
            self._journal.emit("error", "loop.error", error=str(error), agent_id=task.handle)
            return Outcome("crashed", exits.INTELLIGENCE, task.text)

    async def connect(self) -> list[ToolServer]:
        """Every tool server, connected anew. Raises McpError at the first that is away."""
        servers = []
        for declared in self._options.servers:
            server = ToolServer(declared, self._http, self._options.agent_version)
            try:
                await server.connect()
            except McpError as error:
                self._metrics.connect_failed(server.name)
                self._journal.emit("error", "mcp.connect.fail", server=server.name, error=str(error))
                raise
            self._journal.emit("info", "mcp.connect", server=server.name)
            servers.append(server)
        return servers

    async def _turns(self, task: Task, toolbox: _Toolbox) -> Outcome:
        messages: list[Json] = [{"role": "system", "content": _SYSTEM}]
        messages += [{"role": "user", "content": text} for text in (task.context, task.instruction) if text]
        begun = time.monotonic()
        self._journal.emit("info", "loop.start", agent_id=task.handle)
        while True:
            await task.control.boundary()
            if status := self._exhausted(task, time.monotonic() - begun):
                self._journal.emit("warn", "limit.exceeded", limit=exits.LIMIT_OF_STATUS[status])
                return Outcome.of(status, task.text)
            reply = await self._ask(task, messages, toolbox)
            if not reply.calls:
                content = {"text": reply.text} if self._options.log_content else {}
                self._journal.emit("info", "loop.final", agent_id=task.handle, **content)
                return Outcome.of("completed", reply.text)
            messages.append(reply.message)
            for call in reply.calls:
                answer = await self._call(task, toolbox, call)
                messages.append({"role": "tool", "tool_call_id": call.ident, "content": answer})

    def _exhausted(self, task: Task, elapsed: float) -> str | None:
        if task.steps >= self._options.max_steps:
            return "exhausted_steps"
        if task.tokens_in + task.tokens_out >= self._options.max_tokens:
            return "exhausted_tokens"
        return "deadline" if elapsed >= self._options.deadline else None

    async def _ask(self, task: Task, messages: list[Json], toolbox: _Toolbox) -> Reply:
        task.steps += 1
        task.touched = time.monotonic()
        self._journal.emit("debug", "loop.step", step=task.steps, agent_id=task.handle)
        self._journal.emit("debug", "intel.call", agent_id=task.handle)
        reply = await self.model.complete(messages, toolbox.offered, traceparent(self._options.traceparent))
        task.tokens_in += reply.tokens_in
        task.tokens_out += reply.tokens_out
        task.text = reply.text or task.text
        self._journal.emit("debug", "intel.result", agent_id=task.handle)
        return reply

    async def _call(self, task: Task, toolbox: _Toolbox, call: ToolCall) -> str:
        self._journal.emit("info", "tool.call", tool=call.name, agent_id=task.handle)
        try:
            text, failed = await toolbox.call(call)
        except McpError as error:
            text, failed = f"error: {error}", True
        self._journal.emit("info", "tool.result", tool=call.name, is_error=failed, agent_id=task.handle)
        return text


class _Toolbox:
    """agentd's own tools and those of the servers; of two of one name the first stays."""

    def __init__(self, servers: list[ToolServer], task: Task, options: Options) -> None:
        self._servers = servers
        self._meta = {"agent/run_id": task.run_id}
        if options.instance:
            self._meta["agent/instance"] = options.instance
        self._owners: dict[str, tuple[str, ToolServer | None]] = {}
        self.offered: list[Json] = []
        own: Json = {"type": "object", "properties": {}}
        reading = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
        for name in _OWN_TOOLS:
            schema = reading if name == "resource.read" else own
            self._offer(name, f"agentd's own tool {name}", schema, None, options)
        for server in servers:
            for tool in server.tools:
                schema = tool.get("inputSchema") or own
                self._offer(str(tool["name"]), tool.get("description") or "", schema, server, options)

    def _offer(
        self, name: str, description: str, schema: Json, owner: ToolServer | None, options: Options
    ) -> None:
        told = re.sub(r"[^A-Za-z0-9_-]", "_", name) if options.is_newer else name
        if told in self._owners:
            return
        self._owners[told] = (name, owner)
        function = {"name": told, "description": description, "parameters": schema}
        self.offered.append({"type": "function", "function": function})

    async def call(self, call: ToolCall) -> tuple[str, bool]:
        """The text for the model, and whether it is an error. Raises McpError."""
        if call.name not in self._owners:
            return f"error: no tool {call.name}", True
        if call.arguments is None:
            return "error: the arguments are not a JSON object", True
        name, owner = self._owners[call.name]
        if owner is not None:
            return await owner.call(name, call.arguments, self._meta)
        if name == "resource.read":
            return await self._read(str(call.arguments.get("uri"))), False
        return f"error: the stand-in has no {name}", True

    async def _read(self, uri: str) -> str:
        listing = [s for s in self._servers if any(r.get("uri") == uri for r in s.resources)]
        for server in listing or self._servers[:1]:
            return await server.read(uri)
        raise McpError(f"no server has {uri}")


def traceparent(parent: str | None) -> str:
    """A new span of the trace that we were started in, or of a new one."""
    trace = parent.split("-")[1] if parent and parent.count("-") == 3 else secrets.token_hex(16)
    return f"00-{trace}-{secrets.token_hex(8)}-01"
