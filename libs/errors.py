"""The errors that cross the wire as themselves.

MeshError                 has a status code and a reason; the doorway turns it into a status, `dial` back.
├── InvalidError          INVALID_ARGUMENT; names the fields that are wrong
├── UnauthenticatedError  UNAUTHENTICATED; we do not know who is calling
├── DeniedError           PERMISSION_DENIED; we know, and the answer is no
├── NotFoundError         NOT_FOUND; also what one may not see
├── ConflictError         ABORTED; the caller's view is out of date
│   └── ExistsError       ALREADY_EXISTS; another thing has that id
├── PreconditionError     FAILED_PRECONDITION; the state of things forbids it, a retry does not help
│   ├── StaleShardError    a queue is not divided as the caller says
│   ├── ShardRequiredError a queue is divided, and the caller names no shard
│   └── QueueInUseError    a queue's items are held
├── ExhaustedError        RESOURCE_EXHAUSTED; a cap is reached
├── DeadlineError         DEADLINE_EXCEEDED
├── UnimplementedError    UNIMPLEMENTED
├── UnavailableError      UNAVAILABLE; try again, nothing is known to have changed
│   └── UnreachableError  nobody of ours answered at all; crosses the wire as its base
└── InternalError         INTERNAL; a bug, the details are in the log
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from grpc import StatusCode


class MeshError(Exception):
    """Base. `str(error)` is for the caller's eyes; `reason` is for programs."""

    code: ClassVar[StatusCode] = StatusCode.UNKNOWN
    reason: ClassVar[str] = "UNKNOWN"
    facts: Mapping[str, str] = MappingProxyType({})
    """What programs may want to know beside the reason: few and short."""


class InvalidError(MeshError):
    """A request is malformed. `violations` maps field paths to what is allowed there."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "INVALID"

    def __init__(self, message: str = "", violations: dict[str, str] | None = None) -> None:
        self.violations = violations or {}
        listed = "; ".join(f"{field}: {why}" for field, why in self.violations.items())
        super().__init__(message or listed)


class UnauthenticatedError(MeshError):
    """The caller has no certificate that we believe."""

    code = StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class DeniedError(MeshError):
    """The caller may not."""

    code = StatusCode.PERMISSION_DENIED
    reason = "DENIED"


class NotFoundError(MeshError):
    """There is no such thing, or not for this caller."""

    code = StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class ConflictError(MeshError):
    """Somebody else was first; read again and decide again."""

    code = StatusCode.ABORTED
    reason = "CONFLICT"


class ExistsError(ConflictError):
    """There is one of that id already, and it is another."""

    code = StatusCode.ALREADY_EXISTS
    reason = "EXISTS"


class PreconditionError(MeshError):
    """The state of things forbids it until somebody changes that state."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "PRECONDITION"


class StaleShardError(PreconditionError):
    """The queue is not divided as the caller says. Nothing was granted or changed."""

    reason = "STALE_SHARD"


class ShardRequiredError(PreconditionError):
    """The queue is divided, and the claim names no shard. Nothing was granted."""

    reason = "SHARD_REQUIRED"


class QueueInUseError(PreconditionError):
    """Items of the queue are held; until they are not, it cannot be divided in another way."""

    reason = "QUEUE_IN_USE"


class ExhaustedError(MeshError):
    """A cap is reached: queues, watches, parked calls, message size."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "EXHAUSTED"


class DeadlineError(MeshError):
    """The deadline passed; the outcome is unknown to the caller."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE"


class UnimplementedError(MeshError):
    """No such method here."""

    code = StatusCode.UNIMPLEMENTED
    reason = "UNIMPLEMENTED"


class UnavailableError(MeshError):
    """A dependency is down or we are draining; safe to repeat."""

    code = StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class UnreachableError(UnavailableError):
    """There was no answer: nobody listens, the connection broke, or the handshake failed."""


class InternalError(MeshError):
    """A bug of ours."""

    code = StatusCode.INTERNAL
    reason = "INTERNAL"
