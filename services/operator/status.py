"""What is reported about an object: its whole status, from what is there. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec

from libs.cluster import Object, key_of
from libs.cluster.kinds import (
    AGENT,
    AGENT_FLEET,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    SCALED_OBJECT,
    STATEFUL_SET,
    Kind,
)
from libs.resources.agent import AgentSpec
from libs.resources.fleet import FleetSpec
from libs.resources.status import AgentStatus, Condition, FleetStatus, PoolStatus, Run, Workload
from libs.resources.status import Shards as Divided

from .plan import Plan, Problem, Says, Shards, said_by
from .plan.owned import AGENT_LABEL, label
from .plan.reading import coordinator_of, read
from .plan.shards import REFUSED, RESHARDING
from .pods import is_alive, is_worker, told
from .readiness import NOT_THERE, Verdict, ending, of_run, of_schedule, of_workload
from .runs import belongs, last_run, newly_ended, runs_of

_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?")  # of a condition
_WORKLOADS = (DEPLOYMENT, STATEFUL_SET, JOB, CRON_JOB)
_RUNS_ARE_READY = frozenset({"Succeeded", "Failed", "RunFailed"})
_ON_THE_WAY = frozenset(
    {"Progressing", "Pending", "Running", "Resharding", "ShardsUnknown", "NoScaler", "NoCertificate"}
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What there is. The previous status is the object's own."""

    now: datetime
    plan: Plan = field(default_factory=Plan)
    """The plan just made; its problems, or those of applying it (`conflict`), become Accepted=False."""
    children: Mapping[tuple[Kind, str], Object] = field(default_factory=dict)
    """Live Deployments, Jobs, CronJobs, … of the namespace with its labels, the Jobs of its CronJob too."""
    pods: Sequence[Object] = ()
    """Live pods with its labels."""
    users: int = 0
    """How many Agents and AgentFleets name it: for a ModelPool or MCPServerSet."""
    queue_trouble: str = ""
    """Why a fleet cannot use its queue as it says."""
    shards: Shards | None = None
    """How a fleet's queue is divided, as far as is known."""
    awaits_certificate: bool = False
    """Whether KEDA would scale a fleet, and has no certificate for the scaler yet."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an object, as `kubectl describe` shows it."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def status(thing: Object, observed: Observed) -> Object:
    """The whole new status; equal to the old one if nothing changed."""
    try:
        spec = read(thing)
    except msgspec.ValidationError:
        spec = None
    if thing["kind"] == AGENT.name:
        return _of_agent(thing, spec if isinstance(spec, AgentSpec) else None, observed)
    if thing["kind"] == AGENT_FLEET.name:
        return _of_fleet(thing, spec if isinstance(spec, FleetSpec) else None, observed)
    said = PoolStatus(
        observed_generation=_generation(thing),
        conditions=_conditions(thing, observed, {"Accepted": _accepted(observed.plan.problems)}),
    )
    return {**msgspec.to_builtins(said), "users": observed.users}


def events(old: Object, new: Object, thing: Object) -> tuple[Event, ...]:
    """One for each change from an old status ({}: none yet) to a new one; none if nothing changed."""
    before = {each["type"]: each for each in old.get("conditions", ())}
    found = []
    for condition in new.get("conditions", ()):
        if _is_news(condition, before.get(condition["type"])):
            bad = condition["status"] == "False" and condition["reason"] not in _ON_THE_WAY
            found.append(Event("Warning" if bad else "Normal", condition["reason"], condition["message"]))
    run, earlier = new.get("lastRun") or {}, old.get("lastRun") or {}
    if run.get("outcome") in ("Succeeded", "Failed") and run != earlier:
        same = (run["name"], run.get("startTime")) == (earlier.get("name"), earlier.get("startTime"))
        if not (same and earlier.get("outcome") == run["outcome"]):  # else only its exit code was learnt
            failed = run["outcome"] == "Failed"
            text = ending(msgspec.convert(run, Run))
            found.append(Event("Warning" if failed else "Normal", f"Run{run['outcome']}", text))
    return tuple(found)


def _is_news(condition: Object, before: Object | None) -> bool:
    kind, reason = condition["type"], condition["reason"]
    if kind == "Complete" or (kind == "Ready" and reason in _RUNS_ARE_READY | {"NotAccepted"}):
        return False  # the run, or Accepted, says it
    if before is None or (before["status"], before["reason"]) != (condition["status"], reason):
        return True
    refused_anew: bool = condition["status"] == "False" and before["message"] != condition["message"]
    return kind == "Accepted" and refused_anew


def _of_agent(thing: Object, spec: AgentSpec | None, observed: Observed) -> Object:
    previous = msgspec.convert(thing.get("status") or {}, AgentStatus)
    name = key_of(thing)[1]
    runs = runs_of(thing, spec, observed.children.values(), observed.pods)
    last = last_run(thing, spec, previous, runs)
    if observed.plan.problems or spec is None:
        ready = _not_accepted(observed.plan.problems)
    elif spec.mode in ("once", "workflow"):
        ready = of_run(last, _live(thing, observed, JOB, name), observed.pods)
    elif spec.mode == "schedule":
        ready = of_schedule(
            spec, last, _live(thing, observed, CRON_JOB, name), _wanted(observed, CRON_JOB, name)
        )
    else:
        ready = _of_workload(thing, observed, DEPLOYMENT, name)
    verdicts = {"Accepted": _accepted(observed.plan.problems), "Ready": ready}
    if spec and spec.mode in ("once", "workflow"):
        verdicts["Complete"] = Verdict(ready.reason == "Succeeded", ready.reason, ready.message)
    said = AgentStatus(
        observed_generation=_generation(thing),
        phase=_phase(spec, ready),
        conditions=_conditions(thing, observed, verdicts),
        workloads=_workloads(thing, observed),
        last_run=last,
        runs=previous.runs + newly_ended(previous.last_run, runs or ([last] if last else [])),
    )
    return {**msgspec.to_builtins(said)}


def _of_fleet(thing: Object, spec: FleetSpec | None, observed: Observed) -> Object:
    name, plan = key_of(thing)[1], observed.plan
    kind = DEPLOYMENT if _live(thing, observed, DEPLOYMENT, name) else STATEFUL_SET
    counts = (_live(thing, observed, kind, name) or {}).get("status") or {}
    verdicts = {"Accepted": _accepted(plan.problems)}
    if plan.problems or spec is None:
        verdicts["Ready"] = _not_accepted(plan.problems)
    else:
        ready = _of_workload(thing, observed, kind, name)
        if plan.waits and ready.message == NOT_THERE:
            reason = REFUSED if plan.waits.reason == REFUSED else ready.reason
            ready = Verdict(False, reason, plan.waits.message)
        if spec.coordinator and ready.is_so:
            front = _of_workload(thing, observed, DEPLOYMENT, coordinator_of(name))
            if not front.is_so:
                ready = Verdict(False, "CoordinatorNotReady", f"coordinator: {front.message}")
        scaled = _scaled(thing, spec, observed)
        if scaled and scaled.reason == "Held" and ready.reason == "ScaledToZero":
            ready = Verdict(False, "Held", scaled.message)
        told = {"Ready": ready, "Scaled": scaled, "Sharded": _sharded(thing, spec, observed)}
        verdicts |= {condition: verdict for condition, verdict in told.items() if verdict}
    if observed.queue_trouble:
        verdicts["QueueConfigured"] = Verdict(False, REFUSED, observed.queue_trouble)
    shards = observed.shards
    said = FleetStatus(
        observed_generation=_generation(thing),
        conditions=_conditions(thing, observed, verdicts),
        workloads=_workloads(thing, observed),
        selector=f"{AGENT_LABEL}={name}",
        shards=Divided(count=shards.count, epoch=shards.epoch) if shards and shards.count else None,
    )
    replicas = {"replicas": counts.get("replicas", 0), "readyReplicas": counts.get("readyReplicas", 0)}
    return {**msgspec.to_builtins(said), **replicas}


def _scaled(thing: Object, spec: FleetSpec, observed: Observed) -> Verdict | None:
    """Whether the number of workers is as it should be said; None: there are none to speak of."""
    workers = _wanted(observed, DEPLOYMENT, key_of(thing)[1])
    if spec.scaling.mode == "shard" or workers is None:
        return None
    by, count = said_by(workers), workers["spec"].get("replicas")
    if by == Says.SCALER:
        scaled = _live(thing, observed, SCALED_OBJECT, key_of(thing)[1]) or {}
        said = {each["type"]: each for each in (scaled.get("status") or {}).get("conditions") or ()}
        ready = said.get("Ready", {})
        if ready.get("status") == "False":
            reason, message = str(ready.get("reason", "")), str(ready.get("message", ""))
            return Verdict(False, reason if _REASON.fullmatch(reason) else "ScaledObjectNotReady", message)
        if ready.get("status") != "True":
            return Verdict(False, "Progressing", "KEDA has not said yet that it scales here")
        bounds = f"{spec.scaling.min_replicas} to {spec.scaling.max_replicas}"
        return Verdict(True, "ScaledByDemand", f"{bounds} agents, as many as there is work for")
    if spec.replicas is None and observed.awaits_certificate:
        return Verdict(
            False,
            "NoCertificate",
            f"KEDA has no certificate for the scaler yet; until then it works with {count}",
        )
    if by == Says.HELD:
        stays = f"of its agents {count} stay" if count else "no agent starts"
        until = "until KEDA is back or spec.replicas is set"
        return Verdict(False, "Held", f"nothing scales here any more: {stays} {until}")
    if spec.replicas is not None:
        return Verdict(True, "FixedByHand", f"spec.replicas says {count}")
    return Verdict(False, "NoScaler", f"nothing scales here: it works with minReplicas, {count}")


def _sharded(thing: Object, spec: FleetSpec, observed: Observed) -> Verdict | None:
    """Whether the queue is divided as it should be, and its agents know it; None: that is no question."""
    waits, shards, is_wanted = observed.plan.waits, observed.shards, spec.scaling.mode == "shard"
    if waits and (is_wanted or waits.reason != REFUSED):  # else QueueConfigured says it
        return Verdict(False, waits.reason, waits.message)
    if not is_wanted or shards is None:
        return None
    name = key_of(thing)[1]
    workers = [pod for pod in observed.pods if is_worker(pod, name) and is_alive(pod)]
    old = sum(told(pod, "AGENT_SHARD_EPOCH") != str(shards.epoch) for pod in workers)
    if old:
        return Verdict(False, RESHARDING, f"the epoch is {shards.epoch}, {old} agents are of another one")
    return Verdict(True, "Sharded", f"{shards.count} shard{'s'[: shards.count != 1]}, epoch {shards.epoch}")


def _of_workload(thing: Object, observed: Observed, kind: Kind, name: str) -> Verdict:
    pods = [pod for pod in observed.pods if label(pod, AGENT_LABEL) == name]
    live, wanted = _live(thing, observed, kind, name), _wanted(observed, kind, name)
    if (kind, name) in observed.plan.keeps:
        wanted = live
    return of_workload(live, wanted, pods)


def _live(thing: Object, observed: Observed, kind: Kind, name: str) -> Object | None:
    found = observed.children.get((kind, name))
    return found if found is not None and belongs(found, thing) else None


def _wanted(observed: Observed, kind: Kind, name: str) -> Object | None:
    return next(
        (
            each
            for each in observed.plan.objects
            if each["kind"] == kind.name and each["metadata"]["name"] == name
        ),
        None,
    )


def _workloads(thing: Object, observed: Observed) -> list[Workload]:
    """Only what we control: pods of these, and no others, get the agent's identity."""
    found = [
        Workload(kind=kind.name, name=name, uid=child["metadata"]["uid"])
        for (kind, name), child in observed.children.items()
        if kind in _WORKLOADS and belongs(child, thing)
    ]
    return sorted(found, key=lambda each: (each.kind, each.name))


