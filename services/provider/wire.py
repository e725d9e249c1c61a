"""OpenAI's chat completions as JSON: what we read of a request, and what we answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .summary import estimate_tokens, summarize

MODEL = "agentctl-extractive"
DISCLOSURE = "no language model: sentences are picked by word frequency, token counts are estimates"
CONTEXT_TOKENS = 128_000
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_UNSUPPORTED = ("functions", "audio", "logprobs")

Json = dict[str, object]


class RefusedError(Exception):
    """A request that gets OpenAI's error body instead of a completion."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            status, "server_error" if status >= 500 else "invalid_request_error"
        )
        self.body: Json = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Request:
    """What decides the answer."""

    document: str  # the last user message
    prompt_tokens: int
    max_tokens: int | None
    stream: bool
    include_usage: bool


def request_from_json(body: object) -> Request:
    """Raises RefusedError, naming the parameter, for what is malformed, too long or unsupported."""
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be a JSON object")
    for name in _UNSUPPORTED:
        if body.get(name):
            raise _unsupported(name)
    if body.get("n") not in (None, 1):
        raise _unsupported("n", "only 1 choice is offered")
    _check_tools(body)
    if _object(body, "response_format").get("type") not in (None, "text"):
        raise _unsupported("response_format", "only text is offered")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RefusedError(400, "you must provide a model parameter", param="model")
    if model != MODEL:
        raise RefusedError(
            404, f"the model {model!r} does not exist; this is {MODEL}", code="model_not_found", param="model"
        )
    spoken = _messages(body)
    asked = [text for role, text in spoken if role == "user"]
    if not asked:
        raise RefusedError(400, "no message has the role user", param="messages")
    prompt_tokens = sum(estimate_tokens(text) for _, text in spoken)
    if prompt_tokens > CONTEXT_TOKENS:
        raise RefusedError(
            400,
            f"the maximum context is {CONTEXT_TOKENS} tokens; the messages have about {prompt_tokens}",
            code="context_length_exceeded",
            param="messages",
        )
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise RefusedError(400, "stream must be a boolean", param="stream")
    return Request(
        document=asked[-1],
        prompt_tokens=prompt_tokens,
        max_tokens=_max_tokens(body),
        stream=stream,
        include_usage=_object(body, "stream_options").get("include_usage") is True,
    )


@dataclass(frozen=True)
class Completion:
    """An answer, in whole or as chunks."""

    id: str
    created: int  # seconds since the epoch
    text: str
    finish_reason: str
    prompt_tokens: int

    @classmethod
    def of(cls, request: Request, *, id: str, created: int) -> Completion:
        """The summary of the request's document, cut where its max_tokens say so."""
        text, finish = summarize(request.document), "stop"
        if request.max_tokens is not None and estimate_tokens(text) > request.max_tokens:
            text, finish = text.encode()[: request.max_tokens * 4].decode(errors="ignore"), "length"
        return cls(id, created, text, finish, request.prompt_tokens)

    def whole(self) -> Json:
        """The body of an answer that is not streamed."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.text, "refusal": None},
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }
        return self._envelope("chat.completion") | {"choices": [choice], "usage": self.usage()}

    def chunks(self, *, include_usage: bool) -> Iterator[Json]:
        """The events of a streamed answer: the role, a word each, the end, and the usage if asked for."""
        absent: Json = {"usage": None} if include_usage else {}
        envelope = self._envelope("chat.completion.chunk")
        deltas = [{"role": "assistant", "content": ""}, *({"content": w} for w in _words(self.text))]
        for delta in deltas:
            yield envelope | absent | {"choices": [_choice(delta, None)]}
        yield envelope | absent | {"choices": [_choice({}, self.finish_reason)]}
        if include_usage:
            yield envelope | {"choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        """Estimates; `system_fingerprint` says so."""
        written = estimate_tokens(self.text)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        }

    def _envelope(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": MODEL,
            "system_fingerprint": DISCLOSURE,
        }


def model_card() -> Json:
    """What GET /v1/models says of the only model."""
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "agentctl", "description": DISCLOSURE}


def _choice(delta: Mapping[str, str], finish: str | None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _words(text: str) -> Iterator[str]:
    for i, word in enumerate(text.split(" ")):
        yield word if i == 0 else f" {word}"


def _unsupported(name: str, why: str = "not offered here") -> RefusedError:
    return RefusedError(400, f"unsupported parameter {name}: {why}", code="unsupported_parameter", param=name)


def _object(body: Mapping[str, object], name: str) -> dict[str, object]:
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise RefusedError(400, f"{name} must be an object", param=name)
    return value


def _check_tools(body: Mapping[str, object]) -> None:
    """Tools may be offered, as every agent offers its own, and are never called: so who insists on a call is
    refused."""
    tools = body.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RefusedError(400, "tools must be a list of objects", param="tools")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise _unsupported("tool_choice", "no tool is ever called here: auto or none")


def _max_tokens(body: Mapping[str, object]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RefusedError(400, f"{name} must be a positive integer", param=name)
        return value
    return None


def _messages(body: Mapping[str, object]) -> list[tuple[str, str]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages must be a list that is not empty", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, where: str) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise RefusedError(400, f"{where} must be an object", param=where)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise RefusedError(400, f"{where}.role must be one of {sorted(_ROLES)}", param=f"{where}.role")
    if content is None and role == "assistant":
        return role, ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        raise RefusedError(400, f"{where}.content must be text or text parts", param=f"{where}.content")
    return role, "\n".join(str(text) for text in texts)
