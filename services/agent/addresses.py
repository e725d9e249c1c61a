"""Where the agent's servers are, as its environment says: JSON, read strictly."""

from __future__ import annotations

import json
import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from .tools.tool import Server

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_MOST = 64
_KEYS = {"name", "endpoint", "tags", "identity"}


def servers_of(text: str) -> tuple[Server, ...]:
    """AGENT_MCP_SERVERS; empty: none. ValueError names what is wrong, and where."""
    given = _list("AGENT_MCP_SERVERS", text)
    found = tuple(_server(f"AGENT_MCP_SERVERS[{n}]", each) for n, each in enumerate(given))
    names = [server.name for server in found]
    if len(set(names)) < len(names):
        raise ValueError("AGENT_MCP_SERVERS: two have the same name")
    return found


def uris_of(text: str) -> tuple[str, ...]:
    """AGENT_SUBSCRIBE; empty: none. ValueError."""
    found = _list("AGENT_SUBSCRIBE", text)
    for n, uri in enumerate(found):
        if not (isinstance(uri, str) and uri.isprintable() and ":" in uri and len(uri) <= 2048):
            raise ValueError(f"AGENT_SUBSCRIBE[{n}]: is no URI")
    uris = tuple(str(uri) for uri in found)
    if len(set(uris)) < len(uris):
        raise ValueError("AGENT_SUBSCRIBE: a URI is there twice")
    return uris


def safe(url: str) -> bool:
    """Whether prompts and keys may travel there: not in the clear, except on loopback."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and _loopback(host)))
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether one can listen there: an IP address, or localhost."""
    try:
        ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _server(path: str, given: object) -> Server:
    if not isinstance(given, dict):
        raise ValueError(f"{path}: is no object")
    if unknown := sorted(given.keys() - _KEYS):
        raise ValueError(f"{path}.{unknown[0]}: is not known; there are name, endpoint, tags and identity")
    name, endpoint, tags = given.get("name"), given.get("endpoint"), given.get("tags", [])
    is_shown_ours = given.get("identity", False)
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(f"{path}.name: is not lower case letters, digits and dashes, at most 63")
    if not (isinstance(endpoint, str) and safe(endpoint)):
        raise ValueError(f"{path}.endpoint: {endpoint!r} is not https, nor http on loopback")
    if not (isinstance(tags, list) and all(isinstance(tag, str) and tag.isprintable() for tag in tags)):
        raise ValueError(f"{path}.tags: is no list of text")
    if not isinstance(is_shown_ours, bool):
        raise ValueError(f"{path}.identity: is not true or false")
    if is_shown_ours and not endpoint.startswith("https:"):
        raise ValueError(f"{path}.identity: goes with https, and {endpoint!r} is not")
    return Server(name, endpoint, tuple(tags), is_shown_ours)


def _list(name: str, text: str) -> list[object]:
    if not text:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: is not JSON: {error}") from error
    if not isinstance(found, list) or not 1 <= len(found) <= _MOST:
        raise ValueError(f"{name}: is no JSON list of 1 to {_MOST}")
    return found


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