def _accepted(problems: Sequence[Problem]) -> Verdict:
    if not problems:
        return Verdict(True, "Accepted", "it can be as it says")
    return Verdict(False, problems[0].reason, "; ".join(problem.message for problem in problems))


def _not_accepted(problems: Sequence[Problem]) -> Verdict:
    return Verdict(False, "NotAccepted", f"{_accepted(problems).message}; what was applied before stays")


def _phase(spec: AgentSpec | None, ready: Verdict) -> str:
    if ready.reason in ("NotAccepted", "Pending", "Running", "Succeeded", "Failed", "Scheduled", "Suspended"):
        return {"NotAccepted": "Rejected"}.get(ready.reason, ready.reason)
    if ready.reason == "RunFailed":
        return "Scheduled"
    return "Running" if ready.is_so else "Pending" if ready.reason == "Progressing" else "Failing"


def _conditions(thing: Object, observed: Observed, verdicts: Mapping[str, Verdict]) -> list[Condition]:
    """As metav1.Condition asks: the time is that of the last change of status, not of the last look."""
    before = {each["type"]: each for each in (thing.get("status") or {}).get("conditions", ())}
    now = observed.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    found = []
    for kind, verdict in verdicts.items():
        said = "True" if verdict.is_so else "False"
        old = before.get(kind)
        since = old["lastTransitionTime"] if old and old["status"] == said else now
        found.append(
            Condition(
                type=kind,
                status=said,
                reason=verdict.reason,
                message=verdict.message,
                last_transition_time=since,
                observed_generation=_generation(thing),
            )
        )
    return found


def _generation(thing: Object) -> int:
    return int(thing["metadata"].get("generation", 0))
