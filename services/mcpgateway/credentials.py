"""What the gateway shows a server: nothing, a header from a Secret, or a token by OAuth client credentials.

Tokens are kept until shortly before they expire; when a server refuses one, one new one is tried.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls as issuer_urls,
)
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls as resource_urls,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

from libs.errors import MeshError, PreconditionError, UnavailableError
from libs.resources.pool import SecretRef

from . import metrics
from .sets import HeaderAuth, NoAuth, OAuth, Server, is_http, is_loopback
from .web import Web
from .wire import ProtocolError, message_of

ReadSecret = Callable[[SecretRef], Awaitable[str]]
"""MeshError; it names what is missing."""

_DEFAULT_LIFETIME = 300.0
_MARGIN_SECONDS = 60.0
_TOKEN_SECONDS = 30.0
_RESOURCE_METADATA = re.compile(r'resource_metadata="([^"\s]{1,2048})"')
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")

_log = logging.getLogger(__name__)


class Credentials:
    """Of one server."""

    def __init__(
        self,
        namespace: str,
        server: Server,
        secret: ReadSecret,
        web: Web,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._server = server
        self._secret = secret
        self._web = web
        self._clock = clock
        self._token = ""
        self._good_until = float("-inf")
        self._hint: str | None = None
        self._asking = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        """For a request. MeshError."""
        match self._server.auth:
            case NoAuth():
                return {}
            case HeaderAuth(secret_ref=ref, name=name):
                value = await self._secret(ref)
                is_bare = name.lower() == "authorization" and " " not in value
                return {name: f"Bearer {value}" if is_bare else value}
            case OAuth() as auth:
                return {"Authorization": f"Bearer {await self._current(auth)}"}

    def refused(self, sent: dict[str, str], challenges: Sequence[str]) -> bool:
        """A server answered 401 to these headers: whether it is worth to ask once more."""
        if not isinstance(self._server.auth, OAuth):
            return False
        self._learn(challenges)
        if sent.get("Authorization") == f"Bearer {self._token}":
            self._token = ""
        return True

    async def _current(self, auth: OAuth) -> str:
        async with self._asking:
            if not self._token or self._clock() >= self._good_until:
                result = "error"
                try:
                    async with asyncio.timeout(_TOKEN_SECONDS):
                        self._token, lifetime = await self._ask(auth)
                    self._good_until = self._clock() + lifetime - min(_MARGIN_SECONDS, lifetime / 5)
                    result = "ok"
                except (aiohttp.ClientError, ProtocolError, TimeoutError, OSError) as error:
                    raise UnavailableError(f"{self._server.name}: no token: {_words(error)}") from error
                finally:
                    metrics.TOKENS.labels(self._namespace, self._server.name, result).inc()
            return self._token

    async def _ask(self, auth: OAuth) -> tuple[str, float]:
        """A token and its lifetime in seconds."""
        issuer = auth.issuer or await self._issuer()
        metadata = await self._first(issuer_urls(issuer, self._server.endpoint))
        if str(metadata.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
            raise ProtocolError("the metadata of the authorisation server names another issuer")
        endpoint = str(metadata.get("token_endpoint", ""))
        if not is_http(endpoint) or not _is_safe(endpoint):
            raise ProtocolError("the token endpoint is no https URL")
        form = {
            "grant_type": "client_credentials",
            "resource": resource_url_from_server_url(self._server.endpoint),
        }
        if auth.scope:
            form["scope"] = auth.scope
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        secret = await self._secret(auth.secret_ref)
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if "client_secret_basic" in methods:
            pair = f"{quote(auth.client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": auth.client_id, "client_secret": secret}
        async with self._web.send("POST", endpoint, headers, urlencode(form).encode()) as response:
            body = await self._web.whole(response)
            if response.status != 200:
                raise PreconditionError(
                    f"{self._server.name}: the authorisation server answered {response.status}"
                    " to our client credentials"
                )
        answer = message_of(body)
        token, lifetime = answer.get("access_token"), answer.get("expires_in", _DEFAULT_LIFETIME)
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ProtocolError("the authorisation server gave no token")
        if str(answer.get("token_type", "")).lower() != "bearer":
            raise ProtocolError("the authorisation server gave a token that is not a bearer token")
        has_lifetime = isinstance(lifetime, int | float) and lifetime > 0
        return token, float(lifetime) if has_lifetime else _DEFAULT_LIFETIME

    def _learn(self, challenges: Sequence[str]) -> None:
        """Where the server says that its metadata is."""
        for challenge in challenges:
            if found := _RESOURCE_METADATA.search(challenge):
                self._hint = found[1]

    async def _issuer(self) -> str:
        if self._hint is None:
            headers = {"Accept": "text/event-stream"}
            async with self._web.send("GET", self._server.endpoint, headers) as response:
                self._learn(response.headers.getall("WWW-Authenticate", []))
        metadata = await self._first(resource_urls(self._hint, self._server.endpoint))
        resource = str(metadata.get("resource", ""))
        if not check_resource_allowed(resource_url_from_server_url(self._server.endpoint), resource):
            raise ProtocolError("its metadata is of another resource")
        issuers = metadata.get("authorization_servers")
        issuer = issuers[0] if isinstance(issuers, list) and issuers else None
        if not isinstance(issuer, str) or not is_http(issuer) or not _is_safe(issuer):
            raise ProtocolError("its metadata names no authorisation server with an https URL")
        return issuer

    async def _first(self, urls: Sequence[str]) -> dict[str, Any]:
        """The first of these documents that there is."""
        for url in urls:
            if not is_http(url):
                continue
            async with self._web.send("GET", url, {"Accept": "application/json"}) as response:
                if response.status == 200:
                    return message_of(await self._web.whole(response))
        raise ProtocolError("there is no metadata for OAuth")


def _is_safe(url: str) -> bool:
    """Whether a secret may be sent there."""
    return is_http(url, "https") or is_loopback(url)


def _words(error: Exception) -> str:
    """Without what a server said."""
    return str(error) if isinstance(error, ProtocolError | MeshError) else type(error).__name__
