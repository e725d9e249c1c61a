"""What a trigger asks about, and what the answer is for the state of its queue. Pure.

An item counts while it is ready or leased: somebody has to take it, or whoever holds it has to stay. One that
is delayed, or blocked behind its ordering key, needs nobody yet and does not count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from libs.errors import InvalidError
from libs.identity import LABEL

ITEMS = "agentctl-items"
"""The metric: items that are ready or leased."""
AGE = "agentctl-oldest-ready-age"
"""The metric: seconds since the oldest ready item became ready."""

LEAST, MOST = 0.001, 1_000_000_000  # of a target; Kubernetes counts in thousandths

_NAMESPACE = re.compile(LABEL)
_NAME = re.compile("[a-z0-9](?:[a-z0-9.-]{0,198}[a-z0-9])?")  # as coordination and the AgentFleet have it
_NUMBER = re.compile(r"\d{1,10}(?:\.\d{1,9})?", re.ASCII)
_SPAN = re.compile(rf"({_NUMBER.pattern})(ms|s|m|h)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_OURS = ("queue", "target", "targetAge")
_KEDAS = ("scalerAddress", "enableTLS", "unsafeSsl", "certificate")  # for KEDA, which sends all along


@dataclass(frozen=True, slots=True)
class Demand:
    """What there is to do in a queue."""

    ready: int = 0
    leased: int = 0
    ready_since: float | None = None  # by the clock of who made this; None: nothing is ready

    @property
    def items(self) -> int:
        """Items that need somebody."""
        return max(0, self.ready) + max(0, self.leased)

    @property
    def is_active(self) -> bool:
        """Whether there must be anybody at all."""
        return self.items > 0


@dataclass(frozen=True, slots=True)
class Trigger:
    """A checked trigger of a ScaledObject."""

    queue: str
    """namespace/name."""
    target: float = 1.0
    """Items for one replica."""
    target_age: float | None = None
    """Seconds of the oldest ready item for one replica; None: the age is no metric."""

    @classmethod
    def of(cls, namespace: str, name: str, metadata: Mapping[str, str]) -> Trigger:
        """The trigger that a ScaledObject of this name has. InvalidError names the fields that are wrong."""
        wrong: dict[str, str] = {}
        if not _NAMESPACE.fullmatch(namespace):
            wrong["namespace"] = "must be a DNS label"
        queue = metadata.get("queue", name)
        if not _NAME.fullmatch(queue):
            wrong["scalerMetadata.queue" if "queue" in metadata else "name"] = (
                "must be the name of a queue, without its namespace:"
                " lower case letters, digits, dots and dashes, at most 200 bytes"
            )
        target = _number(metadata.get("target", "1"))
        if not _is_target(target):
            wrong["scalerMetadata.target"] = f"must be a number of items, {LEAST} to {MOST}"
        age = _seconds(metadata["targetAge"]) if "targetAge" in metadata else None
        if age is not None and not _is_target(age):
            wrong["scalerMetadata.targetAge"] = "must be a duration, such as 500ms, 30s, 5m or 1h"
        for key in sorted(set(metadata).difference(_OURS, _KEDAS)):
            wrong[f"scalerMetadata.{key[:63]}"] = f"is not known; there are {', '.join(_OURS)}"
        if wrong:
            raise InvalidError(violations=wrong)
        return cls(f"{namespace}/{queue}", target, age)

    def targets(self) -> dict[str, float]:
        """How much of each metric one replica is for."""
        targets = {ITEMS: self.target}
        if self.target_age is not None:
            targets[AGE] = self.target_age
        return targets

    def values(self, demand: Demand, now: float, name: str = "") -> dict[str, float]:
        """What each metric is, or the one of this name; `now` is by the clock of the demand. InvalidError."""
        since = demand.ready_since
        age = 0.0 if since is None else min(max(0.0, now - since), MOST)
        values = {ITEMS: float(demand.items), AGE: age}
        wanted = [metric for metric in self.targets() if name in ("", metric)]
        if not wanted:
            raise InvalidError(violations={"metricName": f"must be one of {', '.join(self.targets())}"})
        return {metric: values[metric] for metric in wanted}


def _is_target(value: float) -> bool:
    return LEAST <= value <= MOST  # not so for NaN


def _number(text: str) -> float:
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def _seconds(text: str) -> float:
    match = _SPAN.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else math.nan
