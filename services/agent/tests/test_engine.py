"""How a run runs, against a provider that says what it is told to say and tools that are functions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from libs.contract.run import MAX_RESULT_BYTES, Trigger, Usage
from libs.contract.statuses import Status
from services.agent.order import Ended, Order
from services.agent.tools import Result

from .runs import Kit, Seen, engine
from .scripted import BREAKS, HANGS, Provider, fails, provider, says

ORDER = Order("run-1", Trigger.ONCE, "Do it.", "With this.", depth=1)


async def did(
    it: Provider, kit: Kit | None = None, live: Seen | None = None, order: Order = ORDER, **more: Any
) -> Ended:
    async with engine(it, kit or Kit(), **more) as doer:
        return await doer.run(order, live or Seen())


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_an_answer_without_calls_is_the_result():
    live = Seen()
    async with provider(says("Done.")) as it:
        assert await did(it, live=live) == Ended(Status.COMPLETED, "Done.")
    assert it.asked[0]["messages"] == [
        {"role": "system", "content": "Do it."},
        {"role": "user", "content": "With this."},
    ]
    assert "tools" not in it.asked[0]
    assert live.usage == Usage(10, 5, 1, 0)
    assert live.steps == ["model"]
    assert live.events == [("model.called", {"input_tokens": 10, "output_tokens": 5})]


async def test_tools_are_called_and_their_results_told_until_there_is_an_answer():
    live, kit = Seen(), Kit({"read": Result("the text"), "add": Result("3")})
    wish = says("Let me see.", ("docs_read", {"id": 7}))
    async with provider(wish, says("", ("docs_add", "")), says("Done.")) as it:
        assert await did(it, kit, live) == Ended(Status.COMPLETED, "Done.")
    assert [each["function"]["name"] for each in it.asked[0]["tools"]] == ["docs_add", "docs_read"]
    assert it.asked[1]["messages"][2:] == [
        wish.body["choices"][0]["message"],
        {"role": "tool", "tool_call_id": "call_0", "content": "the text"},
    ]
    assert it.heard == ["the text", "3"]
    assert [(name, arguments) for name, arguments, _ in kit.called] == [("read", {"id": 7}), ("add", {})]
    assert kit.called[0][2] == {"agentctl.dev/run-id": "run-1", "agentctl.dev/depth": 2}
    assert live.steps == ["model", "tool docs_read", "model", "tool docs_add", "model"]
    assert live.usage == Usage(30, 15, 3, 2)


async def test_calls_of_one_turn_run_at_the_same_time_and_are_told_in_order():
    both = anyio.Event()
    started = []

    async def wait(arguments: Mapping[str, Any]) -> Result:
        started.append(arguments["n"])
        if len(started) == 2:
            both.set()
        await both.wait()  # never, if one had to end before the other begins
        return Result(f"result {arguments['n']}")

    live = Seen()
    async with provider(says("", ("docs_w", {"n": 1}), ("docs_w", {"n": 2})), says("Done.")) as it:
        assert (await did(it, Kit({"w": wait}), live)).status is Status.COMPLETED
    assert it.heard == ["result 1", "result 2"]
    assert live.steps == ["model", "tool docs_w", "model"]


async def test_calls_that_cannot_be_made_are_told_to_the_model():
    kit = Kit({"read": Result("the text")})
    asks = says("", ("docs_read", "{"), ("docs_read", "[1]"), ("docs_gone", {}), ("docs_read", {}))
    before = counted("agent_tool_calls_total", server="docs", outcome="error")
    async with provider(asks, says("Done.")) as it:
        assert (await did(it, kit)).status is Status.COMPLETED
    not_json, no_object, unknown, good = it.heard
    assert "not JSON" in not_json
    assert "not an object" in no_object
    assert "no tool docs_gone" in unknown
    assert good == "the text"
    assert len(kit.called) == 1
    assert counted("agent_tool_calls_total", server="docs", outcome="error") == before + 2


@pytest.mark.parametrize("outcome", ["error", "timeout"])
async def test_a_tool_that_fails_does_not_end_the_run(outcome):
    live = Seen()
    async with provider(says("", ("docs_read", {})), says("Sorry.")) as it:
        end = await did(it, Kit({"read": Result("error: disk on fire", outcome)}), live)
    assert end == Ended(Status.COMPLETED, "Sorry.")
    assert it.heard == ["error: disk on fire"]
    assert ("tool.failed", {"tool": "docs_read", "server": "docs", "outcome": outcome}) in live.events


async def test_a_result_that_is_too_large_is_told_by_its_size():
    async with provider(says("", ("docs_read", {})), says("Done.")) as it:
        await did(it, Kit({"read": Result("é" * 60)}), max_tool_bytes=100)
    assert it.heard == ["error: the result is 120 bytes, and at most 100 can be read; ask for less"]


async def test_a_model_that_asks_for_the_same_again_and_again_is_stopped():
    live, kit = Seen(), Kit({"read": Result("the text")})
    before = counted("agent_limit_exceeded_total", limit="repeats")
    async with provider(says("Hm.", ("docs_read", {"id": 7}))) as it:
        end = await did(it, kit, live)
    assert (end.status, end.text) == (Status.LOOP_DETECTED, "Hm.")
    assert len(kit.called) == 4
    assert ("limit.reached", {"limit": "repeats"}) in live.events
    assert counted("agent_limit_exceeded_total", limit="repeats") == before + 1


async def test_other_calls_in_between_are_no_loop():
    kit = Kit({"read": Result("the text")})
    turns = [says("", ("docs_read", {"id": number % 2})) for number in range(8)]
    async with provider(*turns, says("Done.")) as it:
        assert (await did(it, kit)).status is Status.COMPLETED


async def test_a_model_that_never_comes_to_an_end_runs_out_of_steps():
    number = iter(range(100))
    async with provider(lambda _: says("", ("docs_read", {"id": next(number)}))) as it:
        end = await did(it, Kit({"read": Result("the text")}), max_steps=3)
    assert end.status is Status.EXHAUSTED_STEPS
    assert len(it.asked) == 3


async def test_no_call_is_made_when_the_tokens_are_spent():
    async with provider(says("So far.", ("docs_read", {}), tokens=(50, 50))) as it:
        end = await did(it, Kit({"read": Result("the text")}), max_tokens=100)
    assert (end.status, end.text) == (Status.EXHAUSTED_TOKENS, "So far.")
    assert len(it.asked) == 1


async def test_an_answer_that_crosses_the_bound_is_kept_as_a_part():
    live = Seen()
    async with provider(says("Done.", tokens=(50, 51))) as it:
        end = await did(it, live=live, max_tokens=100)
    assert (end.status, end.text) == (Status.EXHAUSTED_TOKENS, "Done.")
    assert live.usage.tokens == 101


async def test_an_answer_that_takes_exactly_what_there_is_is_one():
    async with provider(says("Done.", tokens=(50, 50))) as it:
        assert (await did(it, max_tokens=100)).status is Status.COMPLETED


async def test_what_the_run_has_used_before_counts():
    async with provider(says("Done.")) as it:
        end = await did(it, live=Seen(Usage(60, 40, 3)), max_tokens=100)
        assert end.status is Status.EXHAUSTED_TOKENS
        end = await did(it, live=Seen(Usage(steps=3)), max_steps=3)
        assert end.status is Status.EXHAUSTED_STEPS
    assert it.asked == []


async def test_a_run_from_too_deep_is_not_begun():
    async with provider(says("Done.")) as it:
        end = await did(it, order=Order("r", Trigger.MESSAGE, "Do it.", depth=5), max_depth=4)
        assert end.status is Status.DEPTH
        assert it.asked == []
        end = await did(it, order=Order("r", Trigger.MESSAGE, "Do it.", depth=4), max_depth=4)
        assert end.status is Status.COMPLETED


async def test_an_answer_that_the_provider_cut_off_is_too_large():
    async with provider(says("Once upon a", finish="length")) as it:
        end = await did(it)
    assert (end.status, end.text) == (Status.TOO_LARGE, "Once upon a")


async def test_calls_that_the_provider_cut_off_are_not_made():
    kit = Kit({"read": Result("the text")})
    async with provider(says("Let", ("docs_read", '{"id'), finish="length")) as it:
        end = await did(it, kit)
    assert (end.status, end.text, kit.called) == (Status.TOO_LARGE, "Let", [])


async def test_an_answer_that_nobody_takes_is_cut():
    async with provider(says("x" * (MAX_RESULT_BYTES + 1))) as it:
        end = await did(it)
    assert (end.status, len(end.text)) == (Status.TOO_LARGE, MAX_RESULT_BYTES)


async def test_a_refusal_ends_the_run_so():
    async with provider(says(refusal="I will not.")) as it:
        end = await did(it)
    assert (end.status, end.text) == (Status.REFUSED, "I will not.")


@pytest.mark.parametrize("trouble", [fails(500), fails(503), fails(429, "rate_limit"), fails(408), BREAKS])
async def test_what_passes_is_tried_again(trouble):
    waits: list[float] = []
    live = Seen()
    async with provider(trouble, trouble, says("Done.")) as it:
        assert await did(it, live=live, waits=waits) == Ended(Status.COMPLETED, "Done.")
    first, second = waits
    assert 0.5 <= first <= 1
    assert 1 <= second <= 2
    assert live.usage == Usage(10, 5, 1)
    assert live.steps == ["model"] * 3


async def test_what_does_not_pass_ends_the_run_after_so_many_tries():
    before = counted("agent_intel_errors_total", reason="5xx")
    async with provider(fails(500)) as it:
        end = await did(it, tries=3)
    assert (end.status, end.kind, end.passes, end.is_ours) == (Status.MODEL, "5xx", True, False)
    assert len(it.asked) == 3
    assert counted("agent_intel_errors_total", reason="5xx") == before + 3
    assert counted("agent_intel_up") == 0


async def test_what_an_empty_answer_costs_counts_and_is_limited():
    live, before = Seen(), counted("agent_tokens_total", type="in")
    async with provider(says("", tokens=(5, 3))) as it:
        end = await did(it, live=live, max_tokens=1)
    assert (end.status, end.error) == (Status.EXHAUSTED_TOKENS, "not done after 8 tokens")
    assert (len(it.asked), live.usage) == (1, Usage(5, 3))
    assert counted("agent_tokens_total", type="in") == before + 5
    assert live.events[-1] == ("limit.reached", {"limit": "tokens"})


async def test_where_a_queue_tries_again_the_engine_does_not():
    async with provider(fails(503, retry_after="7")) as it:
        end = await did(it, tries=1)
    assert (end.status, end.retry_after, len(it.asked)) == (Status.MODEL, timedelta(seconds=7), 1)


async def test_the_endpoint_says_how_long_to_wait():
    waits: list[float] = []
    async with provider(fails(429, retry_after="20"), says("Done.")) as it:
        assert (await did(it, waits=waits)).status is Status.COMPLETED
    assert 20 < waits[0] <= 21


async def test_a_wait_that_is_too_long_is_left_to_others():
    async with provider(fails(429, retry_after="600")) as it:
        end = await did(it)
    assert (end.status, end.passes, end.retry_after) == (Status.MODEL, True, timedelta(minutes=10))
    assert len(it.asked) == 1


async def test_a_key_that_is_refused_is_our_own_fault():
    async with provider(fails(401)) as it:
        end = await did(it)
    assert (end.status, end.kind, end.is_ours, len(it.asked)) == (Status.MODEL, "auth", True, 1)


async def test_a_spent_budget_is_no_fault_of_the_model():
    before = counted("agent_intel_errors_total", reason="budget")
    async with provider(fails(429, "budget_exceeded", retry_after="60")) as it:
        end = await did(it)
    assert (end.status, end.kind, end.passes) == (Status.EXHAUSTED_TOKENS, "budget", False)
    assert len(it.asked) == 1
    assert counted("agent_intel_errors_total", reason="budget") == before + 1


async def test_a_budget_that_is_spent_for_now_is_waited_for_by_whoever_can():
    async with provider(fails(429, "insufficient_quota", retry_after="3600")) as it:
        end = await did(it)
    assert (end.status, end.kind, end.is_ours) == (Status.EXHAUSTED_TOKENS, "budget", False)
    assert (end.passes, end.retry_after) == (True, timedelta(hours=1))
    assert len(it.asked) == 1


async def test_nobody_at_the_models_address(unused_port):
    end = await did(Provider([], url=f"http://127.0.0.1:{unused_port}/v1"))
    assert (end.status, end.kind, end.passes) == (Status.MODEL, "unreachable", True)


async def test_the_deadline_interrupts_the_model():
    before = counted("agent_limit_exceeded_total", limit="deadline")
    async with provider(HANGS) as it:
        end = await did(it, deadline=timedelta(seconds=0.1))
    assert end.status is Status.DEADLINE
    assert it.hung.is_set()
    assert end.error == "not done within 100ms"
    assert counted("agent_limit_exceeded_total", limit="deadline") == before + 1


async def test_the_deadline_interrupts_a_tool_and_keeps_what_was_said():
    cancelled = []

    async def hang(_: Mapping[str, Any]) -> Result:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        raise AssertionError

    async with provider(says("So far.", ("docs_hang", {}))) as it:
        end = await did(it, Kit({"hang": hang}), deadline=timedelta(seconds=0.2))
    assert (end.status, end.text) == (Status.DEADLINE, "So far.")
    assert cancelled == [True]


async def test_a_run_that_is_held_does_not_use_up_its_deadline():
    gate = asyncio.Event()
    live = Seen(gate=gate)
    async with provider(says("Done.")) as it, engine(it, Kit(), deadline=timedelta(seconds=0.2)) as doer:
        running = asyncio.create_task(doer.run(ORDER, live))
        await asyncio.sleep(0.3)  # longer than the deadline, which is what is tested
        assert not running.done()
        gate.set()
        assert (await running).status is Status.COMPLETED


async def test_a_server_of_tools_that_is_away_ends_the_run():
    async with provider(says("Done.")) as it:
        end = await did(it, Kit(is_away=True))
    assert (end.status, end.error, end.passes) == (Status.SERVER, "docs: nobody there", True)


async def test_a_run_that_is_cancelled_leaves_nothing_behind():
    begun = asyncio.Event()

    async def hang(_: Mapping[str, Any]) -> Result:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    asks = says("", ("docs_hang", {"n": 1}), ("docs_hang", {"n": 2}))
    async with provider(asks) as it, engine(it, Kit({"hang": hang})) as doer:
        before = ours()
        running = asyncio.create_task(doer.run(ORDER, Seen()))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ours() == before


def ours() -> set[asyncio.Task[Any]]:
    """All tasks but those of the provider's connections."""
    return {each for each in asyncio.all_tasks() if "RequestHandler" not in repr(each.get_coro())}


async def test_a_call_of_a_tool_is_a_span_without_content():
    exporter, traces = InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    kit = Kit({"read": Result("error: secret", "timeout")})
    async with provider(says("", ("docs_read", {"id": "secret"})), says("Done.")) as it:
        await did(it, kit, tracer=traces.get_tracer("test"))
    traces.shutdown()
    asked, tool, answered = exporter.get_finished_spans()
    assert (asked.name, tool.name, answered.name) == ("chat m", "execute_tool docs_read", "chat m")
    assert dict(tool.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "docs_read",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_0",
        "error.type": "timeout",
    }
    assert "traceparent" in kit.called[0][2]
    assert "secret" not in tool.to_json()
