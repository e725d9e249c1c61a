"""A ScaledObject as far as it is understood here: one trigger `external-push`, one Deployment. Pure.

What is not understood is refused, since whoever wrote it relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from libs.cluster import Object, key_of
from libs.errors import InvalidError

from .hpa import Policy

_HPA_WINDOW = 300  # seconds, if nothing is said

_Count = Annotated[int, Meta(ge=0)]


class _Struct(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    pass


class _Target(_Struct):
    name: str
    kind: Literal["Deployment"] = "Deployment"
    api_version: Literal["apps/v1"] = "apps/v1"


class _Trigger(_Struct):
    type: Literal["external-push"]
    metadata: dict[str, str] = {}
    metric_type: Literal["AverageValue"] = "AverageValue"
    authentication_ref: Any = None
    """Whom to be to the scaler; there is one scaler here, and we are known to it."""


class _Fallback(_Struct):
    failure_threshold: _Count
    replicas: _Count
    behavior: Literal["currentReplicasIfHigher"]


class _Down(msgspec.Struct, rename="camel"):
    stabilization_window_seconds: _Count = _HPA_WINDOW


class _Behavior(_Struct):
    scale_down: _Down = field(default_factory=_Down)
    scale_up: Any = None


class _Hpa(_Struct):
    behavior: _Behavior = field(default_factory=_Behavior)


class _Advanced(_Struct):
    horizontal_pod_autoscaler_config: _Hpa = field(default_factory=_Hpa)


class _Spec(_Struct):
    scale_target_ref: _Target
    triggers: Annotated[list[_Trigger], Meta(min_length=1, max_length=1)]
    min_replica_count: _Count = 0
    max_replica_count: Annotated[int, Meta(ge=1)] = 100
    polling_interval: Annotated[int, Meta(ge=1)] = 30
    cooldown_period: _Count = 300
    initial_cooldown_period: Any = None
    """Here the cooldown begins with the first look."""
    fallback: _Fallback | None = None
    advanced: _Advanced = field(default_factory=_Advanced)


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """What is to be done, and by what."""

    namespace: str
    name: str
    target: str
    """The Deployment."""
    metadata: dict[str, str]
    """Of the trigger: what the scaler is told."""
    polling: float
    """Seconds between two looks while nothing is going on."""
    policy: Policy

    @classmethod
    def of(cls, thing: Object) -> ScaledObject:
        """InvalidError says what cannot be read."""
        try:
            spec = msgspec.convert(thing.get("spec"), _Spec)
        except msgspec.ValidationError as error:
            raise InvalidError(f"spec: {error}") from error
        if spec.min_replica_count > spec.max_replica_count:
            raise InvalidError("spec.minReplicaCount is more than maxReplicaCount")
        fallback, (trigger,) = spec.fallback, spec.triggers
        down = spec.advanced.horizontal_pod_autoscaler_config.behavior.scale_down
        policy = Policy(
            minimum=spec.min_replica_count,
            maximum=spec.max_replica_count,
            cooldown=spec.cooldown_period,
            window=down.stabilization_window_seconds,
            fallback=fallback.replicas if fallback else None,
            threshold=fallback.failure_threshold if fallback else 0,
        )
        target = spec.scale_target_ref.name
        return cls(*key_of(thing), target, trigger.metadata, spec.polling_interval, policy)
