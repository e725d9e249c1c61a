"""Calls of agentd's `/mcp`: JSON-RPC 2.0 over mTLS on loopback, one request a connection.

Verbs are bare methods (`a2a.Drain`), resources are read as `agent://…`, runs are tasks of A2A.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, NoReturn

from libs.errors import (
    DeadlineError,
    ExhaustedError,
    InternalError,
    InvalidError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnimplementedError,
    UnreachableError,
)

from .loopback import NAME

if TYPE_CHECKING:
    import ssl

    from aiohttp import ClientResponse, ClientSession

Body = Mapping[str, Any]

MAX_BODY = 8 * 1024 * 1024
_SECONDS = 5.0
_SILENCE_SECONDS = 40.0  # a stream says something every 15 s
_LISTEN_VERSION = "2026-07-28"  # the first revision of MCP that has subscriptions/listen
_ERRORS: dict[int, type[MeshError]] = {
    -32001: NotFoundError,  # no such task
    -32002: NotFoundError,  # no such resource
    -32004: PreconditionError,  # the task has ended
    -32601: UnimplementedError,
    -32602: InvalidError,
}
_PREFIX = "TASK_STATE_"


class GoneError(UnreachableError):
    """Nobody listens: the agent's process has ended, or has not begun."""


@dataclass(frozen=True, slots=True)
class Task:
    """A run as agentd tells of it."""

    id: str
    state: str
    """WORKING, COMPLETED, FAILED, REJECTED, CANCELED, …: A2A's word without its prefix."""
    text: str = ""
    """The distillate, of one that is completed."""
    reason: str = ""
    """What the status says beside its state."""

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state in ("COMPLETED", "FAILED", "REJECTED", "CANCELED")


class Foreign:
    """A client. Each call has a deadline. UnreachableError (GoneError where nobody listens), DeadlineError,
    UnavailableError for an answer that is none, and the errors that agentd's own codes amount to."""

    def __init__(self, session: ClientSession, url: str, tls: Callable[[], ssl.SSLContext]) -> None:
        self._session = session
        self._url = url
        self._tls = tls
        self._ids = itertools.count(1)

    async def call(self, method: str, params: Body | None = None, seconds: float = _SECONDS) -> Body:
        """One request and its result."""
        from aiohttp import ClientError

        try:
            async with (
                asyncio.timeout(seconds),
                self._session.post(
                    self._url, data=self._envelope(method, params), ssl=self._tls(), **_OPTIONS
                ) as response,
            ):
                return _result(await _read(response))
        except TimeoutError:
            raise DeadlineError(f"the agent did not answer {method} in {seconds:g}s") from None
        except (ClientError, OSError) as error:
            _unreachable(error)

    async def read(self, name: str, seconds: float = _SECONDS) -> Body:
        """The resource agent://<name>."""
        result = await self.call("resources/read", {"uri": f"agent://{name}"}, seconds)
        try:
            body = json.loads(result["contents"][0]["text"])
        except (LookupError, TypeError, ValueError) as error:
            raise UnavailableError(f"agent://{name} is not what it should be: {error!r}") from error
        return _mapping(body)

    async def listen(self, uris: Sequence[str]) -> AsyncIterator[str]:
        """The URI of each resource that changes, from now on; the first is "" and says that we listen. Ends
        when the agent ends it."""
        params = {"notifications": {"resourceSubscriptions": list(uris)}}
        headers = {"MCP-Protocol-Version": _LISTEN_VERSION, "Mcp-Method": "subscriptions/listen"}
        async for event in self._stream("subscriptions/listen", params, headers):
            uri = _mapping(event.get("params") or {}).get("uri")
            if uri:
                yield str(uri)
            elif event.get("method") is None:
                _result(json.dumps(event).encode())  # an error, or the end
                return
            else:
                yield ""

    async def _stream(self, method: str, params: Body, headers: Body) -> AsyncIterator[Body]:
        from aiohttp import ClientError, ClientTimeout

        limits = ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SILENCE_SECONDS)
        try:
            async with self._session.post(
                self._url,
                data=self._envelope(method, params),
                ssl=self._tls(),
                timeout=limits,
                **{**_OPTIONS, "headers": {**_HEADERS, **headers}},
            ) as response:
                if response.content_type != "text/event-stream":
                    _result(await _read(response))
                    return
                async for line in response.content:
                    if line.startswith(b"data:"):
                        yield _mapping(json.loads(line[5:]))
        except TimeoutError:
            raise DeadlineError("the agent fell silent") from None
        except ValueError as error:
            raise UnavailableError(f"the agent's stream is not what it should be: {error}") from error
        except (ClientError, OSError) as error:
            _unreachable(error)

    async def send(self, text: str, message_id: str) -> Task:
        """Begins a run. ExhaustedError if agentd refuses to."""
        message = {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}]}
        # It blocks unless told otherwise, and a run that blocks cannot be paused or cancelled.
        params = {"message": message, "configuration": {"returnImmediately": True}}
        try:
            result = await self.call("SendMessage", params)
        except InternalError as error:
            raise ExhaustedError(f"the agent begins no run: {error}") from error
        return _task(result.get("task"))

    async def task(self, task_id: str) -> Task:
        """How a run is. NotFoundError."""
        return _task(await self.call("GetTask", {"id": task_id}))

    async def tasks(self) -> list[Task]:
        """The runs that it knows."""
        return [_task(each) for each in (await self.call("ListTasks", {})).get("tasks") or ()]

    async def cancel(self, task_id: str) -> None:
        """Asks a run to end at its next turn. What it answers says nothing: `task` does. Nothing if it has
        ended; NotFoundError."""
        try:
            await self.call("CancelTask", {"id": task_id})
        except PreconditionError:
            return

    def _envelope(self, method: str, params: Body | None) -> BytesIO:
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params or {}}
        return BytesIO(json.dumps(request, ensure_ascii=False).encode(errors="replace"))


