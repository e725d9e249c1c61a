"""Where verbs go: a ManagementService by gRPC, or the aggregated API of a Kubernetes. One face."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import Exit, FailedError
from .reach import cluster_at, component_at, default_kubeconfig
from .session import Settings, failed

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from agentctl.management.v1 import management_service_pb2 as pb
    from agentctl.management.v1.management_service_pb2_grpc import ManagementServiceAsyncStub
    from libs.cluster.kubernetes import KubernetesCluster

_MARGIN_SECONDS = 5.0  # for the way there and back, and for the reviews
_STATUS_SECONDS = 30.0
_INCOMPLETE = (207, 502, 504)
_NAMED = 3  # pods that a line names; the table has all
_GOES_ON = "what agents may have accepted goes on, see `agentctl status`"
_ABSENT = (
    "the cluster has no management API now: is agentctl installed, and its apiserver up? "
    "(see `kubectl get apiservice v1alpha1.management.agentctl.dev`)"
)

_IN_EFFECT = {
    "drain": "draining",
    "lame-duck": "lame duck",
    "cancel": "canceled",
    "pause": "paused",
    "resume": "resumed",
}


class Until(StrEnum):
    """How far a verb is to come before it is answered."""

    ACCEPTED = "accepted"
    IN_EFFECT = "in-effect"
    FINISHED = "finished"


@dataclass(frozen=True)
class Subject:
    """An agent or a fleet, or one pod of it."""

    namespace: str
    name: str
    is_fleet: bool
    pod: str | None = None


@dataclass(frozen=True)
class Order:
    """A verb, for whom, and how."""

    verb: str
    subject: Subject
    until: Until
    deadline: timedelta
    reason: str = ""
    dry_run: bool = False
    run: str | None = None
    undo: bool = False
    grace: timedelta | None = None

    def words(self, stage: pb.Stage.ValueType) -> str:
        """A stage, for people."""
        from agentctl.management.v1 import management_service_pb2 as pb

        in_effect = "ready again" if self.undo else _IN_EFFECT[self.verb]
        return {
            pb.STAGE_FAILED: "failed",
            pb.STAGE_WOULD: "would be asked",
            pb.STAGE_ACCEPTED: "accepted",
            pb.STAGE_IN_EFFECT: in_effect,
            pb.STAGE_FINISHED: "drained" if self.verb == "drain" else in_effect,
        }.get(stage, "unknown")

    @property
    def seconds(self) -> float:
        """How long its answer may take."""
        return self.deadline.total_seconds() + _MARGIN_SECONDS


@dataclass(frozen=True)
class Way:
    """What the options of a command named. Nothing: the local plane, or else the default kubeconfig."""

    address: str = ""
    kubeconfig: Path | None = None
    context: str = ""


@dataclass(frozen=True)
class Answer:
    """What became of an order."""

    outcomes: Sequence[pb.Outcome]
    """At each pod; of a Status that names only those that did not come so far, at these."""
    is_done: bool
    """Whether every pod came as far as was asked."""
    document: Message | Mapping[str, Any]
    """All of it, for programs."""
    summary: str
    """In a line, for people."""


class Management(abc.ABC):
    """The verbs. Errors are those of the mesh."""

    @abc.abstractmethod
    async def do(self, order: Order) -> Answer:
        """What became of it, also where it failed."""

    @abc.abstractmethod
    async def status(self, subject: Subject) -> pb.GetStatusResponse:
        """What its pods are doing."""


class Service(Management):
    """A ManagementService."""

    def __init__(self, stub: ManagementServiceAsyncStub, where: str) -> None:
        self._stub = stub
        self._where = where

    async def do(self, order: Order) -> Answer:
        from agentctl.management.v1 import management_service_pb2 as pb
        from libs.errors import DeadlineError, UnreachableError

        terms = pb.Terms(
            reason=order.reason, dry_run=order.dry_run, until=pb.Stage.Value(f"STAGE_{order.until.name}")
        )
        terms.deadline.FromTimedelta(order.deadline)
        rpc = "".join(map(str.capitalize, order.verb.split("-")))
        request = getattr(pb, f"{rpc}Request")(target=_target(order.subject), terms=terms)
        if order.run:
            request.run_id = order.run
        if order.undo:
            request.undo = True
        if order.grace is not None:
            request.grace.FromTimedelta(order.grace)
        try:
            report = (await getattr(self._stub, rpc)(request, timeout=order.seconds)).report
        except (DeadlineError, UnreachableError) as error:
            said = failed(error, self._where)
            why = f"{said} ({_GOES_ON})" if said.code is Exit.UNAVAILABLE else f"{said}"
            raise FailedError(why, said.code) from error
        done, count = report.done_count, len(report.outcomes)
        return Answer(report.outcomes, 0 < count == done, report, _summary(order, report))

    async def status(self, subject: Subject) -> pb.GetStatusResponse:
        from agentctl.management.v1 import management_service_pb2 as pb

        return await self._stub.GetStatus(pb.GetStatusRequest(target=_target(subject)))


class Aggregated(Management):
    """management.agentctl.dev behind an API server."""

    def __init__(self, cluster: KubernetesCluster, where: str) -> None:
        self._cluster = cluster
        self._where = where

    async def do(self, order: Order) -> Answer:
        said = {
            "reason": order.reason,
            "deadline": _seconds(order.deadline),
            "until": order.until.value,
            "pod": order.subject.pod,
            "run": order.run,
            "undo": order.undo,
            "grace": "" if order.grace is None else _seconds(order.grace),
        }
        body = {name: value for name, value in said.items() if value}
        query = [("timeout", _seconds(timedelta(seconds=order.seconds)))]
        query += [("dryRun", "All")] if order.dry_run else []
        path = _path(order.subject, order.verb)
        code, answer = await self._cluster.call("POST", path, query, body, seconds=order.seconds)
        outcomes = [_outcome(cause) for cause in (answer.get("details") or {}).get("causes") or ()]
        if code == 200 or (code in _INCOMPLETE and outcomes):
            return Answer(outcomes, code == 200, answer, _message(answer))
        if code == 504:
            raise FailedError(
                f"{self._where}: no answer in time: {_message(answer)} ({_GOES_ON}; "
                "an API server lets requests last a minute, --address as long as you say)",
                Exit.UNAVAILABLE,
            )
        raise self._refusal(code, answer)

    async def status(self, subject: Subject) -> pb.GetStatusResponse:
        from google.protobuf.json_format import ParseDict

        from agentctl.management.v1 import management_service_pb2 as pb

        query = [("pod", subject.pod)] if subject.pod else []
        path = _path(subject, "status")
        code, answer = await self._cluster.call("GET", path, query, seconds=_STATUS_SECONDS)
        if code != 200:
            raise self._refusal(code, answer)
        return ParseDict(
            {"pods": answer.get("pods") or []}, pb.GetStatusResponse(), ignore_unknown_fields=True
        )

    def _refusal(self, code: int, answer: Mapping[str, Any]) -> Exception:
        from libs import errors
        from libs.cluster.kubernetes.api import error_of

        if code in (404, 503) and answer.get("kind") != "Status":
            return FailedError(f"{self._where}: {_ABSENT}", Exit.UNAVAILABLE)
        if code == 401:
            return errors.DeniedError(f"{self._where}: the API server does not take these credentials")
        if code == 403:
            return errors.DeniedError(_message(answer))
        if code == 500:
            return errors.InternalError(_message(answer))
        return error_of(code, answer)


@asynccontextmanager
async def open_management(settings: Settings, way: Way) -> AsyncIterator[Management]:
    """The way that the options mean. FailedError if there is none; errors of the mesh come as ours."""
    if way.address and (way.kubeconfig or way.context):
        raise FailedError("--address is a ManagementService, --kubeconfig a Kubernetes: name one", Exit.USAGE)
    running = settings.state.running()
    is_cluster = bool(way.kubeconfig or way.context) or not (way.address or running)
    where = way.address or running.get("apiserver", "")
    kubeconfig = way.kubeconfig or default_kubeconfig(settings)
    if is_cluster and kubeconfig is None:
        raise FailedError(
            "no plane is running here, and there is no kubeconfig: start one with `agentctl up`, "
            "or name a cluster by --kubeconfig, or a ManagementService by --address",
            Exit.UNAVAILABLE,
        )
    if not is_cluster and not where:
        raise FailedError("the plane that runs here has no apiserver: start it anew", Exit.UNAVAILABLE)
    if is_cluster:
        async with cluster_at(kubeconfig, way.context) as (cluster, name):
            yield Aggregated(cluster, name)
    else:
        from agentctl.management.v1.management_service_pb2_grpc import ManagementServiceStub
        from libs.mesh import APISERVER

        async with component_at(settings, APISERVER, where) as channel:
            yield Service(ManagementServiceStub(channel), where)


def _target(subject: Subject) -> pb.Target:
    from agentctl.management.v1 import management_service_pb2 as pb

    kind = "fleet" if subject.is_fleet else "agent"
    return pb.Target(namespace=subject.namespace, pod=subject.pod or "", **{kind: subject.name})


def _path(subject: Subject, subresource: str) -> str:
    from libs.cluster.kinds import AGENT, AGENT_FLEET, Kind
    from libs.cluster.kubernetes.api import path_of

    declared = AGENT_FLEET if subject.is_fleet else AGENT
    kind = Kind("management.agentctl.dev", "v1alpha1", declared.name, declared.plural)
    return path_of(kind, subject.namespace, subject.name, subresource)


def _outcome(cause: Mapping[str, Any]) -> pb.Outcome:
    """A cause is about a pod; its reason is the stage, or why it failed."""
    from agentctl.management.v1 import management_service_pb2 as pb

    reason = str(cause.get("reason", ""))
    pod = str(cause.get("field", "")).removeprefix("pods[").removesuffix("]")
    outcome = pb.Outcome(pod=pod, message=str(cause.get("message", "")))
    if f"STAGE_{reason}" in pb.Stage.DESCRIPTOR.values_by_name:
        outcome.stage = pb.Stage.Value(f"STAGE_{reason}")
    else:
        outcome.stage, outcome.reason = pb.STAGE_FAILED, reason
    return outcome


def _summary(order: Order, report: pb.Report) -> str:
    from agentctl.management.v1 import management_service_pb2 as pb

    goal = pb.Stage.Value(f"STAGE_{order.until.name}")
    undone = [each for each in report.outcomes if each.stage < goal and each.stage != pb.STAGE_WOULD]
    failed = [each for each in undone if each.stage == pb.STAGE_FAILED]
    reached = min((each.stage for each in report.outcomes if each not in undone), default=goal)
    count = len(report.outcomes)
    line = f"{report.done_count} of {count} pod{'s' * (count != 1)} {order.words(reached)}"
    if failed:
        named = [f"{each.pod}: {each.reason or each.message}" for each in failed[:_NAMED]]
        more = [f"and {len(failed) - _NAMED} more"] * (len(failed) > _NAMED)
        line += f"; {len(failed)} failed: {'; '.join([*named, *more])}"
    if late := len(undone) - len(failed):
        line += f"; {late} not yet"
    return line


def why(outcome: pb.Outcome) -> str:
    """Why it failed, or what it waits for."""
    return ": ".join(filter(None, (outcome.reason, outcome.message)))


def _message(answer: Mapping[str, Any]) -> str:
    return str(answer.get("message") or "it does not say why")


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f}".rstrip("0").rstrip(".") + "s"
