"""The moments between a submit and its item done by a fleet that was asleep. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Object = dict[str, Any]

STEPS: Mapping[str, str] = {
    "accepted": "submit",
    "active": "push",
    "replicas": "scale",
    "pod": "pod",
    "running": "start",
    "certified": "identity",
    "claimed": "claim",
    "acked": "work",
}
"""Each moment, in the order of cause, and what the step that ends with it is called."""

_OWN_AT_HOME = ("accepted", "active", "replicas", "pod")
_OWN_ON_A_CLUSTER = ("accepted", "active")  # then KEDA and Kubernetes are at it
_CERTIFIED = "certified as "


@dataclass
class Wake:
    """Seconds since the submit was sent, by moment."""

    fleet: str
    at: dict[str, float] = field(default_factory=dict)
    pod: str = ""
    """The name of the first."""

    def see(self, kind: str, thing: Object, seconds: float) -> None:
        """A change of an object of this kind."""
        metadata = thing["metadata"]
        if kind == "Deployment" and metadata["name"] == self.fleet and thing["spec"].get("replicas"):
            self.at.setdefault("replicas", seconds)
        if kind == "Pod" and metadata.get("labels", {}).get("agentctl.dev/agent") == self.fleet:
            self.pod = self.pod or metadata["name"]
            self.at.setdefault("pod", seconds)
            if thing.get("status", {}).get("phase") == "Running":
                self.at.setdefault("running", seconds)

    @property
    def missing(self) -> Sequence[str]:
        """The moments that have not come."""
        return [moment for moment in STEPS if moment not in self.at]

    def steps(self) -> dict[str, float]:
        """Seconds of each step; they sum up to the whole. What was seen before its cause took nothing."""
        steps, reached = {}, 0.0
        for moment, step in STEPS.items():
            steps[step] = max(0.0, self.at[moment] - reached)
            reached = max(reached, self.at[moment])
        return steps

    def own(self, *, is_home: bool, calls: float) -> float:
        """Seconds that the control plane took: until a pod is there (on a cluster: until it has pushed), and
        `calls`, what Claim and Ack take."""
        return max(self.at[moment] for moment in (_OWN_AT_HOME if is_home else _OWN_ON_A_CLUSTER)) + calls


def certified_at(log: str) -> float:
    """Seconds since 1970 until an agent had its certificate, by its log. LookupError if that is not there."""
    for line in log.splitlines():
        if _CERTIFIED in line:
            return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    raise LookupError("the agent's log does not say when it had its certificate")


@dataclass(frozen=True)
class Row:
    """One run; milliseconds of each step, of all of them, and of the control plane's own share."""

    by: str
    run: int
    submit: float
    push: float
    scale: float
    pod: float
    start: float
    identity: float
    claim: float
    work: float
    total: float
    own: float

    @classmethod
    def of(cls, by: str, run: int, wake: Wake, own: float) -> Row:
        """`own` is seconds."""
        steps = wake.steps()
        figures = {**steps, "total": sum(steps.values()), "own": own}
        return cls(by, run, **{name: round(seconds * 1000, 3) for name, seconds in figures.items()})


FIGURES = (*STEPS.values(), "total", "own")
"""The columns of a row that are milliseconds."""


def cells(rows: Sequence[Row]) -> Sequence[str]:
    """Median and, in brackets, the worst of each figure."""
    found = [[getattr(each, figure) for each in rows] for figure in FIGURES]
    return [f"{statistics.median(each):.0f} ({max(each):.0f})" for each in found]
