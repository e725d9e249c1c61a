"""Requests out of calls, outcomes out of verdicts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import InvalidError, MeshError

from .claims import Options
from .coalesce import Call
from .errors import ItemIdConflictError, LeaseLostError, QueueFullError, SettledError
from .item import MAX_CONTENT_TYPE, MAX_PAYLOAD, Submission, check_text, duration
from .task import Lease

_MAX_ERROR = 1024


def lease_to_pb(lease: Lease) -> work_pb2.Lease:
    """For the wire."""
    return work_pb2.Lease(item_id=lease.id, token=lease.token)


def split(_key: Any, calls: list[Call[Any, Any]], answer: Any, _sent: float) -> list[list[Any]]:
    """The verdicts of each call; there is one per entry, in order."""
    verdicts = list(answer.verdicts)
    if len(verdicts) == len(calls):
        return [[verdict] for verdict in verdicts]
    parts = []
    at = 0
    for call in calls:
        parts.append(verdicts[at : at + len(call.entries)])
        at += len(call.entries)
    return parts


def _entries(calls: list[Call[Any, Any]]) -> list[Any]:
    return [entry for call in calls for entry in call.entries]


def submit_request(queue: str, calls: list[Call[work_pb2.WorkItem, Any]]) -> pb.SubmitRequest:
    """Items for one queue."""
    return pb.SubmitRequest(queue=queue, items=_entries(calls))


def claim_request(options: Options, calls: list[Call[int, Any]]) -> pb.ClaimRequest:
    """One claim for all who ask; each call has as many entries as it wants items."""
    return options.request(sum(len(call.entries) for call in calls))


def renew_request(length: timedelta | None, calls: list[Call[work_pb2.Lease, Any]]) -> pb.RenewRequest:
    """Leases to prolong to one length."""
    return pb.RenewRequest(leases=_entries(calls), lease=None if length is None else duration(length))


def ack_request(options: Options | None, calls: list[Call[pb.Ack, Any]]) -> pb.AckRequest:
    """Acks, and with options one more item to claim for each."""
    return pb.AckRequest(acks=_entries(calls), claim_next=options.request(len(calls)) if options else None)


def fail_request(_: None, calls: list[Call[pb.LeaseFailure, Any]]) -> pb.FailRequest:
    """Leases that end in errors."""
    return pb.FailRequest(failures=_entries(calls))


def release_request(reason: str, calls: list[Call[work_pb2.Lease, Any]]) -> pb.ReleaseRequest:
    """Leases to give back for one reason."""
    return pb.ReleaseRequest(leases=_entries(calls), reason=reason)


def ack_to_pb(lease: Lease, result: bytes, content_type: str) -> pb.Ack:
    """An ack; InvalidError if the server would refuse the result."""
    wrong: dict[str, str] = {}
    if len(result) > MAX_PAYLOAD:
        wrong["result"] = f"at most {MAX_PAYLOAD} bytes, not {len(result)}"
    check_text(wrong, "content_type", content_type, MAX_CONTENT_TYPE)
    if wrong:
        raise InvalidError(violations=wrong)
    return pb.Ack(item_id=lease.id, token=lease.token, result=result, result_content_type=content_type)


def submission_of(verdict: pb.SubmitVerdict) -> Submission | MeshError:
    """What became of an item, the error as a value."""
    if verdict.status == pb.SUBMIT_STATUS_ACCEPTED:
        return Submission(verdict.item_id, False, verdict.state)
    if verdict.status == pb.SUBMIT_STATUS_DUPLICATE:
        return Submission(verdict.item_id, True, verdict.state)
    if verdict.status == pb.SUBMIT_STATUS_FULL:
        return QueueFullError(verdict.depth, verdict.cap)
    return ItemIdConflictError(verdict.item_id)


def lease_error_of(verdict: pb.LeaseVerdict) -> MeshError | None:
    """None: done as asked."""
    if verdict.status == pb.LEASE_STATUS_OK:
        return None
    if verdict.status == pb.LEASE_STATUS_SETTLED:
        return SettledError(verdict.state)
    return LeaseLostError(verdict.lost_reason, verdict.holder)


def raise_for(verdict: pb.LeaseVerdict) -> None:
    """LeaseLostError or SettledError, unless it was done as asked."""
    if (error := lease_error_of(verdict)) is not None:
        raise error


def cut(text: str) -> str:
    """What the server takes of a text for people: at most 1 KiB of UTF-8 without NUL."""
    return text.encode(errors="replace")[:_MAX_ERROR].decode(errors="ignore").replace("\0", " ")
