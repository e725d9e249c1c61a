"""How objects look in tables: columns by kind, as the CRDs and kubectl have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .durations import span

Object = dict[str, Any]
Column = tuple[str, Callable[[Object], object]]


def at(thing: Object, path: str) -> Any:
    """What a dotted path leads to; "" if it leads nowhere."""
    found: Any = thing
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else found


def field(path: str) -> Callable[[Object], object]:
    """A column that shows what is there."""
    return lambda thing: at(thing, path)


def condition(kind: str, part: str = "status") -> Callable[[Object], object]:
    """A column that shows a condition."""

    def show(thing: Object) -> object:
        conditions: list[Object] = at(thing, "status.conditions") or []
        return next((each.get(part, "") for each in conditions if each.get("type") == kind), "")

    return show


def age(thing: Object) -> str:
    """Since when it is there."""
    return since(at(thing, "metadata.creationTimestamp"))


def since(timestamp: str) -> str:
    """How long ago that was."""
    if not timestamp:
        return ""
    then = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    return span(max((datetime.now(UTC) - then).total_seconds(), 0))


def columns(kind: str, *, wide: bool, namespaces: bool) -> Sequence[Column]:
    """The columns of a kind, by its name."""
    special, more = _COLUMNS.get(kind, ((), ()))
    first: tuple[Column, ...] = (("NAME", field("metadata.name")),)
    if namespaces:
        first = (("NAMESPACE", field("metadata.namespace")), *first)
    return (*first, *special, ("AGE", age), *(more if wide else ()))


def ready_of(thing: Object) -> str:
    """ready/wanted of a workload."""
    wanted = at(thing, "spec.replicas")
    return f"{at(thing, 'status.readyReplicas') or 0}/{1 if wanted == '' else wanted}"


def restarts(thing: Object) -> int:
    """How often a pod's containers were started again."""
    return sum(each.get("restartCount", 0) for each in at(thing, "status.containerStatuses") or ())


def pod_status(thing: Object) -> str:
    """The phase, or what says more."""
    if at(thing, "metadata.deletionTimestamp"):
        return "Terminating"
    for each in at(thing, "status.containerStatuses") or ():
        state = each.get("state", {})
        for how in ("waiting", "terminated"):
            if reason := state.get(how, {}).get("reason"):
                return str(reason)
    return str(at(thing, "status.phase"))


def _pod_ready(thing: Object) -> str:
    statuses = at(thing, "status.containerStatuses") or ()
    return f"{sum(bool(each.get('ready')) for each in statuses)}/{len(at(thing, 'spec.containers') or ())}"


def _regarding(thing: Object) -> str:
    return f"{at(thing, 'regarding.kind').lower()}/{at(thing, 'regarding.name')}"


_READY: tuple[Column, ...] = (("READY", condition("Ready")),)
_COLUMNS: Mapping[str, tuple[Sequence[Column], Sequence[Column]]] = {
    "Agent": (
        (
            ("MODE", field("spec.mode")),
            *_READY,
            ("PHASE", field("status.phase")),
            ("LAST", field("status.lastRun.reason")),
        ),
        (
            ("POOL", field("spec.model.pool")),
            ("MODEL", field("spec.model.id")),
            ("REASON", condition("Ready", "reason")),
        ),
    ),
    "AgentFleet": (
        (
            ("MODE", field("spec.scaling.mode")),
            (">REPLICAS", field("status.replicas")),
            (">READY PODS", field("status.readyReplicas")),
            *_READY,
            ("REASON", condition("Ready", "reason")),
        ),
        (
            ("SCALED", condition("Scaled", "reason")),
            (">MIN", field("spec.scaling.minReplicas")),
            (">MAX", field("spec.scaling.maxReplicas")),
            ("POOL", field("spec.template.model.pool")),
            ("SELECTOR", field("status.selector")),
        ),
    ),
    "ModelPool": (
        (("ENDPOINT", field("spec.endpoint")), (">USERS", field("status.users")), *_READY),
        (("MODELS", lambda thing: ",".join(at(thing, "spec.models") or ())),),
    ),
    "MCPServerSet": (
        (
            (">SERVERS", lambda thing: len(at(thing, "spec.servers") or ())),
            (">USERS", field("status.users")),
            *_READY,
        ),
        (),
    ),
    "Pod": (
        (("READY", _pod_ready), ("STATUS", pod_status), (">RESTARTS", restarts)),
        (("IP", field("status.podIP")), ("NODE", field("spec.nodeName"))),
    ),
    "Deployment": ((("READY", ready_of), (">UP-TO-DATE", field("status.updatedReplicas"))), ()),
    "StatefulSet": ((("READY", ready_of),), ()),
    "ReplicaSet": ((("READY", ready_of),), ()),
    "Job": (
        (
            ("COMPLETE", condition("Complete")),
            (">SUCCEEDED", field("status.succeeded")),
            (">FAILED", field("status.failed")),
        ),
        (),
    ),
    "CronJob": (
        (
            ("SCHEDULE", field("spec.schedule")),
            ("SUSPEND", field("spec.suspend")),
            ("LAST", lambda thing: since(at(thing, "status.lastScheduleTime"))),
        ),
        (),
    ),
    "Event": (
        (
            ("TYPE", field("type")),
            ("REASON", field("reason")),
            ("OBJECT", _regarding),
            ("NOTE", field("note")),
        ),
        (),
    ),
}
