"""One call of a tool: within the bounds, counted, told, and a span of its run's trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from opentelemetry.trace import Status, StatusCode, Tracer

from libs import telemetry
from libs.contract import metrics
from libs.contract.run import Usage
from libs.contract.text import clean

from .order import Bounds, Live, Order
from .tools import Result, Tool
from .tools.tool import bounded


class Tools(Protocol):
    """The tools there are, as `services.agent.tools.Toolbox` has them."""

    async def tools(self) -> Sequence[Tool]:
        """In an order that does not change. ServerAwayError."""

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], meta: Mapping[str, Any], within: timedelta
    ) -> Result:
        """What became of a call; no exception."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Makes calls, any number at a time."""

    toolbox: Tools
    bounds: Bounds
    tracer: Tracer = field(default_factory=telemetry.tracer)

    async def make(
        self, tool: Tool, arguments: Mapping[str, Any], order: Order, live: Live, call_id: str = ""
    ) -> Result:
        """What became of the call. Its server is told which run it is of, and how deep it is in others."""
        live.spend(Usage(tool_calls=1))
        # The semantic conventions for generative AI; never content.
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool.name,
            "gen_ai.tool.type": "function",
        }
        if call_id:
            attributes["gen_ai.tool.call.id"] = clean(call_id)[:256]
        name = f"execute_tool {tool.name}"
        with self.tracer.start_as_current_span(name, attributes=attributes) as span:
            meta: dict[str, Any] = {"agentctl.dev/run-id": order.id, "agentctl.dev/depth": order.depth + 1}
            telemetry.inject(meta)
            result = await self.toolbox.call(tool, arguments, meta, self.bounds.tool_timeout)
            result = bounded(result, self.bounds.max_tool_bytes)
            if result.outcome != "ok":
                span.set_attribute("error.type", result.outcome)
                span.set_status(Status(StatusCode.ERROR))
        _tell(live, result, tool)
        return result

    def refuse(self, why: str, tool: Tool | None, live: Live) -> Result:
        """The result of a call that cannot be made."""
        live.spend(Usage(tool_calls=1))
        result = Result(f"error: {why}", "error")
        _tell(live, result, tool)
        return result


def _tell(live: Live, result: Result, tool: Tool | None) -> None:
    name, server = (tool.name, tool.server) if tool else (metrics.OTHER, metrics.OTHER)
    metrics.TOOL_CALLS.inc(server, result.outcome)
    event = "tool.called" if result.outcome == "ok" else "tool.failed"
    live.tell(event, tool=name, server=server, outcome=result.outcome)
