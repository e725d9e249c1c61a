"""The loop of a run: ask the model, call the tools that it asks for, tell it what they say, until it answers.

Limits are checked before every call, and the deadline interrupts one under way. Whatever becomes of a run is
an `Ended`, never an exception; only cancelling it raises.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
from opentelemetry.trace import Tracer

from libs import telemetry
from libs.contract import metrics
from libs.contract.run import Usage
from libs.contract.statuses import Status
from libs.settings import shown

from .calls import Calls, Tools
from .order import Bounds, Ended, Live, Order
from .run import Answer, Failure, Fault, Message, ToolCall, ended, failed, opening, request, told
from .tools import Result, ServerAwayError, Tool

_FIRST_PAUSE = 1.0  # seconds before the second try of the model; doubled for each further one
_LONGEST_PAUSE = 60.0  # whoever asks for more is not waited for


class Completes(Protocol):
    """A model, as `services.agent.model.Model` is one."""

    async def complete(self, request: dict[str, object]) -> Answer | Failure:
        """One completion; no exception."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Does runs, any number at a time. `replace` it to do one under other bounds."""

    model: Completes
    toolbox: Tools
    bounds: Bounds
    model_name: str
    tracer: Tracer = field(default_factory=telemetry.tracer)
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    async def run(self, order: Order, live: Live) -> Ended:
        """The run, to its end. Usage adds to what `live` has already, and limits count all of it; the
        deadline counts from now, and stands still while the run is held."""
        return await _Run(self, order, live).to_its_end()


