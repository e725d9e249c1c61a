"""A tool as the model sees it: its name there, what it takes, what became of a call. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

MAX_NAME = 64
"""What OpenAI's API takes, of the letters, digits, `_` and `-`."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9-]")
_MARK = 8


@dataclass(frozen=True, slots=True)
class Server:
    """A server of tools: https, or http on loopback."""

    name: str
    endpoint: str
    tags: tuple[str, ...] = ()
    is_shown_ours: bool = False
    """Our certificate."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One that may be called."""

    name: str
    """As the model calls it: `<server>_<tool>`."""
    server: str
    own_name: str
    """As its server calls it."""
    description: str
    schema: Mapping[str, Any]
    """Of its arguments."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a call, in words for the model."""

    text: str
    outcome: Literal["ok", "error", "timeout"] = "ok"
    is_away: bool = False
    """Its server did not get it."""


def named(tools: Iterable[Tool]) -> Sequence[Tool]:
    """The tools with the names that the model may call them by, sorted, no two alike. A name is made of the
    server's and the tool's only, so it stays the same whatever else there is; of the same tool listed twice
    the first counts."""
    taken: dict[str, Tool] = {}
    for tool in sorted(tools, key=lambda each: (each.server, each.own_name)):
        name, salt = model_name(tool.server, tool.own_name), ""
        while (other := taken.get(name)) and (other.server, other.own_name) != (tool.server, tool.own_name):
            salt += "."
            name = model_name(tool.server, tool.own_name, salt)
        taken.setdefault(name, Tool(name, tool.server, tool.own_name, tool.description, tool.schema))
    return sorted(taken.values(), key=lambda each: each.name)


def model_name(server: str, tool: str, salt: str = "") -> str:
    """`<server>_<tool>` in letters that every provider takes. Where that loses something, or does not say
    where the server's name ends, it ends in a mark made of the two names."""
    plain = f"{_FOREIGN.sub('_', server)}_{re.sub(r'[^a-zA-Z0-9_-]', '_', tool)}"
    if not salt and plain == f"{server}_{tool}" and "_" not in server and len(plain) <= MAX_NAME:
        return plain
    mark = sha256(f"{server}\0{tool}{salt}".encode()).hexdigest()[:_MARK]
    return f"{plain[: MAX_NAME - _MARK - 1]}_{mark}"


def bounded(result: Result, most: int) -> Result:
    """The result, or that it is too large: a part of it would be taken for the whole."""
    size = len(result.text.encode(errors="replace"))
    if size <= most:
        return result
    return Result(f"error: the result is {size} bytes, and at most {most} can be read; ask for less", "error")
