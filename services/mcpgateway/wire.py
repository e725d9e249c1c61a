"""JSON-RPC and server-sent events, as MCP's streamable HTTP has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Json = dict[str, Any]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
PARAMETERS = "io.modelcontextprotocol/"
"""Prefix of the keys in `_meta` that are the protocol's own."""


class RpcError(Exception):
    """What a JSON-RPC peer answered instead of a result; or what we do."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class ProtocolError(Exception):
    """A server does not speak MCP as it should. The text has nothing of what it said."""


class StatusError(ProtocolError):
    """An HTTP status that is no answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answered with HTTP status {status}")
        self.status = status


def message_of(data: bytes | bytearray | str) -> Json:
    """One message. ProtocolError."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise ProtocolError("answered with what is no JSON") from None
    if not isinstance(found, dict):
        raise ProtocolError("answered with what is no JSON-RPC message")
    return found


def result_of(message: Json) -> Json:
    """The result of a response. RpcError, ProtocolError."""
    error = message.get("error")
    if isinstance(error, dict):
        code, text = error.get("code"), error.get("message")
        raise RpcError(code if isinstance(code, int) else -32603, str(text or ""), error.get("data"))
    result = message.get("result")
    if not isinstance(result, dict):
        raise ProtocolError("answered with no result")
    return result


def request(identity: int | str, method: str, params: Mapping[str, Any] | None) -> bytes:
    """A request, encoded."""
    body: Json = {"jsonrpc": "2.0", "id": identity, "method": method}
    return msgspec.json.encode(body if params is None else body | {"params": params})


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """A notification, encoded."""
    body: Json = {"jsonrpc": "2.0", "method": method}
    return msgspec.json.encode(body if params is None else body | {"params": params})


class Events:
    """Pieces of a stream into the data of its events. ProtocolError if one has more than `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        found: list[bytes] = []
        self._line += piece
        *lines, rest = self._line.split(b"\n")
        self._line = rest
        for line in lines:
            self._take(bytes(line.removesuffix(b"\r")), found)
        if self._size + len(rest) > self._most:
            raise ProtocolError(f"sent an event of more than {self._most} bytes")
        return found

    def _take(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
            self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._size += len(line)
