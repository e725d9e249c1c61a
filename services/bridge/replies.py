"""What a call of the model came to, read from its reply. Pure: nothing is changed on its way to the agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from libs.contract.metrics import OTHER
from libs.contract.run import MAX_RESULT_BYTES, Usage
from libs.contract.statuses import Status
from libs.contract.text import clean

_BUDGET, _QUOTA = "budget_exceeded", "insufficient_quota"  # by HTTP 429: spent for good, and for now
_POLICIES = {"content_filter", "content_policy_violation"}
_MOST_TOKENS = 10**9  # of one answer; counters and the wire have 64 bits for their sums
_REASONS = {401: "auth", 403: "auth", 408: "timeout", 429: "throttled"}
_ERROR_CHARACTERS = 500
MAX_RETRY_AFTER = timedelta(hours=24)  # what coordination takes


@dataclass(frozen=True, slots=True)
class Said:
    """What is known by it of the run whose call it was."""

    usage: Usage = field(default_factory=Usage)
    status: Status | None = None
    """How the run ends if this was its last call; None: the model asks for tools, or nobody can tell."""
    text: str = ""
    error: str = ""
    failure: str = ""
    """Why there is no answer, in the registry's words; empty if there is one."""
    may_pass: bool = False
    """Another try, later, may do better, though such a status is for good."""
    retry_after: timedelta | None = None
    """How much later, as the endpoint says."""


def said(status: int, body: bytes | None, retry_after: str = "") -> Said:
    """What a reply of the model's endpoint says. None: the body was not kept (a stream), and says nothing.
    `retry_after`: the header of that name."""
    if status == 200:
        return Said(Usage(steps=1)) if body is None else _answer(body)
    words, codes = _error(body or b"")
    error = f"HTTP {status}: {words}"
    if status == 429 and codes & {_BUDGET, _QUOTA}:
        spent = Said(status=Status.EXHAUSTED_TOKENS, error=error, failure="budget")
        return replace(spent, may_pass=True, retry_after=_pause(retry_after)) if _QUOTA in codes else spent
    if status == 400 and codes & _POLICIES:
        return Said(status=Status.REFUSED, error=error, failure="refused")
    failure = _REASONS.get(status) or ("5xx" if status >= 500 else OTHER)
    return replace(unanswered(failure, error), retry_after=_pause(retry_after))


def unanswered(failure: str, error: str) -> Said:
    """No answer, for a reason in the registry's words."""
    return Said(status=Status.MODEL, error=error, failure=failure)


def _answer(body: bytes) -> Said:
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text, refusal = message.get("content") or "", message.get("refusal") or ""
        calls = len(message.get("tool_calls") or ())
        counted = reply.get("usage") or {}
        usage = Usage(_tokens(counted, "prompt"), _tokens(counted, "completion"), 1, calls)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return unanswered("body", "the reply is not a chat completion")
    text, refusal = clean(text if isinstance(text, str) else ""), clean(str(refusal))
    if calls:
        return Said(usage)
    if refusal or finish == "content_filter":
        return Said(
            usage, Status.REFUSED, text or refusal, f"the model refused: {refusal}"[:_ERROR_CHARACTERS]
        )
    if finish == "length":
        return Said(usage, Status.TOO_LARGE, text, "the answer is longer than the model may write")
    if (size := len(text.encode(errors="replace"))) > MAX_RESULT_BYTES:
        return Said(
            usage, Status.TOO_LARGE, text, f"the answer is {size} bytes; {MAX_RESULT_BYTES} are taken"
        )
    return Said(usage, Status.COMPLETED, text)


def _pause(seconds: str) -> timedelta | None:
    """None if nobody says, or not in seconds."""
    return min(timedelta(seconds=int(seconds[:9])), MAX_RETRY_AFTER) if seconds.isdecimal() else None


def _tokens(counted: Mapping[str, Any], kind: str) -> int:
    """As the provider counts, if that can be."""
    return min(max(int(counted.get(f"{kind}_tokens") or 0), 0), _MOST_TOKENS)


def _error(body: bytes) -> tuple[str, set[str]]:
    """The error's own words, from OpenAI's shape or whatever text there is, and its codes."""
    try:
        error = json.loads(body)["error"]
        found, codes = error["message"], {str(error.get("code")), str(error.get("type"))}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        found, codes = body.decode(errors="replace"), set()
    return clean(" ".join(str(found).split())[:_ERROR_CHARACTERS]) or "no text", codes
