"""What begins a run: the start itself, an interval, a cron line, or a changed resource."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime

from . import exits
from .supervisor import TICK, Supervisor
from .tools import McpError, ToolServer
from .turns import Outcome, Task

_DEBOUNCE = 0.25
_READ_TIMEOUT = 2.0
_REOPEN = 1.0


async def once(supervisor: Supervisor) -> Outcome:
    """The instruction, once; the result goes to stdout."""
    return await _run(supervisor, supervisor.options.run_id)


async def loop(supervisor: Supervisor) -> Outcome:
    """Again and again, an interval after each end, until the drain. A run that fails does not end it."""
    outcome = Outcome("completed", exits.OK)
    while not supervisor.draining:
        outcome = await _run(supervisor, f"{supervisor.options.run_id}.{supervisor.spawned + 1}")
        await supervisor.latched(max(TICK, supervisor.options.interval or 0))
    return outcome


async def schedule(supervisor: Supervisor) -> Outcome:
    """At each time of the cron line, or each interval, until the drain."""
    options, outcome = supervisor.options, Outcome("completed", exits.OK)
    supervisor.journal.emit("info", "trigger.armed", kind="schedule")
    while True:
        wait = options.cron.wait(datetime.now(UTC)) if options.cron else max(TICK, options.interval or 0)
        if await supervisor.latched(wait):
            return outcome
        if options.cron is None or options.cron.fires(datetime.now(UTC)):
            supervisor.journal.emit("info", "trigger.fired", kind="schedule")
            outcome = await _run(supervisor, f"{options.run_id}.{supervisor.spawned + 1}")


async def _run(supervisor: Supervisor, run_id: str) -> Outcome:
    outcome = await supervisor.run(Task(run_id, supervisor.options.instruction))
    if outcome.text and outcome.status == "completed":
        sys.stdout.write(f"{outcome.text}\n")
        sys.stdout.flush()
    return outcome


async def reactive(supervisor: Supervisor) -> Outcome:
    """A run for every changed resource, one at a time, until the drain; exit code 6 when a server is away."""
    try:
        servers = await supervisor.runner.connect()
    except McpError:
        return Outcome("crashed", exits.MCP)
    reactor = _Reactor(supervisor)
    listeners = await reactor.subscribe(servers)
    supervisor.journal.emit("info", "proc.ready")
    try:
        while not await supervisor.latched(TICK):
            await reactor.react()
    finally:
        for listener in listeners:
            listener.cancel()
    await reactor.unsubscribe()
    return Outcome("completed", exits.OK)


class _Reactor:
    """Changed URIs wait here until they were quiet for 250 ms; then they are read and run, serially."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._homes: dict[str, ToolServer] = {}
        self._changed: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._count = 0

    async def subscribe(self, servers: list[ToolServer]) -> list[asyncio.Task[None]]:
        """Each URI on the first server that can; each counts as changed once. The tasks that listen."""
        supervisor = self._supervisor
        home = next((server for server in servers if server.can_subscribe), None)
        uris = list(supervisor.options.subscribe)
        if home is None:
            for uri in uris:
                supervisor.journal.emit("warn", "subscribe.unsupported", uri=uri)
            return []
        listener = asyncio.create_task(self._listen(home, uris))
        for uri in uris:
            try:
                await home.subscribe(uri)
            except McpError as error:
                supervisor.journal.emit("error", "subscribe.unsupported", uri=uri, error=str(error))
                continue
            self._homes[uri] = home
            supervisor.journal.emit("info", "subscribe", uri=uri, server=home.name)
            self._note(uri)
        supervisor.metrics.put("agent_subscriptions_active", len(self._homes))
        return [listener]

    async def unsubscribe(self) -> None:
        """Within two seconds a URI; a server that is away is let go."""
        for uri, home in self._homes.items():
            with suppress(McpError):
                await home.unsubscribe(uri)
            self._supervisor.journal.emit("info", "unsubscribe", uri=uri)

    async def react(self) -> None:
        """Runs what is due, one after another."""
        now = time.monotonic()
        for uri in [uri for uri, at in self._changed.items() if now - at >= _DEBOUNCE]:
            if self._supervisor.draining:
                return
            del self._changed[uri]
            await self._react(uri, self._first.pop(uri))
            self._supervisor.metrics.put("agent_pending_events", len(self._changed))

    def _note(self, uri: str) -> None:
        if uri not in self._homes:
            return
        now = time.monotonic()
        self._changed[uri] = now
        self._first.setdefault(uri, now)
        self._supervisor.journal.emit("info", "resource.updated", uri=uri)
        self._supervisor.metrics.put("agent_pending_events", len(self._changed))

    async def _react(self, uri: str, since: float) -> None:
        supervisor, metrics = self._supervisor, self._supervisor.metrics
        try:
            content = await self._homes[uri].read(uri, _READ_TIMEOUT)
        except McpError as error:
            supervisor.journal.emit("error", "reactive.read.fail", uri=uri, error=str(error))
            return
        metrics.add("agent_reactions_total")
        metrics.put("agent_reaction_lag_ms", round((time.monotonic() - since) * 1000))
        metrics.put("agent_inflight_reactions", 1)
        self._count += 1
        context = f"The resource {uri} changed. Its current content is: {content}"
        run_id = f"{supervisor.options.run_id}.reaction.{self._count}"
        handle = f"reaction.{self._count}"
        await supervisor.run(Task(run_id, supervisor.options.instruction, context, handle))
        metrics.put("agent_inflight_reactions", 0)

    async def _listen(self, home: ToolServer, uris: list[str]) -> None:
        """A stream that ends is opened again; a server that does not stream is given up for good."""
        while True:
            try:
                await home.updates(uris, self._note)
            except McpError as error:
                self._supervisor.journal.emit("error", "mcp.disconnect", server=home.name, error=str(error))
                return
            await asyncio.sleep(_REOPEN)
