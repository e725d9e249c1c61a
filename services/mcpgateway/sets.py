"""Server sets, as MCPServerSet objects state them.

What admission should have refused is refused here too, since a credential is sent to what a set says.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from libs.errors import InvalidError
from libs.resources import pool as declared
from libs.resources.pool import HEADER, RESERVED_HEADER, SecretRef, ServerSetSpec, ToolRules

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_HEADER = re.compile(HEADER, re.ASCII)
_RESERVED_HEADER = re.compile(RESERVED_HEADER, re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HeaderAuth:
    """A header with what is in the Secret. In Authorization a value without a scheme is a bearer token."""

    secret_ref: SecretRef
    name: str


@dataclass(frozen=True, slots=True)
class OAuth:
    """OAuth 2 client credentials."""

    client_id: str
    secret_ref: SecretRef
    issuer: str = ""
    """Of tokens. Empty: the first one that the server's metadata (RFC 9728) names."""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class NoAuth:
    """No credential."""


@dataclass(frozen=True, slots=True)
class Server:
    """A checked MCP server, whose URL is http or https."""

    name: str
    endpoint: str
    auth: NoAuth | HeaderAuth | OAuth = NoAuth()
    tools: ToolRules = field(default_factory=ToolRules)
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tool → JSON Schema that its arguments must satisfy beside the server's own."""


@dataclass(frozen=True, slots=True)
class ServerSet:
    """The servers of a set, in order."""

    namespace: str
    name: str
    servers: tuple[Server, ...]


def read_set(thing: dict[str, Any]) -> ServerSet:
    """InvalidError says what is wrong with the object."""
    metadata = thing["metadata"]
    try:
        spec = msgspec.convert(thing.get("spec") or {}, ServerSetSpec)
        servers = tuple(map(_server, spec.servers))
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidError(f"MCPServerSet {metadata['name']}: {error}") from error
    return ServerSet(metadata["namespace"], metadata["name"], servers)


def _server(spec: declared.Server) -> Server:
    if not _NAME.fullmatch(spec.name):
        raise ValueError("name must be a DNS label")
    if not is_http(spec.endpoint):
        raise ValueError(
            f"{spec.name}: endpoint must be an http or https URL without user, query and fragment"
        )
    auth = _auth(spec.name, spec.auth or declared.Auth(mode="none"))
    return Server(spec.name, spec.endpoint, auth, spec.tools or ToolRules(), spec.arguments)


def _auth(server: str, spec: declared.Auth) -> NoAuth | HeaderAuth | OAuth:
    if spec.mode == "none":
        return NoAuth()
    if spec.secret_ref is None:
        raise ValueError(f"{server}: auth.secretRef is missing")
    if spec.mode == "header":
        name = spec.name or "Authorization"
        if not _HEADER.fullmatch(name) or _RESERVED_HEADER.fullmatch(name):
            raise ValueError(f"{server}: auth.name is no header for a credential")
        return HeaderAuth(spec.secret_ref, name)
    if not spec.client_id:
        raise ValueError(f"{server}: auth.clientId is missing")
    if spec.issuer and not is_http(spec.issuer):
        raise ValueError(
            f"{server}: auth.issuer must be an http or https URL without user, query and fragment"
        )
    return OAuth(spec.client_id, spec.secret_ref, spec.issuer, spec.scope)


def is_http(url: str, scheme: Literal["http", "https", ""] = "") -> bool:
    """Whether it is an absolute URL of that scheme, or of either, and nothing is hidden in it."""
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    is_bare = not (parts.query or parts.fragment or "@" in parts.netloc)
    schemes = (scheme,) if scheme else ("http", "https")
    return bool(plain and is_bare and port_is_good and parts.scheme in schemes and parts.hostname)


def is_loopback(url: str) -> bool:
    """Whether its host is a loopback address, or localhost."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
