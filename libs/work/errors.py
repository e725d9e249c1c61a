"""What can become of work, as exceptions: verdicts of the server, and what a handler may raise."""

from __future__ import annotations

from datetime import timedelta

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import ConflictError, ExhaustedError


class QueueFullError(ExhaustedError):
    """The queue is at its cap; the item was not added."""

    def __init__(self, depth: int, cap: int) -> None:
        super().__init__(f"the queue holds {depth} unsettled items, its cap is {cap}")
        self.depth = depth
        self.cap = cap


class ItemIdConflictError(ConflictError):
    """The id was used before for another payload, queue or dedupe key; nothing was added."""

    def __init__(self, id: str) -> None:
        super().__init__(f"item {id} exists with another payload, queue or dedupe key")
        self.id = id


class LeaseLostError(ConflictError):
    """The item is no longer ours. `lost_reason` is a name of the proto's LostReason without its prefix,
    `holder` who has it now, where we may know.
    """

    def __init__(self, lost_reason: pb.LostReason.ValueType, holder: str = "") -> None:
        self.lost_reason = pb.LostReason.Name(lost_reason).removeprefix("LOST_REASON_")
        self.holder = holder
        super().__init__(f"lease lost: {self.lost_reason}{f', now held by {holder}' if holder else ''}")


class SettledError(ConflictError):
    """The item was settled before, in another way; `state` says how."""

    def __init__(self, state: work_pb2.WorkState.ValueType) -> None:
        super().__init__(f"already {work_pb2.WorkState.Name(state).removeprefix('WORK_STATE_')}")
        self.state = state


class Retry(Exception):
    """Raise it in a handler: this attempt failed, try again, at the earliest `after` from now."""

    def __init__(self, error: str, after: timedelta | None = None) -> None:
        super().__init__(error)
        self.after = after


class Fatal(Exception):
    """Raise it in a handler: no retry can help, to the dead letters."""


class Release(Exception):
    """Raise it in a handler: not here and not now. The item is given back; the attempt does not count."""
