"""The model wire: OpenAI chat completions, a connection a call, no streaming; failover in the given order."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from .exits import Json
from .options import Options

_CEILING = aiohttp.ClientTimeout(total=120)
_DISCOVERY = aiohttp.ClientTimeout(total=2)
_ANSWER_TOKENS = 4096
_RETRIES_OF_NEWER = (0.25, 0.5)  # 1.4.0 gives up on a 429 or 5xx after about 0.76 s


class ModelError(Exception):
    """No endpoint answered usably. `reason` is a value of the metrics' label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _FailoverError(ModelError):
    """Of the class that the next endpoint is tried for: no connection, timeout, 5xx, 429."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call as the model wrote it; `arguments` is None when they were no JSON object."""

    ident: str
    name: str
    arguments: Json | None


@dataclass(frozen=True)
class Reply:
    """One answer of the model, and its message for the conversation."""

    text: str
    calls: tuple[ToolCall, ...]
    message: Json
    tokens_in: int
    tokens_out: int


class Model:
    """The endpoints of `--intelligence`."""

    def __init__(self, options: Options, http: aiohttp.ClientSession) -> None:
        self._options = options
        self._http = http

    async def complete(self, messages: list[Json], tools: list[Json], traceparent: str) -> Reply:
        """Raises ModelError."""
        newer = self._options.is_newer
        body = {
            "model": self._options.model,
            "max_completion_tokens" if newer else "max_tokens": _ANSWER_TOKENS,
            "temperature": 0.0,
            "messages": messages,
            "tools": tools,
            "tool_choice": "auto",
        }
        pauses = [*_RETRIES_OF_NEWER] if newer else []
        while True:
            try:
                return await self._failover(body, traceparent)
            except _FailoverError:
                if not pauses:
                    raise
                await asyncio.sleep(pauses.pop(0))

    async def models(self) -> list[str]:
        """The ids that the first endpoint lists; none when it does not tell."""
        url = completions_url(self._options.endpoints[0]).replace("/chat/completions", "/models")
        token = self._options.tokens[0]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with self._http.get(url, headers=headers, timeout=_DISCOVERY) as answer:
                body = json.loads(await answer.text())
            return [str(model["id"]) for model in body["data"]]
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
            return []

    async def _failover(self, body: Json, traceparent: str) -> Reply:
        failure: ModelError | None = None
        for url, token in zip(self._options.endpoints, self._options.tokens, strict=True):
            try:
                return await self._ask(url, token, body, traceparent)
            except _FailoverError as error:
                failure = error
        raise failure or ModelError("other", "no endpoint")

    async def _ask(self, url: str, token: str | None, body: Json, traceparent: str) -> Reply:
        headers = {"traceparent": traceparent}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with self._http.post(
                completions_url(url), json=body, headers=headers, timeout=_CEILING
            ) as answer:
                text = await answer.text()
        except TimeoutError as error:
            raise _FailoverError("timeout", "the model did not answer in time") from error
        except aiohttp.ClientError as error:
            raise _FailoverError("unreachable", str(error)) from error
        if answer.status >= 500:
            raise _FailoverError("5xx", f"the model answered {answer.status}")
        if answer.status == 429:
            raise _FailoverError("other", "the model answered 429")
        if answer.status >= 400:
            auth = answer.status in (401, 403)
            raise ModelError("auth" if auth else "other", f"the model answered {answer.status}")
        return _reply(text)


def completions_url(url: str) -> str:
    """An endpoint without a path is asked at the usual one."""
    return f"{url.rstrip('/')}/v1/chat/completions" if urlsplit(url).path in ("", "/") else url


def _reply(text: str) -> Reply:
    try:
        body = json.loads(text)
        message = body["choices"][0]["message"]
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], _arguments(call["function"].get("arguments")))
            for call in message.get("tool_calls") or []
        )
        usage = body.get("usage") or {}
        return Reply(
            message.get("content") or "",
            calls,
            {"role": "assistant", "content": message.get("content"), "tool_calls": message.get("tool_calls")},
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError("other", f"the model's answer is not a chat completion: {error!r}") from error


def _arguments(text: str | None) -> Json | None:
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None
