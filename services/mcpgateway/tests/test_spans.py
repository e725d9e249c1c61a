from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs import telemetry

from .world import World

pytestmark = pytest.mark.anyio


async def test_a_call_is_a_span_that_the_server_hears_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(telemetry, "tracing", True)
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("test"))
    server = await world.server("box")
    await world.servers({"name": "box", "endpoint": server.url})
    gateway = await world.gateway()
    arguments = {"name": "echo", "arguments": {"text": "confidential"}}
    await gateway.post("tools/call", arguments, path="/servers/box/mcp")
    (span,) = [each for each in spans.get_finished_spans() if each.name == "tools/call echo"]
    assert dict(span.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "agentctl.mcp.server": "box",
    }
    context = span.get_span_context()
    assert context is not None
    told = server.metas[-1]["traceparent"].split("-")
    assert told[1:3] == [f"{context.trace_id:032x}", f"{context.span_id:016x}"]
    assert "confidential" not in "".join(each.to_json() for each in spans.get_finished_spans())
