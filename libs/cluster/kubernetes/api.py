"""Requests to an API server: where they go, who we are, how long they may take, what a refusal means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException

from libs.cluster import ExpiredError, UnauthorisedError
from libs.cluster.kinds import Kind
from libs.errors import (
    ConflictError,
    InvalidError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)

_MOST_CONNECTIONS = 64
_CONNECT_SECONDS = 5.0
_RELOAD_SECONDS = 10.0
_WARNING = re.compile(r'\d{3} \S+ "(.*)"', re.DOTALL)
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ConfigException, msgspec.DecodeError)

Query = Iterable[tuple[str, str]]


def path_of(kind: Kind, namespace: str = "", name: str | None = None, subresource: str = "") -> str:
    """Where a kind is kept, or one object of it. InvalidError for a name that would lead elsewhere."""
    parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
    if kind.namespaced and (namespace or name is not None):
        parts += ["namespaces", namespace]
    parts.append(kind.plural)
    if name is not None:
        parts.append(name)
    parts += [subresource] if subresource else []
    for part in parts:  # an API server takes no such name either; a missing one would mean all objects
        if part in ("", ".", "..") or "/" in part or "%" in part:
            raise InvalidError(f"{part!r} is not a name", {"metadata.name": "must be a DNS name"})
    return "/" + "/".join(quote(part, safe="") for part in parts)


def error_of(status: int, answer: Mapping[str, Any]) -> MeshError:
    """What a Status says, in our terms. A 4xx without a class of its own is an InvalidError."""
    message = str(answer.get("message") or f"HTTP status {status}")
    causes = (answer.get("details") or {}).get("causes") or ()
    if status == 404:
        return NotFoundError(message)
    if status == 409:
        return ConflictError(message)
    if status == 410:
        return ExpiredError(message)
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return PreconditionError(message)
    if status in (401, 403):
        return UnauthorisedError(message)
    if message.startswith("failed to create typed patch object"):  # an unknown field: a 500 of theirs
        return InvalidError(message)
    if status in (408, 429) or status >= 500 or status < 400:
        return UnavailableError(message)
    violations: dict[str, str] = {}
    for cause in causes:
        field, why = str(cause.get("field", "")), str(cause.get("message", ""))
        violations[field] = f"{violations[field]}; {why}" if field in violations else why
    return InvalidError(message, violations)


class Api:
    """One API server. `load` gives its configuration, and again when it no longer takes our credentials;
    `warned` hears what it warns of."""

    def __init__(
        self,
        configuration: Configuration,
        load: Callable[[], Awaitable[Configuration]],
        deadline: float,
        warned: Callable[[str], None] = lambda _: None,
    ) -> None:
        configuration.connection_pool_maxsize = _MOST_CONNECTIONS
        # A proxy is the kubeconfig's to name; looking for one in the environment costs a thread per request.
        configuration.client_session_kwargs = {"trust_env": False}
        self._configuration = configuration
        self._load = load
        self._loaded_at = float("-inf")
        self._rest = RESTClientObject(configuration)
        self._deadline = deadline
        self._warned = warned

    async def close(self) -> None:
        """Closes all connections; what still runs on them fails."""
        await self._rest.close()

    async def ask(
        self, method: str, path: str, query: Query = (), body: object = None, *, form: str = "json"
    ) -> dict[str, Any]:
        """The JSON that is answered within the deadline, or the error that it means."""
        limits = aiohttp.ClientTimeout(total=self._deadline, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._request(method, path, query, body, form, limits) as response:
                return msgspec.json.decode(await response.read(), type=dict[str, Any])
        except _FAILURES as error:
            raise UnavailableError(f"{method} {path}: {_words(error)}") from error

    async def call(
        self, method: str, path: str, query: Query, body: object, seconds: float
    ) -> tuple[int, Mapping[str, Any]]:
        """The HTTP status and what is answered in so many seconds, be it a refusal."""
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._answer(method, path, query, body, "json", limits) as response:
                return response.status, _status(await response.read())
        except _FAILURES as error:
            raise UnavailableError(f"{method} {path}: {_words(error)}") from error

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query, *, silence: float | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer's pieces as they come. UnavailableError after so many seconds without any, and if the
        connection breaks."""
        limits = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=silence)
        try:
            async with self._request("GET", path, query, None, "json", limits) as response:
                try:
                    yield response.content.iter_any()
                finally:
                    _leave(response)
        except _FAILURES as error:
            raise UnavailableError(f"GET {path}: {_words(error)}") from error

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, query: Query, body: object, form: str, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._answer(method, path, query, body, form, limits) as response:
            if response.status >= 300:
                raise error_of(response.status, _status(await response.read()))
            yield response

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, query: Query, body: object, form: str, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        response = await self._send(method, path, query, body, form, limits)
        if response.status == 401 and await self._renewed():
            response.release()
            response = await self._send(method, path, query, body, form, limits)
        async with response:
            for warning in response.headers.getall("Warning", ()):
                self._warned(_warning(warning))
            yield response

    async def _send(
        self, method: str, path: str, query: Query, body: object, form: str, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = {
            "Accept": "application/json",
            "User-Agent": "agentctl",
            "Content-Type": f"application/{form}",
        }
        if bearer := (await self._configuration.auth_settings()).get("BearerToken"):
            headers["Authorization"] = bearer["value"] or ""
        url = f"{self._configuration.host}{path}?{urlencode(list(query))}"
        request: Any = self._rest.request  # untyped
        response: aiohttp.ClientResponse = (
            await request(method, url, headers, body, _request_timeout=limits)
        ).response
        return response

    async def _renewed(self) -> bool:
        """Whether credentials were loaded again, which is not done each time that we are refused. Tokens of
        exec plugins have a short life."""
        now = asyncio.get_running_loop().time()
        if now < self._loaded_at + _RELOAD_SECONDS:
            return False
        self._loaded_at = now
        fresh = await self._load()
        self._configuration.api_key = fresh.api_key
        self._configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
        return True


def _status(data: bytes) -> Mapping[str, Any]:
    """What an error's body says; proxies on the way answer in other words than an API server."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {"message": data[:500].decode(errors="replace")}


def _warning(header: str) -> str:
    """The text of a header such as `299 - "it is old"` (RFC 7234, 5.5)."""
    match = _WARNING.fullmatch(header)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else header


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _leave(response: aiohttp.ClientResponse) -> None:
    """Drops the connection of an answer that has no end. A TLS farewell would wait for the server's, which
    nobody does: it may outlive the loop."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
