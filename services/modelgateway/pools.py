"""ModelPool objects as the gateway reads them: endpoints, models, budgets, credentials by name.

What admission should have refused is refused here too, since a credential is sent to what a pool says.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pyreqwest.http import Url

from libs.errors import PreconditionError
from libs.resources import pool as declared
from libs.resources.pool import HEADER, PARAMETER, RESERVED_HEADER, Credential, PoolSpec, Provider

from .budgets import Budget, Key, Scope

_SPAN = re.compile(r"(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?", re.ASCII)
_HEADER = re.compile(HEADER, re.ASCII)
_RESERVED_HEADER = re.compile(RESERVED_HEADER, re.ASCII | re.IGNORECASE)
_PARAMETER = re.compile(PARAMETER, re.ASCII)
_WRITTEN = re.compile(r"https?://[^\s\\@#\x00-\x20\x7f]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked endpoint."""

    name: str
    base: str
    """URL up to the operation's path, without a slash at the end."""
    query: str
    provider: Provider
    credential: Credential | None

    def url(self, path: str) -> str:
        """Of an operation, such as /chat/completions."""
        return f"{self.base}{path}{self.query}"


@dataclass(frozen=True, slots=True)
class Pool:
    """A checked pool."""

    namespace: str
    name: str
    endpoints: Mapping[str, Endpoint]
    models: tuple[str, ...]
    budgets: tuple[declared.Budget, ...]
    allows_unmetered: bool
    """What happens while the store is down."""

    @property
    def provider(self) -> Provider:
        """All its endpoints are of one kind."""
        return next(iter(self.endpoints.values())).provider

    def budgets_of(self, agent: str, fleet: str) -> tuple[Budget, ...]:
        """Those that apply to a caller; "" for what it is not."""
        names = {"pool": "", "fleet": fleet, "agent": agent}
        found = (
            Budget(
                Key(self.namespace, self.name, Scope[each.per.upper()], names[each.per], span(each.window)),
                each.tokens,
            )
            for each in self.budgets
            if each.per == "pool" or names[each.per]
        )
        return tuple(sorted(found, key=lambda budget: (budget.key.scope, budget.key.window)))

    def label(self, model: str) -> str:
        """A model as metrics name it: few words."""
        return model if model in self.models else "other"


def read_pool(thing: Mapping[str, Any], stand_in_url: str = "") -> Pool:
    """The pool that an object declares. PreconditionError says why it cannot be used."""
    metadata = thing["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    try:
        spec = msgspec.convert(thing.get("spec"), PoolSpec)
        return _checked(namespace, name, spec, stand_in_url)
    except (msgspec.ValidationError, ValueError) as error:
        raise PreconditionError(f"ModelPool {namespace}/{name} cannot be used: {error}") from error


def _checked(namespace: str, name: str, spec: PoolSpec, stand_in_url: str) -> Pool:
    if spec.endpoint and spec.endpoints:
        raise ValueError("it has both endpoint and endpoints")
    given = spec.endpoints
    if not given:
        if not (url := spec.endpoint or stand_in_url):
            raise ValueError("it names no endpoint, and there is no stand-in here")
        given = [declared.Endpoint(name="default", url=url)]
    endpoints = {each.name: _endpoint(each, spec.provider) for each in given}
    if len(endpoints) != len(given):
        raise ValueError("two endpoints have the same name")
    if len({(each.per, span(each.window)) for each in spec.budgets}) != len(spec.budgets):
        raise ValueError("two budgets are per the same thing and window")
    return Pool(
        namespace, name, endpoints, tuple(spec.models), tuple(spec.budgets), spec.on_store_down == "allow"
    )


def span(window: str) -> int:
    """Seconds of 30s, 5m, 1h30m; 0 for none. ValueError."""
    if not window:
        return 0
    match = _SPAN.fullmatch(window)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if not (total := hours * 3600 + minutes * 60 + seconds):
        raise ValueError("a window has to be a duration, such as 30s, 5m or 24h")
    return total


def _endpoint(spec: declared.Endpoint, provider: Provider) -> Endpoint:
    base, query = _target(spec.url)
    credential = spec.credential
    if credential is not None:
        if credential.header and credential.query:
            raise ValueError("a credential goes into a header or the query, not into both")
        header = credential.header
        if header and (not _HEADER.fullmatch(header) or _RESERVED_HEADER.fullmatch(header)):
            raise ValueError("a credential's header is none that may be set")
        if credential.query and not _PARAMETER.fullmatch(credential.query):
            raise ValueError("a credential's query is no parameter's name")
    return Endpoint(spec.name, base, query, provider, credential)


def _target(written: str) -> tuple[str, str]:
    """Base and query. By the parser of the client that will ask there, so that both read the same."""
    if not _WRITTEN.fullmatch(written):
        raise ValueError(
            "a URL has to be https://host[:port][/path], or http on loopback, and hold no secret"
        )
    url = Url(written)
    host = (url.host_str or "").strip("[]")
    if url.scheme != "https" and not _is_loopback(host):
        raise ValueError("plain http is for loopback only")
    query = f"?{url.query_string}" if url.query_string else ""
    return str(url).partition("?")[0].rstrip("/"), query


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
