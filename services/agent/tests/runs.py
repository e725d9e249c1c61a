"""What an engine works with in a test: tools that are functions, and a run that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from opentelemetry.trace import NoOpTracer, Tracer

from libs.contract.events import NAMES
from libs.contract.run import Usage
from services.agent.calls import Tools
from services.agent.engine import Engine
from services.agent.model import connect
from services.agent.order import Bounds
from services.agent.tools import Result, ServerAwayError, Tool
from services.agent.tools.tool import named

from .scripted import Provider


@dataclass
class Kit:
    """Tools that are functions of their arguments."""

    functions: dict[str, Any] = field(default_factory=dict)
    is_away: bool = False
    called: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=list)

    async def tools(self) -> Sequence[Tool]:
        if self.is_away:
            raise ServerAwayError("docs: nobody there")
        return named([Tool(name, "docs", name, "", {"type": "object"}) for name in self.functions])

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], meta: Mapping[str, Any], within: timedelta
    ) -> Result:
        self.called.append((tool.own_name, arguments, meta))
        found = self.functions[tool.own_name]
        return found if isinstance(found, Result) else await found(arguments)


@dataclass
class Seen:
    """A run as the engine sees it, and what it did there."""

    usage: Usage = field(default_factory=Usage)
    steps: list[str] = field(default_factory=list)
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def step(self, activity: str) -> None:
        self.steps.append(activity)
        if self.gate:
            await self.gate.wait()

    def spend(self, usage: Usage) -> None:
        self.usage += usage

    def tell(self, name: str, **fields: object) -> None:
        assert name in NAMES
        self.events.append((name, fields))


@asynccontextmanager
async def engine(
    it: Provider, kit: Tools, waits: list[float] | None = None, tracer: Tracer | None = None, **bounds: Any
) -> AsyncIterator[Engine]:
    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    tracer = tracer or NoOpTracer()
    async with connect(it.url, lambda: "", timedelta(seconds=5), tracer) as model:
        yield Engine(model, kit, Bounds(**bounds), "m", tracer, sleep)
