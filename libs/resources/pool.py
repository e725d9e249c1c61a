"""ModelPool: where models are. MCPServerSet: where tools are."""

from __future__ import annotations

import msgspec


class PoolSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """An OpenAI-compatible endpoint and its models."""

    endpoint: str
    """Its base URL, such as https://api.example.com/v1. Agents refuse plain http except on loopback."""
    models: list[str]
    """The models that agents may ask for; the first is the default."""


class Server(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """One MCP server."""

    name: str
    endpoint: str
    tags: list[str] = []


class ServerSetSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """MCP servers under names that are unique in the set."""

    servers: list[Server]
