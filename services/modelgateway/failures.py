"""Errors as the callers' own APIs have them."""

from __future__ import annotations

from typing import Any

from grpc import StatusCode

from libs.errors import MeshError, UnavailableError

from .budgets import BudgetError

_INVALID, _API = "invalid_request_error", "api_error"
_TOLD: dict[StatusCode, tuple[int, str, str | None]] = {
    StatusCode.INVALID_ARGUMENT: (400, _INVALID, None),
    StatusCode.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    StatusCode.PERMISSION_DENIED: (403, "permission_error", "permission_denied"),
    StatusCode.NOT_FOUND: (404, _INVALID, "model_not_found"),
    StatusCode.FAILED_PRECONDITION: (503, _API, "pool_unusable"),
    StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    StatusCode.DEADLINE_EXCEEDED: (504, _API, "timeout"),
    StatusCode.UNIMPLEMENTED: (404, _INVALID, "unknown_url"),
    StatusCode.UNAVAILABLE: (503, _API, "unavailable"),
}
_INTERNAL = (500, _API, "internal_error")


class ProviderError(UnavailableError):
    """A provider did not answer as it should."""

    reason = "PROVIDER"

    def __init__(self, message: str, kind: str = "provider_error") -> None:
        super().__init__(message)
        self.kind = kind
        """As metrics and records have it."""


def http_status(error: MeshError) -> int:
    """Of an error's answer."""
    return _told(error)[0]


def openai_error(error: MeshError) -> dict[str, Any]:
    """The body of an error's answer."""
    _, kind, code = _told(error)
    told: dict[str, Any] = {"message": _message(error), "type": kind, "param": None, "code": code}
    if isinstance(error, BudgetError):
        told |= error.budget
    return {"error": told}


def anthropic_error(error: MeshError) -> dict[str, Any]:
    """The same, as the Messages API has it."""
    status, kind, _ = _told(error)
    kind = {404: "not_found_error", 429: "rate_limit_error"}.get(status, kind)
    return {"type": "error", "error": {"type": kind, "message": _message(error)}}


def _told(error: MeshError) -> tuple[int, str, str | None]:
    if isinstance(error, BudgetError):
        return 429, "insufficient_quota", "insufficient_quota"
    if isinstance(error, ProviderError):
        return 504 if error.kind == "timeout" else 502, _API, error.kind
    return _TOLD.get(error.code, _INTERNAL)


def _message(error: MeshError) -> str:
    return str(error) if error.code is not StatusCode.INTERNAL else "internal error"
