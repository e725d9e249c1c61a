"""HTTP to servers: guarded, without redirects, cookies and compression, and bounded."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from .guard import Guard
from .wire import ProtocolError

_STREAM_SILENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Patience:
    """Times in seconds, sizes in bytes."""

    connect: float = 5.0
    idle: float = 60.0
    call: float = 600.0
    most_bytes: int = 4 * 1024 * 1024


class Web:
    """An HTTP client for all servers. It keeps connections, and nothing that one of them said."""

    def __init__(self, session: aiohttp.ClientSession, guard: Guard, patience: Patience) -> None:
        self._session = session
        self._guard = guard
        self.patience = patience

    @classmethod
    @asynccontextmanager
    async def open(cls, guard: Guard, patience: Patience, ca_file: Path | None = None) -> AsyncIterator[Web]:
        """With the system's authorities and those of the file."""
        context = ssl.create_default_context()
        if ca_file is not None:
            context.load_verify_locations(ca_file)
        connector = aiohttp.TCPConnector(resolver=guard, use_dns_cache=False, ssl=context, limit=0)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "agentctl-mcpgateway"},
            auto_decompress=False,
            trust_env=False,
        ) as session:
            yield cls(session, guard, patience)

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        is_stream: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request. GuardError, aiohttp.ClientError, TimeoutError, ProtocolError for a redirect."""
        self._guard.check(url)
        silence = _STREAM_SILENCE_SECONDS if is_stream else self.patience.idle
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=self.patience.connect,
            connect=2 * self.patience.connect,
            sock_read=silence,
        )
        async with self._session.request(
            method, url, headers=headers, data=body, allow_redirects=False, timeout=timeout
        ) as response:
            if 300 <= response.status < 400:
                raise ProtocolError("answered with a redirect, which is not followed")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise ProtocolError("answered with a compressed body, which was not asked for")
            yield response

    async def whole(self, response: aiohttp.ClientResponse) -> bytes:
        """The body. ProtocolError if it is too large."""
        most = self.patience.most_bytes
        if (response.content_length or 0) > most:
            raise ProtocolError(f"answered with more than {most} bytes")
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > most:
                raise ProtocolError(f"answered with more than {most} bytes")
        return bytes(body)
