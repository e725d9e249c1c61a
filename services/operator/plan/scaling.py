"""How many workers a fleet of mode claim has, and who says so: a person, the scaler, or nobody any more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from libs.cluster import Object, key_of
from libs.cluster.kinds import SCALED_OBJECT
from libs.resources.fleet import FleetSpec

from .context import Context
from .duration import seconds, shown
from .owned import owned

REPLICAS = "agentctl.dev/replicas"
"""Annotation of the workers' Deployment: who says how many there are, a `Says`."""

AUTHENTICATION = "agentctl-scaler"
"""The ClusterTriggerAuthentication with which KEDA calls the scaler."""

CERTIFICATE = "certificate"
"""Key of a trigger that nobody reads. KEDA takes up another certificate only where a ScaledObject's spec has
changed: its push streams go on with the one with which they began."""

_POLLING_SECONDS = 30  # beside the push
_SCALE_UP_SECONDS = 15
_FALLBACK_FAILURES = 3


class Says(StrEnum):
    """Who says how many workers there are."""

    OPERATOR = "operator"  # as spec.replicas or minReplicas has it
    SCALER = "scaler"
    HELD = "held"  # the scaler did, and there is none any more: as many as there are


@dataclass(frozen=True, slots=True)
class Count:
    """How many workers the manifest of their Deployment asks for."""

    by: Says
    replicas: int | None
    """None: that is not ours to say."""


def count(spec: FleetSpec, context: Context) -> Count:
    """By the spec if it names a number, else by the scaler. Without one nothing goes below what runs."""
    if spec.replicas is not None:
        return Count(Says.OPERATOR, bounded(spec, spec.replicas))
    if context.scales and not context.awaits_certificate:
        return Count(Says.SCALER, None)
    live = context.workers
    if live is not None and said_by(live) in (Says.SCALER, Says.HELD):
        return Count(Says.HELD, bounded(spec, int(live["spec"].get("replicas", 1))))
    return Count(Says.OPERATOR, spec.scaling.min_replicas)


def bounded(spec: FleetSpec, asked: int) -> int:
    """The nearest number between the two bounds."""
    return max(spec.scaling.min_replicas, min(asked, spec.scaling.max_replicas))


def said_by(workers: Object) -> str:
    """Who says how many there are of a Deployment of workers, a `Says`; "" if it does not tell."""
    return str((workers["metadata"].get("annotations") or {}).get(REPLICAS, ""))


def counted(workers: Object, replicas: int, by: Says = Says.OPERATOR) -> Object:
    """The same Deployment of workers, which asks for so many."""
    metadata = workers["metadata"]
    annotations = {**metadata["annotations"], REPLICAS: by.value}
    return {
        **workers,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**workers["spec"], "replicas": replicas},
    }


def certificate_in(scaled: Object | None) -> str:
    """As a live ScaledObject of ours names it; "" if there is none, or it names none."""
    triggers = ((scaled or {}).get("spec") or {}).get("triggers") or [{}]
    return str((triggers[0].get("metadata") or {}).get(CERTIFICATE, ""))


def scaled_object(thing: Object, spec: FleetSpec, context: Context) -> Object:
    """What KEDA is told about the fleet."""
    name, scaling = key_of(thing)[1], spec.scaling
    cooldown = seconds(scaling.cooldown)
    # Demand is exact, so the way up is one step.
    way_up = {"type": "Pods", "value": scaling.max_replicas, "periodSeconds": _SCALE_UP_SECONDS}
    behavior = {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [way_up]},
        "scaleDown": {"stabilizationWindowSeconds": cooldown},
    }
    body: Object = {
        "scaleTargetRef": {"name": name},
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "pollingInterval": _POLLING_SECONDS,
        "cooldownPeriod": cooldown,
        "initialCooldownPeriod": cooldown,  # else what is handed over goes at the first quiet poll
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": [
            {
                "type": "external-push",
                "metadata": _metadata(name, spec, context),
                "authenticationRef": {"name": AUTHENTICATION, "kind": "ClusterTriggerAuthentication"},
            }
        ],
    }
    if scaling.fallback_replicas is not None:
        body["fallback"] = {
            "failureThreshold": _FALLBACK_FAILURES,
            "replicas": scaling.fallback_replicas,
            "behavior": "currentReplicasIfHigher",
        }
    return owned(thing, name, SCALED_OBJECT, name, {"spec": body})


def _metadata(name: str, spec: FleetSpec, context: Context) -> dict[str, str]:
    told = {
        "scalerAddress": context.settings.scaler_address,
        "queue": "" if spec.work.queue == name else spec.work.queue,
        "target": str(spec.scaling.target or spec.work.slots),
        "targetAge": shown(spec.scaling.target_age or ""),
        CERTIFICATE: context.scaler_certificate,
    }
    return {key: value for key, value in told.items() if value}
