"""JSON-RPC 2.0 as the listener speaks it: the errors, and reading of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .exits import Json

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
UNKNOWN_METHOD: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603
UNKNOWN_TASK: Final = -32001
UNKNOWN_RESOURCE: Final = -32002
NOT_CANCELABLE: Final = -32004


class RpcError(Exception):
    """An error answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Request:
    """One call; a notification has no id and gets no answer."""

    method: str
    params: Json
    ident: str | int | None
    is_notification: bool

    @classmethod
    def of(cls, body: Any) -> Request:
        """Raises RpcError for what is not a request."""
        if not isinstance(body, dict) or not isinstance(body.get("method"), str):
            raise RpcError(INVALID_REQUEST, "not a JSON-RPC request")
        params = body.get("params")
        if params is None:
            params = {}
        if not isinstance(params, dict):
            raise RpcError(INVALID_PARAMS, "params is not an object")
        return cls(body["method"], params, body.get("id"), "id" not in body)

    def answer(self, result: Json) -> Json:
        """The answer to it."""
        return {"jsonrpc": "2.0", "id": self.ident, "result": result}


def failure(ident: str | int | None, error: RpcError) -> Json:
    """The answer that says what went wrong."""
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": error.code, "message": str(error)}}


def text(params: Json, name: str) -> str:
    """A parameter that must be a non-empty string. Raises RpcError."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RpcError(INVALID_PARAMS, f"{name} is not a non-empty string")
    return value