_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Connection": "close",
}
_OPTIONS: dict[str, Any] = {"headers": _HEADERS, "server_hostname": NAME, "allow_redirects": False}


async def _read(response: ClientResponse) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_BODY:
            raise UnavailableError("the agent's answer is larger than 8 MiB")
    if response.content_type == "text/event-stream":  # of one event
        lines = [line[5:] for line in bytes(body).splitlines() if line.startswith(b"data:")]
        return lines[-1] if lines else b""
    return bytes(body)


def _result(body: bytes) -> Body:
    try:
        reply = _mapping(json.loads(body))
    except ValueError as error:
        raise UnavailableError(f"the agent's answer is no JSON: {body[:100]!r}") from error
    if (failure := reply.get("error")) is None:
        return _mapping(reply.get("result") or {})
    code, text = _mapping(failure).get("code"), str(_mapping(failure).get("message"))
    raise _ERRORS.get(code if isinstance(code, int) else 0, InternalError)(text)


def _task(body: object) -> Task:
    task = _mapping(body)
    status = _mapping(task.get("status") or {})
    message = _mapping(status.get("message") or {})
    text = "\n".join(_texts(artifact) for artifact in task.get("artifacts") or ())
    return Task(
        str(task.get("id", "")), str(status.get("state", "")).removeprefix(_PREFIX), text, _texts(message)
    )


def _texts(body: object) -> str:
    return "\n".join(str(part["text"]) for part in _mapping(body).get("parts") or () if "text" in part)


def _mapping(value: object) -> Body:
    if not isinstance(value, Mapping):
        raise UnavailableError(f"the agent's answer is not what it should be: {str(value)[:100]}")
    return value


def _unreachable(error: Exception) -> NoReturn:
    from aiohttp import ClientConnectorError

    refused = isinstance(error, ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError)
    said = f"the agent is not there: {error or type(error).__name__}"
    raise (GoneError if refused else UnreachableError)(said) from error
