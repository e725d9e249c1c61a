"""Orders and what became of them as messages of `agentctl.management.v1`."""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.management.v1 import management_service_pb2 as pb
from libs.contract import checks
from libs.contract import wire as contract
from libs.errors import InvalidError

from .management import PodStatus
from .verbs import DEFAULT_DEADLINE, Kind, Order, Report, Stage, Target, Verb

VerbRequest = pb.DrainRequest | pb.LameDuckRequest | pb.CancelRequest | pb.PauseRequest | pb.ResumeRequest


def order_from_pb(verb: Verb, target: Target, request: VerbRequest) -> Order:
    """What a request of that verb for that target asks for. InvalidError if no order can say it."""
    terms = request.terms
    deadline = checks.span(terms, "deadline")
    return Order(
        verb,
        target,
        reason=terms.reason,
        dry_run=terms.dry_run,
        until=_until(terms.until),
        deadline=DEFAULT_DEADLINE if deadline is None else deadline,
        run_id=getattr(request, "run_id", ""),
        undo=getattr(request, "undo", False),
        grace=checks.span(request, "grace") if verb is Verb.DRAIN else None,
    )


def target_from_pb(target: pb.Target) -> Target:
    """Whom a call means. InvalidError."""
    if bool(target.agent) == bool(target.fleet):
        raise InvalidError(violations={"target": "exactly one of agent and fleet"})
    return named(target)


def named(target: pb.Target) -> Target:
    """The same, of one that may make no sense."""
    kind = Kind.AGENT if target.agent else Kind.FLEET
    return Target(kind, target.namespace, target.agent or target.fleet, target.pod)


def report_to_pb(report: Report) -> pb.Report:
    """What became of an order."""
    return pb.Report(
        outcomes=[
            pb.Outcome(
                pod=each.pod,
                pod_uid=each.pod_uid,
                stage=pb.Stage.ValueType(each.stage),
                reason=each.reason,
                message=each.message,
                run_count=each.run_count,
                runs=[contract.run_to_pb(run, with_result=False) for run in each.runs],
            )
            for each in report.outcomes
        ],
        done_count=report.done,
    )


def statuses_to_pb(pods: Sequence[PodStatus]) -> pb.GetStatusResponse:
    """What the pods are doing."""
    return pb.GetStatusResponse(
        pods=[
            pb.PodStatus(
                pod=each.pod,
                pod_uid=each.pod_uid,
                phase=each.phase,
                status=None if each.condition is None else contract.condition_to_pb(each.condition),
                error=each.error,
            )
            for each in pods
        ]
    )


def _until(number: int) -> Stage:
    if number == pb.STAGE_UNSPECIFIED:
        return Stage.ACCEPTED
    try:
        return Stage(number)
    except ValueError:
        raise InvalidError(violations={"until": f"{number} is no stage"}) from None
