"""The model's endpoint over HTTP: one request, one outcome, never an exception.

aiohttp and not the official client: a call costs a fifth of the CPU (0.3 ms), and the process starts a
quarter of a second sooner and 24 MiB smaller. Retries are not made here: the engine or the queue makes them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from libs import telemetry
from libs.identity import Identity

from .run import Answer, Failure, Fault, outcome
from .tls import Believed

if TYPE_CHECKING:
    from aiohttp import ClientSession

MAX_REPLY_BYTES = 8 * 1024 * 1024
_KEEPALIVE_SECONDS = 4.0  # shorter than servers', or a request would now and then meet a closed connection
_CONNECT_SECONDS = 10.0
_LARGE = Failure("model: the reply is larger than 8 MiB", "body", Fault.ITEM)


class Model:
    """An OpenAI-compatible endpoint, such as https://api.openai.com/v1. `key` is asked for every call."""

    def __init__(
        self,
        session: ClientSession,
        base_url: str,
        key: Callable[[], str],
        tracer: Tracer,
        believed: Believed | None,
    ) -> None:
        self._session = session
        self._believed = believed
        self._base_url = base_url.rstrip("/")
        self._key = key
        self._tracer = tracer

    async def complete(self, request: dict[str, object]) -> Answer | Failure:
        """A chat completion, as a span of the run's trace."""
        model, address = str(request["model"]), urlsplit(self._base_url)
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": model,
            "server.address": address.hostname or "",
            "server.port": address.port or (443 if address.scheme == "https" else 80),
        }
        with self._tracer.start_as_current_span(
            f"chat {model}", kind=SpanKind.CLIENT, attributes=attributes
        ) as span:
            reply = await self._call("POST", "/chat/completions", json.dumps(request, ensure_ascii=False))
            result = reply if isinstance(reply, Failure) else outcome(*reply, datetime.now(UTC))
            _describe(span, result)
            return result

    async def check(self) -> Failure | None:
        """Why the endpoint is no use to us now. One that merely has no list of models is fine."""
        reply = await self._call("GET", "/models")
        if isinstance(reply, Failure):
            return reply
        if reply[0] not in (401, 403):
            return None
        refused = outcome(*reply, datetime.now(UTC))
        assert isinstance(refused, Failure)
        return refused

    async def _call(
        self, method: str, path: str, body: str = ""
    ) -> tuple[int, dict[str, str], bytes] | Failure:
        from aiohttp import ClientError

        try:
            headers = self._headers()
        except (OSError, ValueError) as error:
            return Failure(f"OPENAI_API_KEY: {error}", "auth", Fault.AGENT)
        url, data = self._base_url + path, BytesIO(body.encode(errors="replace")) if body else None
        try:
            tls = self._believed.context() if self._believed else True
            async with self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False, ssl=tls
            ) as response:
                read = bytearray()
                async for part in response.content.iter_any():
                    read += part
                    if len(read) > MAX_REPLY_BYTES:
                        return _LARGE
                return response.status, {k.title(): v for k, v in response.headers.items()}, bytes(read)
        except TimeoutError:
            return Failure("model: no answer in time", "timeout", Fault.MODEL)
        except (ClientError, OSError) as error:
            return Failure(f"model: {error or type(error).__name__}", "unreachable", Fault.MODEL)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        telemetry.inject(headers)
        if key := self._key():
            if not key.isprintable():
                raise ValueError("the key is more than one line of text")
            headers["Authorization"] = f"Bearer {key}"
        return headers


@asynccontextmanager
async def connect(
    base_url: str,
    key: Callable[[], str],
    answer_within: timedelta,
    tracer: Tracer,
    *,
    ca_file: Path | None = None,
    identity: Identity | None = None,
) -> AsyncIterator[Model]:
    """A model whose calls take at most `answer_within`. No connection is made before the first. An https
    endpoint is believed by the system's authorities and those in `ca_file`. With an `identity` its root is
    believed too, and its certificate is shown if the endpoint asks for one."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector  # a tenth of a second

    limits = ClientTimeout(total=answer_within.total_seconds(), sock_connect=_CONNECT_SECONDS)
    connector = TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
    async with ClientSession(connector=connector, timeout=limits) as session:
        believed = Believed(ca_file, identity) if base_url.startswith("https") else None
        yield Model(session, base_url, key, tracer, believed)


def _describe(span: Span, result: Answer | Failure) -> None:
    """The result in the words of the semantic conventions for generative AI; never its content."""
    if isinstance(result, Failure):
        span.set_attribute("error.type", result.kind)
        span.set_status(Status(StatusCode.ERROR))
        return
    span.set_attribute("gen_ai.response.model", result.model)
    span.set_attribute("gen_ai.response.id", result.id)
    span.set_attribute("gen_ai.response.finish_reasons", [result.finish_reason])
    span.set_attribute("gen_ai.usage.input_tokens", result.input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", result.output_tokens)
