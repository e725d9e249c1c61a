"""ModelPool: where models are. MCPServerSet: where tools are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .agent import ModelId
from .shape import Label, Url, keyed, text, unique

UNTRUSTED_INPUT, SENSITIVE, EGRESS = TRIFECTA = ("untrusted_input", "sensitive", "egress")
"""The tags that together let a stranger's text send data out."""

_Tag = Annotated[str, text(63, "^[a-z0-9]([-a-z0-9_.]*[a-z0-9])?$", "a tag: a lower case word")]


class PoolSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """An OpenAI-compatible endpoint and its models."""

    endpoint: Url | None = None
    """Its base URL, such as https://api.example.com/v1. Agents refuse plain http except on loopback.
    Absent: the stand-in of this installation, which is no model and says so."""
    models: Annotated[list[ModelId], unique(64, least=1)]
    """The models that agents may ask for; the first is the default."""


class Server(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """One MCP server."""

    name: Label
    """What agents call it; unique in the set."""
    endpoint: Url
    """Where it is."""
    tags: Annotated[list[_Tag], unique(16)] = []
    """What kind of tools it has, in the agents' words."""


class ServerSetSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """MCP servers under names that are unique in the set."""

    servers: Annotated[list[Server], keyed("name", 64, least=1)]
    """The servers."""
