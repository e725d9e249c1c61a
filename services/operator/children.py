"""What bringing the live objects to a plan takes, step by step. Pure: the reconciler has the effects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from libs.cluster import Object, controller_of, key_of
from libs.cluster.kinds import CRON_JOB, DEPLOYMENT, JOB, STATEFUL_SET, Kind, kind_of

from .plan import Action, Plan, Problem, change, conflict
from .plan.shards import RESHARDING

WORKLOADS = frozenset({DEPLOYMENT, STATEFUL_SET, JOB, CRON_JOB})
"""Kinds that run pods."""
_RESHARDED = "its shards change: its agents finish or hand back first"

Find = Callable[[Kind, str, str], Object | None]


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one object: to a manifest of the plan, or to a live object that is no longer wanted."""

    action: Action | Literal["delete"]
    thing: Object
    reason: str
    live: Object | None = None

    @property
    def kind(self) -> Kind:
        return kind_of(self.thing["apiVersion"], self.thing["kind"])

    @property
    def name(self) -> str:
        """As people say it: Deployment researcher."""
        return f"{self.thing['kind']} {self.thing['metadata']['name']}"


class Settled:
    """Live objects known to be what their manifests ask for, so that nothing has to be compared again.

    It is also why a manifest that the API server writes differently (1000m becomes 1) is not applied again
    and again: what the API server made of it is as it should be.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str, str]] = {}  # uid → manifest, revision, substance

    def knows(self, wanted: Object, live: Object) -> bool:
        """Whether this live object, or what matters of it, was seen to be what the manifest asks for."""
        metadata = live["metadata"]
        manifest, revision, substance = self._known.get(metadata["uid"], ("", "", ""))
        if manifest != digest(wanted):
            return False
        return metadata["resourceVersion"] == revision or substance == digest(_substance(live))

    def learn(self, wanted: Object, live: Object) -> None:
        """The live object is what the manifest asks for."""
        metadata = live["metadata"]
        known = digest(wanted), metadata["resourceVersion"], digest(_substance(live))
        self._known[metadata["uid"]] = known

    def forget(self, live: Object) -> None:
        """It is gone."""
        self._known.pop(live["metadata"]["uid"], None)


def steps(thing: Object, plan: Plan, children: Sequence[Object], find: Find, settled: Settled) -> list[Step]:
    """First what goes: `children`, the live objects that `thing` controls, as far as the plan neither has nor
    keeps them. Then the plan, in its order; `find` looks up the live objects."""
    namespace = key_of(thing)[0]
    stays = {_identity(manifest) for manifest in plan.objects}
    stays |= {(kind.name, namespace, name) for kind, name in plan.keeps}
    going: list[Step] = [
        Step("delete", child, _why_not(thing, plan, child), child)
        for child in children
        if _identity(child) not in stays
    ]
    return going + [_step(thing, manifest, find, settled) for manifest in plan.objects]


def _why_not(thing: Object, plan: Plan, child: Object) -> str:
    is_workload = kind_of(child["apiVersion"], child["kind"]) in WORKLOADS
    is_of_workers = is_workload and key_of(child) == key_of(thing)
    if plan.waits is None or not is_of_workers:
        return "no longer wanted"
    return _RESHARDED if plan.waits.reason == RESHARDING else plan.waits.message


def _step(thing: Object, manifest: Object, find: Find, settled: Settled) -> Step:
    live = find(kind_of(manifest["apiVersion"], manifest["kind"]), *key_of(manifest))
    if live is not None and settled.knows(manifest, live):
        return Step(Action.NONE, manifest, "is as it should be", live)
    what = change(thing, manifest, live)
    if live is not None and what.action is Action.NONE:
        settled.learn(manifest, live)
    return Step(what.action, manifest, what.reason, live)


def obstacles(thing: Object, plan: Plan, find: Find) -> tuple[Problem, ...]:
    """What the plan cannot have because somebody else does."""
    found = []
    for manifest in plan.objects:
        live = find(kind_of(manifest["apiVersion"], manifest["kind"]), *key_of(manifest))
        if live is None or is_leftover(live, thing):
            continue
        if problem := conflict(live, thing):
            found.append(problem)
    return tuple(found)


def is_leftover(live: Object, thing: Object) -> bool:
    """Whether it was made for an earlier object of that name, and goes because that is gone."""
    owner = controller_of(live)
    return (
        owner is not None
        and (owner["kind"], owner["name"]) == (thing["kind"], thing["metadata"]["name"])
        and owner["uid"] != thing["metadata"].get("uid")
    )


def is_going(live: Object) -> bool:
    """Whether its deletion has begun."""
    return "deletionTimestamp" in live["metadata"]


def digest(value: Any) -> str:
    """The same for equal JSON, whatever the order of its fields."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def _substance(live: Object) -> Object:
    """What of a live object somebody may have changed: all but its status and what the API server counts."""
    metadata = live["metadata"]
    kept = {name: metadata.get(name) for name in ("labels", "annotations", "ownerReferences")}
    return {**{name: value for name, value in live.items() if name not in ("metadata", "status")}, **kept}


def _identity(thing: Object) -> tuple[str, str, str]:
    return thing["kind"], *key_of(thing)
