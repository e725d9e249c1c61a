"""Verdicts on the wires: of gRPC and of a webhook."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentctl.admission.v1 import admission_service_pb2 as pb
from libs.cluster import Object
from libs.documents import struct_of
from libs.errors import InvalidError

from . import reading, trifecta
from .verdict import Finding, Operation, Verdict

VERSION = "admission.k8s.io/v1"
RIGHTS = frozenset({"account-not-yours", "secret-not-yours", trifecta.RULE})
"""Rules that let some authors do what others may not."""
_KIND = "AdmissionReview"
_WARNING = 120  # an API server asks for no more, and cuts at 256
_LONGEST_WARNING = 250
_MOST_CAUSES = 50


class User(msgspec.Struct, frozen=True):
    """Who asks the API server."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """What an API server asks."""

    uid: str
    operation: str
    user_info: User = User()
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    sub_resource: str = ""
    dry_run: bool | None = None


class AdmissionReview(msgspec.Struct, frozen=True, rename="camel"):
    """The document that carries it."""

    api_version: str
    kind: str
    request: Request


def request_of(body: bytes) -> Request:
    """What the API server asks. InvalidError for what is no AdmissionReview of the version that we speak."""
    try:
        review = msgspec.json.decode(body, type=AdmissionReview)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"not an {_KIND}: {error}") from error
    if (review.api_version, review.kind) != (VERSION, _KIND):
        raise InvalidError(f"{review.kind} {review.api_version} is not understood; {_KIND} {VERSION} is")
    if not review.request.uid:
        raise InvalidError(f"the {_KIND} has no uid")
    return review.request


def answer(uid: str, thing: Object, verdict: Verdict, notes: Mapping[str, str]) -> dict[str, Any]:
    """A verdict on a thing as the API server reads it; `notes` are for its audit log."""
    response: dict[str, Any] = {"allowed": verdict.allowed}
    if verdict.denials:
        response["status"] = denial(thing, verdict.denials)
    if verdict.warnings:
        response["warnings"] = [warning(each) for each in verdict.warnings]
    if notes:
        response["auditAnnotations"] = dict(notes)
    return _enveloped(uid, response)


def refusal(uid: str, code: int, reason: str, message: str) -> dict[str, Any]:
    """That there is no verdict, which is a no."""
    return _enveloped(uid, {"allowed": False, "status": _status(code, reason, message)})


def change(uid: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """A yes, and what to change."""
    response: dict[str, Any] = {"allowed": True}
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode()
    return _enveloped(uid, response)


def denial(thing: Object, findings: Sequence[Finding]) -> dict[str, Any]:
    """A metav1.Status: all that is wrong, a line each, and again as causes. If an Invalid is its only error,
    kubectl shows kind, name and causes, and leaves the message out."""
    code, reason = (403, "Forbidden") if is_about_rights(findings) else (422, "Invalid")
    kind = reading.kind_of(thing) if reading.is_readable(thing) else None
    details: dict[str, Any] = {"causes": [_cause(each) for each in findings[:_MOST_CAUSES]]}
    if kind is not None:
        details |= {"group": kind.group, "kind": kind.name, "name": reading.text(thing, "name")}
    return {**_status(code, reason, listed(findings)), "details": details}


def _cause(finding: Finding) -> dict[str, str]:
    value = f"{finding.value!r}: " if finding.value else ""
    message = f"{value}{finding.message}; {finding.mend} ({finding.rule})"
    return {"reason": finding.rule, "field": finding.field, "message": _line(message)}


def listed(findings: Sequence[Finding]) -> str:
    """All of them, a line each if there are several."""
    lines = [_line(str(each)) for each in findings]
    return lines[0] if len(lines) == 1 else "".join(f"\n* {line}" for line in lines)


def is_about_rights(findings: Sequence[Finding]) -> bool:
    """Whether another author might do it."""
    return all(each.rule in RIGHTS for each in findings)


def notes(verdict: Verdict) -> dict[str, str]:
    """What the API server's audit log keeps of a verdict."""
    rules = {"denied-by": verdict.denials, "warned-by": verdict.warnings}
    return {name: ",".join(sorted({each.rule for each in found})) for name, found in rules.items() if found}


def warning(finding: Finding) -> str:
    """A line that is short if it can be: without the mend, if need be."""
    whole = _line(str(finding))
    if len(whole) <= _WARNING:
        return whole
    return _line(f"{finding.field}: {finding.message} ({finding.rule})")[:_LONGEST_WARNING]


def verdict_to_pb(verdict: Verdict) -> pb.ReviewResponse:
    """A verdict as the service answers it."""
    return pb.ReviewResponse(
        allowed=verdict.allowed,
        denials=map(_finding, verdict.denials),
        warnings=map(_finding, verdict.warnings),
        patch=map(_operation, verdict.patch),
    )


def _finding(finding: Finding) -> pb.Finding:
    return pb.Finding(
        rule=finding.rule,
        field=finding.field,
        value=finding.value,
        message=finding.message,
        mend=finding.mend,
    )


def _operation(operation: Operation) -> pb.PatchOperation:
    value = struct_of({"value": operation["value"]}).fields["value"] if "value" in operation else None
    return pb.PatchOperation(op=operation["op"], path=operation["path"], value=value)


def _enveloped(uid: str, response: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": _KIND, "response": {"uid": uid, **response}}


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"status": "Failure", "code": code, "reason": reason, "message": message}


def _line(text: str) -> str:
    return " ".join(text.split())
