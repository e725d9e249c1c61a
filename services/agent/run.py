"""One run: what is asked of the model, what its replies amount to, and how that ends a run. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from libs.contract.metrics import OTHER
from libs.contract.run import MAX_RESULT_BYTES
from libs.contract.statuses import Status
from libs.contract.text import clean

from .order import Ended
from .tools.tool import Tool

MAX_RETRY_AFTER = timedelta(hours=24)  # what coordination takes
_MOST_CALLS = 64  # at once
_MOST_TOKENS = 10**9  # of one answer; counters and the wire have 64 bits for their sums
_DEEPEST = 64  # of what the model says; encoders give up at some depth of their own
_NAME_CHARACTERS = 256  # of a word that is told in traces
BUDGET = "budget_exceeded"
"""The `code` or `type` of an error, by HTTP 429: a budget is spent, and no try mends that."""
QUOTA = "insufficient_quota"
"""Likewise, as the model gateway says it: spent for now. Retry-After says until when."""

Message = dict[str, Any]
"""A message of a chat completion, as the endpoint takes it."""


class Fault(StrEnum):
    """Whose fault a failed call is, which decides what becomes of its run."""

    ITEM = "item"  # no retry can help it
    MODEL = "model"  # passes: another try, later, may do
    AGENT = "agent"  # our key, our model name: no other run would fare better


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""
    """Why the arguments are none, for the model to read."""

    @property
    def key(self) -> str:
        """The same for the same call, however its arguments are written."""
        return json.dumps([self.name, self.arguments, self.problem], sort_keys=True)


@dataclass(frozen=True)
class Answer:
    """What the model said."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    id: str = ""
    finish_reason: str = ""
    calls: tuple[ToolCall, ...] = ()
    message: Message | None = None
    """What the conversation goes on with, if there are calls. Calls go back as they came: some providers
    keep what they need in them."""
    refusal: str = ""


@dataclass(frozen=True)
class Failure:
    """Why there is no answer: for people, as one of a few words for metrics, and what to do about it."""

    error: str
    kind: str
    fault: Fault
    retry_after: timedelta | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    """A reply that is no answer may be paid for all the same."""


def opening(instruction: str, text: str) -> list[Message]:
    """What a conversation begins with. The text is a message of its own, so it is never taken for ours; an
    instruction that stands alone is the user's, because there are endpoints that want one of the user's."""
    if not text.strip():
        return [{"role": "user", "content": instruction.strip()}]
    return [{"role": "system", "content": instruction.strip()}, {"role": "user", "content": text}]


