"""One run: an item and the instruction make a request, a reply makes an outcome. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum

MAX_RESULT_BYTES = 1024 * 1024  # what coordination takes
MAX_RETRY_AFTER = timedelta(hours=24)  # likewise


class Fault(StrEnum):
    """Whose fault a failed run is, which decides what becomes of the item."""

    ITEM = "item"  # no retry can help it
    MODEL = "model"  # passes: the item is tried again later
    AGENT = "agent"  # our key, our model name: no item should suffer, the agent stops


@dataclass(frozen=True)
class Answer:
    """What the model said."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    id: str = ""
    finish_reason: str = ""


@dataclass(frozen=True)
class Failure:
    """Why there is no answer: for people, as one of a few words for metrics, and what to do about it."""

    error: str
    kind: str
    fault: Fault
    retry_after: timedelta | None = None


def document(payload: bytes) -> str | Failure:
    """The text of an item."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return Failure(
            f"the payload is not UTF-8: {error.reason} at byte {error.start}", "payload", Fault.ITEM
        )
    return text if text.strip() else Failure("the payload is empty", "payload", Fault.ITEM)


def request(model: str, instruction: str, text: str) -> dict[str, object]:
    """The chat completion to ask for. The document is a message of its own, so it is never taken for ours."""
    messages = [{"role": "system", "content": instruction.strip()}, {"role": "user", "content": text}]
    return {"model": model, "messages": messages}


def outcome(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> Answer | Failure:
    """What a reply of the model's endpoint amounts to. Header names are matched as the mapping does."""
    if status == 200:
        return _answer(body)
    error = f"model: HTTP {status}: {_message(body)}"
    if status in (401, 403, 404):
        return Failure(error, "auth" if status != 404 else "missing", Fault.AGENT)
    if status == 429 or status == 408 or status >= 500:
        kind = "throttled" if status == 429 else "5xx" if status >= 500 else "timeout"
        return Failure(error, kind, Fault.MODEL, retry_after(headers, now))
    return Failure(error, "refused", Fault.ITEM)


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
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return min(max(date - now, timedelta(0)), MAX_RETRY_AFTER)


def _answer(body: bytes) -> Answer | Failure:
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        message = choice["message"]
        text, finish = message.get("content") or "", str(choice.get("finish_reason") or "")
        refusal = message.get("refusal")
        usage = reply.get("usage") or {}
        read, written = (max(int(usage.get(f"{kind}_tokens") or 0), 0) for kind in ("prompt", "completion"))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return Failure("model: the reply is not a chat completion", "body", Fault.MODEL)
    if not isinstance(text, str):
        return Failure("model: the answer is not text", "body", Fault.MODEL)
    if refusal or finish == "content_filter":
        return Failure(f"model: refused: {refusal or finish}", "refused", Fault.ITEM)
    if finish == "length":
        return Failure("model: the answer is longer than the model may write", "length", Fault.ITEM)
    if not text.strip():
        return Failure("model: the answer is empty", "body", Fault.MODEL)
    if len(text.encode(errors="replace")) > MAX_RESULT_BYTES:
        return Failure("model: the answer is larger than 1 MiB", "length", Fault.ITEM)
    return Answer(text, read, written, str(reply.get("model") or ""), str(reply.get("id") or ""), finish)


def _message(body: bytes) -> str:
    """The error's own words, from OpenAI's shape or whatever text there is, for a line of log."""
    try:
        found = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = body.decode(errors="replace")
    return " ".join(str(found).split())[:500] or "no text"
