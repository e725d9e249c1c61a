"""How many tokens: before a call by its request, after it by what the provider says or by what was seen.

A provider's answer is not re-encoded: only its `usage` is looked at. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

BYTES_PER_TOKEN = 4
_MOST = 100_000_000  # of one call: what is more, is no number of tokens

_Count = Annotated[int, Meta(ge=0, le=_MOST)]


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    """Chat completions and embeddings say prompt and completion, responses and messages input and output."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    total_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None


class _Holder(msgspec.Struct):
    usage: _Usage | None = None


class _Said(msgspec.Struct):
    """An answer, or one event of it."""

    usage: _Usage | None = None
    response: _Holder | None = None
    message: _Holder | None = None
    choices: list[msgspec.Raw] | None = None


_said = msgspec.json.Decoder(_Said)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of one call."""

    input: int
    output: int
    cached: int = 0
    estimated: bool = False

    @property
    def total(self) -> int:
        """What counts against budgets."""
        return self.input + self.output


def of_bytes(size: int) -> int:
    """About so many tokens."""
    return -(-size // BYTES_PER_TOKEN)


class Meter:
    """What the provider has said of its usage, and what was seen of its answer."""

    def __init__(self, request_bytes: int) -> None:
        self._request_bytes = request_bytes
        self._input: int | None = None
        self._output: int | None = None
        self._cached = 0
        self._events = self._bytes = 0
        self._shortest = 1 << 62

    def whole(self, body: bytes) -> None:
        """All of an answer that is no stream."""
        self._bytes, self._events, self._shortest = len(body), 0, 0
        self._read(body)

    def event(self, data: bytes) -> bool:
        """The data of one event. Whether it is the chunk that tells the usage of a chat, and nothing else."""
        size = len(data)
        self._events += 1
        self._bytes += size
        self._shortest = min(self._shortest, size)
        if b'"usage"' not in data:
            return False
        said = self._read(data)
        return said is not None and said.usage is not None and said.choices == []

    def result(self, *, answered: bool = True) -> Tokens:
        """What the call came to. Without an answer nothing was used, unless the provider said so."""
        if self._input is not None and self._output is not None:
            return Tokens(self._input, self._output, min(self._cached, self._input))
        if not answered and self._input is None and not self._bytes:
            return Tokens(0, 0)
        # What all events have is not text; and an event without text is at most one token.
        text = self._bytes - self._events * self._shortest if self._events else self._bytes
        given = of_bytes(self._request_bytes) if self._input is None else self._input
        return Tokens(given, max(self._events, of_bytes(text)), min(self._cached, given), estimated=True)

    def _read(self, body: bytes) -> _Said | None:
        try:
            said = _said.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        for holder in (said.message, said.response, said):
            if holder is not None and holder.usage is not None:
                self._take(holder.usage, final=holder is not said.message)
        return said

    def _take(self, usage: _Usage, *, final: bool) -> None:
        read, made = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        if usage.prompt_tokens is not None:
            self._input = usage.prompt_tokens
            # embeddings make none, and say the total only
            self._output = usage.completion_tokens or 0
        elif usage.input_tokens is not None:
            # Anthropic's does not count what the cache had, OpenAI's does
            self._input = usage.input_tokens + (read or 0) + (made or 0)
        if usage.output_tokens is not None and final:
            self._output = usage.output_tokens
        for details in (usage.prompt_tokens_details, usage.input_tokens_details):
            if details is not None and details.cached_tokens is not None:
                self._cached = details.cached_tokens
        if read is not None:
            self._cached = read