class _Run:
    def __init__(self, engine: Engine, order: Order, live: Live) -> None:
        self._engine = engine
        self._bounds = engine.bounds
        self._calls = Calls(engine.toolbox, engine.bounds, engine.tracer)
        self._order = order
        self._live = live
        self._messages = opening(order.instruction, order.text)
        self._said = ""
        self._last_call = ""
        self._same_calls = 0
        self._clock = anyio.CancelScope()

    async def to_its_end(self) -> Ended:
        if self._order.depth > self._bounds.max_depth:
            return self._limited("depth", Status.DEPTH, f"came through {self._order.depth} agents")
        deadline = self._bounds.deadline
        with anyio.move_on_after(deadline.total_seconds() if deadline else math.inf) as self._clock:
            try:
                return await self._turns()
            except ServerAwayError as error:
                return Ended(Status.SERVER, self._said, str(error), passes=True)
        assert deadline is not None
        return self._limited("deadline", Status.DEADLINE, f"not done within {shown(deadline)}")

    async def _turns(self) -> Ended:
        while True:
            if over := self._over():
                return over
            tools = await self._engine.toolbox.tools()
            answer = await self._ask(tools)
            if isinstance(answer, Failure):
                if over := self._over():  # an answer that is none may be paid for
                    return over
                if answer.kind == "budget":
                    self._reached("tokens")
                return replace(failed(answer), text=self._said)
            if answer.finish_reason == "length" or not answer.calls:
                return self._crossed(answer) or self._finished(answer)
            self._said = answer.text or self._said
            if over := self._crossed(answer) or self._repeats(answer.calls):
                return over
            self._messages.append(answer.message or {})
            self._messages += await self._call_all(answer.calls, {each.name: each for each in tools})

    async def _ask(self, tools: Sequence[Tool]) -> Answer | Failure:
        """One turn with the model, tried again while that may help."""
        asked = request(self._engine.model_name, self._messages, tools)
        last = max(self._bounds.tries, 1)
        for number in range(1, last + 1):
            await self._step("model")
            result = await self._engine.model.complete(asked)
            self._count(result)
            if isinstance(result, Answer) or result.fault is not Fault.MODEL:
                break
            if number == last or self._is_spent:
                break
            pause = _FIRST_PAUSE * 2 ** (number - 1) * random.uniform(0.5, 1.0)
            if result.retry_after is not None:
                pause += result.retry_after.total_seconds()
            if pause > _LONGEST_PAUSE:
                break
            await self._engine.sleep(pause)
        return result

    async def _call_all(self, calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> list[Message]:
        """All at the same time, so that none begins once the run is held; the results are in the order of the
        calls."""
        known = sorted({call.name for call in calls if call.name in tools})
        await self._step(f"tool {', '.join(known) or metrics.OTHER}"[:256])
        results = [Result("")] * len(calls)

        async def one(index: int) -> None:
            call = calls[index]
            results[index] = await self._call(call, tools.get(call.name))

        async with anyio.create_task_group() as group:
            for index in range(len(calls)):
                group.start_soon(one, index)
        return [told(call, result.text) for call, result in zip(calls, results, strict=True)]

    async def _call(self, call: ToolCall, tool: Tool | None) -> Result:
        if tool is None or call.problem:
            return self._calls.refuse(call.problem or f"there is no tool {call.name[:64]}", tool, self._live)
        return await self._calls.make(tool, call.arguments, self._order, self._live, call.id)

    async def _step(self, activity: str) -> None:
        """The run may be held here; its deadline is about work, so it does not count that."""
        left = self._clock.deadline - anyio.current_time()
        self._clock.deadline = math.inf
        await self._live.step(activity)
        self._clock.deadline = anyio.current_time() + left

    def _count(self, result: Answer | Failure) -> None:
        metrics.MODEL_UP.set(to=isinstance(result, Answer))
        metrics.TOKENS.inc("in", by=result.input_tokens)
        metrics.TOKENS.inc("out", by=result.output_tokens)
        is_turn = isinstance(result, Answer)
        self._live.spend(Usage(result.input_tokens, result.output_tokens, steps=int(is_turn)))
        if isinstance(result, Failure):
            metrics.MODEL_ERRORS.inc(result.kind)
            self._live.tell("model.failed", reason=result.kind)
            return
        metrics.MODEL_CALLS.inc()
        metrics.STEPS.inc()
        self._live.tell("model.called", input_tokens=result.input_tokens, output_tokens=result.output_tokens)

    def _over(self) -> Ended | None:
        """Whether another turn is too much."""
        used, bounds = self._live.usage, self._bounds
        if bounds.max_steps is not None and used.steps >= bounds.max_steps:
            return self._limited("steps", Status.EXHAUSTED_STEPS, f"not done after {used.steps} steps")
        if self._is_spent:
            return self._limited("tokens", Status.EXHAUSTED_TOKENS, f"not done after {used.tokens} tokens")
        return None

    @property
    def _is_spent(self) -> bool:
        most = self._bounds.max_tokens
        return most is not None and self._live.usage.tokens >= most

    def _crossed(self, answer: Answer) -> Ended | None:
        """Whether this answer took more than there was. It is kept: it is paid for."""
        used, most = self._live.usage.tokens, self._bounds.max_tokens
        if most is None or used <= most:
            return None
        self._said = ended(answer).text or self._said
        return self._limited("tokens", Status.EXHAUSTED_TOKENS, f"used {used} of {most} tokens")

    def _repeats(self, calls: Sequence[ToolCall]) -> Ended | None:
        for call in calls:
            self._same_calls = self._same_calls + 1 if call.key == self._last_call else 1
            self._last_call = call.key
            if self._same_calls >= self._bounds.max_same_calls:
                error = f"the same tool call, {self._same_calls} times in a row"
                return self._limited("repeats", Status.LOOP_DETECTED, error)
        return None

    def _finished(self, answer: Answer) -> Ended:
        end = ended(answer)
        if end.status is Status.TOO_LARGE:
            self._said = end.text
            return self._limited("size", end.status, end.error)
        return end

    def _limited(self, limit: str, status: Status, error: str) -> Ended:
        self._reached(limit)
        return Ended(status, self._said, error)

    def _reached(self, limit: str) -> None:
        metrics.LIMITS.inc(limit)
        self._live.tell("limit.reached", limit=limit)
