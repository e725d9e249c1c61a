"""The bytes between a caller and one endpoint. They pass as they are; the credential is added here only.

Redirects are refused: a credential goes where the pool says. Nothing is decompressed or decoded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ConnectError, PyreqwestError, RequestTimeoutError
from pyreqwest.request import StreamRequest
from pyreqwest.response import Response, ResponseBodyReader

from .asked import Asked
from .events import Cutter, data_of
from .failures import ProviderError
from .pools import Endpoint

DONE = b"[DONE]"
FORWARDED = ("openai-beta", "anthropic-version", "anthropic-beta", "idempotency-key")
"""Headers of a caller that a provider gets."""
_RETURNED = (
    "content-type",
    "content-encoding",
    "retry-after",
    "x-request-id",
    "request-id",
    "openai-processing-ms",
    "openai-version",
)
_MOST_ERROR_BYTES = 1024 * 1024
_MOST_EVENT_BYTES = 8 * 1024 * 1024
_RETRYABLE = (408, 429)
_AGENT = "agentctl-modelgateway"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: as it goes on, and its data."""

    raw: bytes
    data: bytes


Events = AsyncGenerator[Event, None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint said: all of it, or its events."""

    status: int
    headers: Mapping[str, str]
    endpoint: str
    body: bytes = b""
    events: Events | None = None
    error: str = ""
    """What kind of failure it is, as records have it."""


class RelayError(ProviderError):
    """An endpoint gave no answer, before any of it reached the caller."""

    def __init__(
        self,
        message: str,
        kind: str,
        *,
        answer: Answer | None = None,
        retry_after: float = 0.0,
        is_of_endpoint: bool = True,
    ) -> None:
        super().__init__(message, kind)
        self.answer = answer
        """For the caller, if no other endpoint has a better one."""
        self.retry_after = retry_after
        self.is_of_endpoint = is_of_endpoint
        """Another endpoint might do better."""


class BrokenError(ProviderError):
    """A stream broke off, after some of it has reached the caller."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to one endpoint."""

    endpoint: Endpoint
    ask: Asked
    secret: str = field(repr=False)
    """Empty: it wants none."""
    headers: Mapping[str, str]
    deadline: float
    """On `time.monotonic()`."""


@dataclass(frozen=True)
class Patience:
    """Seconds, and bytes of an answer."""

    connect: float = 10.0
    first_byte: float = 120.0
    idle: float = 60.0
    most_bytes: int = 32 * 1024 * 1024


class Provider:
    """Asks endpoints."""

    def __init__(self, client: Client, patience: Patience) -> None:
        self._client = client
        self._patience = patience

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        patience: Patience = Patience(),
        ca_file: Path | None = None,
    ) -> AsyncIterator[Provider]:
        """Trusts the system's authorities and those of the PEM file. OSError or ValueError for a bad one."""
        builder = (
            ClientBuilder()
            .no_proxy()
            .follow_redirects(False)
            .referer(False)
            .connect_timeout(timedelta(seconds=patience.connect))
            # a request that is cancelled before its answer begins stays in the client until then
            .read_timeout(timedelta(seconds=max(patience.first_byte, patience.idle)))
            .gzip(False)
            .brotli(False)
            .zstd(False)
            .deflate(False)
            .user_agent(_AGENT)
        )
        if ca_file is not None:
            builder = builder.add_root_certificate_pem(await asyncio.to_thread(ca_file.read_bytes))
        async with builder.build() as client:
            yield cls(client, patience)

    async def ask(self, attempt: Attempt) -> Answer:
        """The answer of an endpoint, once its first byte is there. RelayError."""
        endpoint = attempt.endpoint
        first_by = min(time.monotonic() + self._patience.first_byte, attempt.deadline)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(max(0.0, first_by - time.monotonic())):
                    response = await stack.enter_async_context(self._request(attempt))
                    first = await response.body_reader.read_chunk()
            except ConnectError:
                raise RelayError(f"endpoint {endpoint.name} cannot be reached", "unreachable") from None
            except (TimeoutError, RequestTimeoutError):
                raise RelayError(f"endpoint {endpoint.name} did not answer in time", "timeout") from None
            except PyreqwestError:
                raise RelayError(f"endpoint {endpoint.name} broke off", "broken_off") from None
            piece = None if first is None else bytes(first)
            if not 200 <= response.status < 300:
                return await self._refused(attempt, response, piece)
            headers = _returned(response)
            kind = headers.get("content-type", "")
            if attempt.ask.streams and kind.startswith("text/event-stream"):
                events = self._events(stack.pop_all(), response.body_reader, piece, attempt)
                return Answer(response.status, headers, endpoint.name, events=events)
            body = await self._whole(attempt, response, piece, self._patience.most_bytes)
            return Answer(response.status, headers, endpoint.name, body)

    def _request(self, attempt: Attempt) -> StreamRequest:
        endpoint, credential = attempt.endpoint, attempt.endpoint.credential
        url = endpoint.url(attempt.ask.operation.path)
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if attempt.ask.streams else "application/json",
            "accept-encoding": "identity",
        }
        headers |= {name: attempt.headers[name] for name in FORWARDED if name in attempt.headers}
        if endpoint.provider == "anthropic":
            headers.setdefault("anthropic-version", "2023-06-01")
        if credential is not None:
            default = "x-api-key" if endpoint.provider == "anthropic" else "authorization"
            header = credential.header.lower() or default
            if credential.query:
                url += f"{'&' if '?' in url else '?'}{credential.query}={quote(attempt.secret, safe='')}"
            else:
                bearer = "Bearer " if header == "authorization" else ""
                headers[header] = bearer + attempt.secret
        left = timedelta(seconds=max(0.001, attempt.deadline - time.monotonic()))
        request = self._client.post(url).headers(headers).body_bytes(attempt.ask.body).timeout(left)
        return request.streamed_read_buffer_limit(1).build_streamed()  # with the first bytes; 0 costs a turn

    async def _refused(self, attempt: Attempt, response: Response, first: bytes | None) -> Answer:
        name, status = attempt.endpoint.name, response.status
        if status < 400:
            raise RelayError(f"endpoint {name} redirects, which is refused", "redirect")
        if status in (401, 403):
            raise RelayError(f"endpoint {name} refused the pool's credential", "credential")
        body = await self._whole(attempt, response, first, _MOST_ERROR_BYTES)
        is_retryable = status in _RETRYABLE or status >= 500
        kind = "rate_limited" if status == 429 else "provider_error" if is_retryable else "refused"
        if attempt.secret and attempt.secret.encode() in body:
            raise RelayError(f"endpoint {name} answered {status}, and echoed the credential", kind)
        answer = Answer(status, _returned(response), name, body, error=kind)
        if is_retryable:
            wait = response.get_header("retry-after") or ""
            raise RelayError(
                f"endpoint {name} answered {status}",
                kind,
                answer=answer,
                retry_after=float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 6 else 0.0,
            )
        return answer

    async def _whole(self, attempt: Attempt, response: Response, piece: bytes | None, most: int) -> bytes:
        pieces, size = [], 0
        # To hear that nothing follows costs a turn; in HTTP/2 the stream would be reset without.
        whole = response.get_header("content-length") if response.version == "HTTP/1.1" else None
        while piece is not None:
            pieces.append(piece)
            size += len(piece)
            name = attempt.endpoint.name
            if size > most:
                message = f"the answer of endpoint {name} is larger than {most} bytes"
                raise RelayError(message, "too_large", is_of_endpoint=False)
            if whole == str(size):
                break
            try:
                piece = await self._next(response.body_reader, attempt.deadline)
            except (TimeoutError, RequestTimeoutError):
                raise RelayError(f"endpoint {name} did not end its answer in time", "timeout") from None
            except PyreqwestError:
                raise RelayError(f"endpoint {name} broke off", "broken_off") from None
        return b"".join(pieces)

    async def _events(
        self, stack: AsyncExitStack, reader: ResponseBodyReader, piece: bytes | None, attempt: Attempt
    ) -> Events:
        name, cutter, size = attempt.endpoint.name, Cutter(_MOST_EVENT_BYTES), 0
        async with stack:
            while piece is not None:
                size += len(piece)
                if size > self._patience.most_bytes:
                    raise BrokenError(f"the answer of endpoint {name} is too large", "too_large")
                try:
                    events = cutter.push(piece)
                except ValueError:
                    raise BrokenError(f"an event of endpoint {name} is too large", "too_large") from None
                for raw in events:
                    yield Event(raw, data_of(raw))
                try:
                    piece = await self._next(reader, attempt.deadline)
                except (TimeoutError, RequestTimeoutError):
                    raise BrokenError(f"endpoint {name} went silent", "timeout") from None
                except PyreqwestError:
                    raise BrokenError(f"endpoint {name} broke off", "broken_off") from None
            if rest := cutter.rest():
                yield Event(rest, data_of(rest))

    async def _next(self, reader: ResponseBodyReader, deadline: float) -> bytes | None:
        seconds = min(self._patience.idle, deadline - time.monotonic())
        async with asyncio.timeout(max(0.0, seconds)):
            piece = await reader.read_chunk()
        return None if piece is None else bytes(piece)


def _returned(response: Response) -> dict[str, str]:
    return {name: value for name in _RETURNED if (value := response.get_header(name)) is not None}
