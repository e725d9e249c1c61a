"""A request to a model: what the gateway has to know of it, and the few fields that it may set. Pure.

All other values go on byte for byte, whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec

from libs.errors import InvalidError, NotFoundError

from . import tokens
from .pools import Pool


class Operation(IntEnum):
    """What is asked; numbers are those of the proto, but for the last, which is no RPC."""

    CHAT = 1
    RESPONSES = 2
    EMBEDDINGS = 3
    MESSAGES = 4

    @property
    def path(self) -> str:
        """Below an endpoint's URL."""
        return _PATHS[self]

    @property
    def word(self) -> str:
        """As GenAI conventions name it."""
        return "embeddings" if self is Operation.EMBEDDINGS else "chat"


_PATHS = {
    Operation.CHAT: "/chat/completions",
    Operation.RESPONSES: "/responses",
    Operation.EMBEDDINGS: "/embeddings",
    Operation.MESSAGES: "/messages",
}
_OURS = (b'"model"', b'"stream"', b'"stream_options"')
_MOST_TOKENS = 100_000_000


class _Read(msgspec.Struct):
    """What is looked at."""

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, msgspec.Raw] | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None


_read = msgspec.json.Decoder(_Read)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it goes to the provider."""

    operation: Operation
    body: bytes
    model: str
    streams: bool
    hides_usage: bool
    """The chunk that tells the usage of a stream is not for the caller."""
    tokens: int
    """To reserve."""


def read(
    operation: Operation, body: bytes, pool: Pool, assumed_output: int, *, streams: bool | None = None
) -> Asked:
    """What a caller asks of a pool. `streams` is set if it is given. InvalidError; NotFoundError for a model
    that the pool does not have."""
    if (pool.provider == "anthropic") != (operation is Operation.MESSAGES):
        paths = "/v1/messages" if pool.provider == "anthropic" else "OpenAI's paths"
        raise InvalidError(f"ModelPool {pool.name} is of a provider that speaks {paths}")
    try:
        told = _read.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"the body is not a request in JSON: {error}") from error
    model, options, asked_stream = told.model, told.stream_options, told.stream or False
    asked_usage = options is not None and bytes(options.get("include_usage", b"")) == b"true"
    limits = (told.max_completion_tokens, told.max_tokens, told.max_output_tokens)
    is_streamed = asked_stream if streams is None else streams
    if is_streamed and operation is Operation.EMBEDDINGS:
        raise InvalidError("embeddings are not streamed")
    changes: dict[str, bytes] = {}
    if model is None:
        model = pool.models[0]
        changes["model"] = msgspec.json.encode(model)
    elif model not in pool.models:
        raise NotFoundError(f"ModelPool {pool.name} has no model {model[:200]!r}")
    if asked_stream != is_streamed:
        changes["stream"] = b"true" if is_streamed else b"false"
    hides_usage = is_streamed and operation is Operation.CHAT and not asked_usage
    if hides_usage:
        changes["stream_options"] = _including(options)
    output = max((limit for limit in limits if limit is not None and limit > 0), default=assumed_output)
    reserved = tokens.of_bytes(len(body))
    if operation is not Operation.EMBEDDINGS:
        reserved += min(output * max(1, told.n or 1), _MOST_TOKENS)
    return Asked(operation, _edited(body, changes), model, is_streamed, hides_usage, reserved)


def _including(options: dict[str, msgspec.Raw] | None) -> bytes:
    return msgspec.json.encode({**(options or {}), "include_usage": True})


def _edited(body: bytes, changes: dict[str, bytes]) -> bytes:
    """The same bytes if nothing changes and every field is there once: of two, a provider might believe
    another one than we do."""
    if not changes and b"\\u" not in body and not any(body.count(name) > 1 for name in _OURS):
        return body
    fields = _fields.decode(body) | {name: msgspec.Raw(value) for name, value in changes.items()}
    return msgspec.json.encode(fields)