def request(model: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> dict[str, object]:
    """The chat completion to ask for."""
    asked: dict[str, object] = {"model": model, "messages": list(messages)}
    if tools:
        asked["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in tools
        ]
    return asked


def told(call: ToolCall, text: str) -> Message:
    """The result of a call, for the model."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def ended(answer: Answer) -> Ended:
    """How a run ends with its last answer."""
    data = answer.text.encode(errors="replace")
    if answer.refusal or answer.finish_reason == "content_filter":
        return Ended(Status.REFUSED, answer.refusal or answer.text, "the model refused", "refused")
    if len(data) > MAX_RESULT_BYTES:
        error = f"the answer is {len(data)} bytes; {MAX_RESULT_BYTES} are taken"
        return Ended(Status.TOO_LARGE, answer.text, error)
    if answer.finish_reason == "length":
        return Ended(Status.TOO_LARGE, answer.text, "the answer is longer than the model may write")
    return Ended(Status.COMPLETED, answer.text)


def failed(failure: Failure) -> Ended:
    """How a run ends without an answer."""
    if failure.kind == "budget":
        status = Status.EXHAUSTED_TOKENS
    elif failure.kind == "refused" and failure.fault is Fault.ITEM:
        status = Status.REFUSED
    else:
        status = Status.MODEL
    return Ended(
        status,
        error=failure.error,
        kind=failure.kind,
        is_ours=failure.fault is Fault.AGENT,
        passes=failure.fault is Fault.MODEL,
        retry_after=failure.retry_after,
    )


def outcome(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> Answer | Failure:
    """What a reply of the model's endpoint amounts to. Header names are matched as the mapping does."""
    if status == 200:
        return _answer(body)
    words, codes = _error(body)
    error = f"model: HTTP {status}: {words}"
    if status in (401, 403, 404):
        return Failure(error, "auth" if status != 404 else OTHER, Fault.AGENT)
    if status == 429 and codes & {BUDGET, QUOTA}:
        fault = Fault.MODEL if QUOTA in codes else Fault.ITEM
        return Failure(error, "budget", fault, retry_after(headers, now))
    if status == 429 or status == 408 or status >= 500:
        kind = "throttled" if status == 429 else "5xx" if status >= 500 else "timeout"
        return Failure(error, kind, Fault.MODEL, retry_after(headers, now))
    refused = codes & {"content_filter", "content_policy_violation"}
    return Failure(error, "refused" if refused else OTHER, Fault.ITEM)


def retry_after(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """What the endpoint asks us to wait: seconds or a date, or milliseconds under OpenAI's own name."""
    for name, unit in (("Retry-After-Ms", timedelta(milliseconds=1)), ("Retry-After", timedelta(seconds=1))):
        try:
            number = float(headers.get(name, ""))
        except ValueError:
            continue
        if math.isfinite(number):
            return min(max(number, 0) * unit, MAX_RETRY_AFTER) if number < 1e9 else MAX_RETRY_AFTER
    try:
        date = parsedate_to_datetime(headers.get("Retry-After", ""))
    except (ValueError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return min(max(date - now, timedelta(0)), MAX_RETRY_AFTER)


def _answer(body: bytes) -> Answer | Failure:
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return _nonsense("the reply is not JSON", (0, 0))
    used = _used(reply)
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        text, finish = message.get("content") or "", str(choice.get("finish_reason") or "")
        refusal = str(message.get("refusal") or "")
        asked = [_identified(call, number) for number, call in enumerate(message.get("tool_calls") or ())]
        if len(asked) > _MOST_CALLS or _is_deep(asked):
            return _nonsense(f"more than {_MOST_CALLS} tool calls, or too deep", used)
        calls = tuple(_call(each) for each in asked)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return _nonsense("the reply is not a chat completion", used)
    if not isinstance(text, str):
        return _nonsense("the answer is not text", used)
    text = clean(text)
    if not (text.strip() or calls or refusal) and finish not in ("length", "content_filter"):
        return _nonsense("the answer is empty", used)
    return Answer(
        text,
        *used,
        clean(str(reply.get("model") or ""))[:_NAME_CHARACTERS],
        clean(str(reply.get("id") or ""))[:_NAME_CHARACTERS],
        clean(finish)[:_NAME_CHARACTERS],
        calls,
        {"role": "assistant", "content": text or None, "tool_calls": asked} if calls else None,
        refusal,
    )


def _nonsense(error: str, used: tuple[int, int]) -> Failure:
    return Failure(f"model: {error}", "body", Fault.MODEL, None, *used)


def _used(reply: Any) -> tuple[int, int]:
    """Tokens of the prompt and of the answer, as the provider counts; 0 for what is no count."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    if not isinstance(usage, dict):
        return 0, 0
    return _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))


def _tokens(said: Any) -> int:
    try:
        return min(max(int(said or 0), 0), _MOST_TOKENS)
    except (ValueError, TypeError, OverflowError):
        return 0


def _is_deep(value: Any, left: int = _DEEPEST) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_is_deep(each, left - 1) for each in inside)


def _identified(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {**call, "id": str(call.get("id") or f"call_{number}"), "type": "function"}


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    id, name, text = call["id"], str(function["name"]), function.get("arguments") or "{}"
    try:
        arguments = json.loads(text, parse_constant=_no_number) if isinstance(text, str) else text
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return ToolCall(id, name, {}, f"the arguments are not JSON: {error}"[:200])
    if not isinstance(arguments, dict) or _is_deep(arguments):
        return ToolCall(id, name, {}, f"the arguments are not an object at most {_DEEPEST} deep")
    return ToolCall(id, name, arguments)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _error(body: bytes) -> tuple[str, set[str]]:
    """The error's own words, from OpenAI's shape or whatever text there is, for a line of log; its codes."""
    try:
        error = json.loads(body)["error"]
        found, codes = error["message"], {str(error.get("code")), str(error.get("type"))}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        found, codes = body.decode(errors="replace"), set()
    return clean(" ".join(str(found).split())[:500]) or "no text", codes
