"""An error on its way over the wire: into a status with its reason, and back into the same class."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError

from libs.errors import (
    ConflictError,
    DeadlineError,
    DeniedError,
    ExhaustedError,
    ExistsError,
    InternalError,
    InvalidError,
    MeshError,
    NotFoundError,
    PreconditionError,
    UnauthenticatedError,
    UnimplementedError,
    UnreachableError,
)

DOMAIN = "agentctl.dev"
"""Whose reasons the ErrorInfo of our statuses holds."""

_MESSAGE_BYTES = 1000  # statuses travel in header fields, which peers cap at 8 KiB
_VIOLATIONS = 10
_VIOLATION_BYTES = 150
_BY_CODE: dict[grpc.StatusCode, type[MeshError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: DeniedError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ABORTED: ConflictError,
    grpc.StatusCode.ALREADY_EXISTS: ExistsError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ExhaustedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
    grpc.StatusCode.UNAVAILABLE: UnreachableError,  # ours say their reason
    grpc.StatusCode.CANCELLED: UnreachableError,  # not by us: the server or the way to it went away
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.DATA_LOSS: InternalError,
}


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended; `details` is a serialised google.rpc.Status, empty if there is nothing to add."""

    code: grpc.StatusCode
    message: str = ""
    details: bytes = b""


def status_of(error: MeshError) -> Status:
    """An error as it crosses the wire: its code, its reason, and the fields that are wrong, cut to fit."""
    message = _cut(str(error), _MESSAGE_BYTES)
    status = status_pb2.Status(code=error.code.value[0], message=message)
    facts = dict(error.facts)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=facts))
    if isinstance(error, InvalidError) and error.violations:
        violations = list(error.violations.items())[:_VIOLATIONS]
        request = error_details_pb2.BadRequest()
        for field, why in violations:
            request.field_violations.add(
                field=_cut(field, _VIOLATION_BYTES), description=_cut(why, _VIOLATION_BYTES)
            )
        status.details.add().Pack(request)
    return Status(error.code, message, status.SerializeToString())


def error_of(error: AioRpcError) -> MeshError:
    """What the other side raised: by its reason if that is one of ours, else by its code."""
    message = error.details() or error.code().name
    reason = ""
    violations: dict[str, str] = {}
    facts: dict[str, str] = {}
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            reason, violations, facts = _details(value)
    kind = _by_reason(reason) or _BY_CODE.get(error.code(), MeshError)
    told = kind(message, violations) if issubclass(kind, InvalidError) else kind(message)
    if facts:
        told.facts = facts
    return told


def _details(serialised: bytes | str) -> tuple[str, dict[str, str], dict[str, str]]:
    status = status_pb2.Status.FromString(serialised)
    reason, violations, facts = "", {}, {}
    for detail in status.details:
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason, facts = info.reason, dict(info.metadata)
        elif detail.Unpack(request):
            violations = {each.field: each.description for each in request.field_violations}
    return reason, violations, facts


def _by_reason(reason: str) -> type[MeshError] | None:
    kinds = [MeshError]
    for kind in kinds:  # grows: breadth first, so that the class that names a reason comes before its heirs
        if kind.__dict__.get("reason") == reason:
            return kind
        kinds.extend(kind.__subclasses__())
    return None


def _cut(text: str, size: int) -> str:
    return text.encode(errors="replace")[:size].decode(errors="ignore")
