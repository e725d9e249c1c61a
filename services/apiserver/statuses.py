"""What is said to HTTP callers: errors and reports as metav1.Status. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from libs.errors import (
    ConflictError,
    DeadlineError,
    DeniedError,
    ExhaustedError,
    ExistsError,
    InvalidError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)

from .verbs import GROUP, Order, Outcome, Report, Stage, Target

RETRY_SECONDS = 1
_RETRIED = (429, 503)
_NAMED = 3  # pods that a message names; the causes have all
_ERRORS: dict[type[MeshError], tuple[int, str]] = {
    InvalidError: (400, "BadRequest"),
    UnauthenticatedError: (401, "Unauthorized"),
    DeniedError: (403, "Forbidden"),
    NotFoundError: (404, "NotFound"),
    ExistsError: (409, "AlreadyExists"),
    ConflictError: (409, "Conflict"),
    PreconditionError: (409, "Conflict"),
    ExhaustedError: (429, "TooManyRequests"),
    UnimplementedError: (501, "NotImplemented"),
    UnavailableError: (503, "ServiceUnavailable"),
    DeadlineError: (504, "Timeout"),
}
_REASONS = {
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    413: "RequestEntityTooLarge",
    500: "InternalError",
}
_RUN_ID, _RUN = "run_id", "run"  # as an order, and as a body has it
_REACHED = {
    Stage.WOULD: "would be asked",
    Stage.ACCEPTED: "took it",
    Stage.IN_EFFECT: "put it into effect",
    Stage.FINISHED: "finished",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A status code, a body that is JSON, and headers."""

    code: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def of_error(error: MeshError, target: Target | None = None) -> Answer:
    """Why it was not done, or not tried; what is no error of these is a bug of ours, or a lack of rights."""
    known = next((_ERRORS[each] for each in type(error).__mro__ if each in _ERRORS), (500, "InternalError"))
    code, reason = known
    causes: list[dict[str, str]] = []
    if isinstance(error, InvalidError) and _RUN_ID in error.violations:
        violations = {_RUN if name == _RUN_ID else name: why for name, why in error.violations.items()}
        error = InvalidError(violations=violations)
    if isinstance(error, InvalidError) and error.violations:
        code, reason = 422, "Invalid"
        causes = [
            {"reason": "FieldValueInvalid", "message": why, "field": name}
            for name, why in error.violations.items()
        ]
    return failure(code, str(error) or reason, reason, target, causes)


def failure(
    code: int,
    message: str,
    reason: str = "",
    target: Target | None = None,
    causes: Iterable[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """A Status that says no; without a reason, that of the code."""
    details = _details(target)
    if listed := list(causes):
        details["causes"] = listed
    said = dict(headers or {})
    if code in _RETRIED:
        details["retryAfterSeconds"] = RETRY_SECONDS
        said["Retry-After"] = str(RETRY_SECONDS)
    reason = reason or _REASONS.get(code, "InternalError" if code >= 500 else "BadRequest")
    return Answer(code, _status("Failure", code, message, details, reason), said)


def of_report(order: Order, report: Report) -> Answer:
    """200 if all pods came as far as asked, 207 if some did, 504 if none did for want of time, or 502."""
    reached = Stage.WOULD if order.dry_run else report.until
    message = f"{order.verb} {order.target.namespace}/{order.target.name}: {report.count} {_REACHED[reached]}"
    if report.is_done:
        return Answer(200, _status("Success", 200, message, _details(order.target)))
    missing = report.missing
    named = "; ".join(f"{each.pod}: {_why(each)}" for each in missing[:_NAMED])
    more = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    if report.done:
        code, reason = 207, "PartialFailure"
    elif all(map(_is_late, missing)):
        code, reason = 504, "Timeout"
    else:
        code, reason = 502, "BadGateway"
    return failure(code, f"{message}; {named}{more}", reason, order.target, map(_cause, missing))


def _is_late(outcome: Outcome) -> bool:
    return outcome.stage is not Stage.FAILED or outcome.reason == DeadlineError.reason


def _why(outcome: Outcome) -> str:
    return outcome.message or outcome.reason or f"only {outcome.stage.name}"


def _cause(outcome: Outcome) -> dict[str, str]:
    reason = outcome.reason or outcome.stage.name
    return {"reason": reason, "message": _why(outcome), "field": f"pods[{outcome.pod}]"}


def _details(target: Target | None) -> dict[str, Any]:
    return {"name": target.name, "group": GROUP, "kind": str(target.kind)} if target else {}


def _status(
    status: str, code: int, message: str, details: Mapping[str, Any], reason: str = ""
) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": status,
        "message": message,
        **({"reason": reason} if reason else {}),
        "details": details,
        "code": code,
    }
