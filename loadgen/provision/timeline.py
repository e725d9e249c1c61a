"""The moments between a manifest and agents that are ready, out of the changes that watches tell. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

MOMENTS = ("applied", "workload", "pods", "scheduled", "running", "ready", "reported")
"""In the order of their cause: the apply is answered; the operator's Deployment is there; all pods are; all
have a node; all run; all are ready; the fleet's own condition says so."""


@dataclass
class Timeline:
    """Seconds since the apply was sent, by moment; a moment is when the last of `wanted` pods came to it."""

    fleet: str
    wanted: int
    at: dict[str, float] = field(default_factory=dict)
    _pods: dict[str, set[str]] = field(default_factory=lambda: {each: set() for each in MOMENTS[2:6]})

    def see(self, kind: str, thing: Object, seconds: float) -> None:
        """A change of an object of this kind."""
        match kind:
            case "AgentFleet" if thing["metadata"]["name"] == self.fleet and self._is_ready(thing):
                self.at.setdefault("reported", seconds)
            case "Deployment" if thing["metadata"]["name"] == self.fleet:
                self.at.setdefault("workload", seconds)
            case "Pod" if thing["metadata"].get("labels", {}).get("agentctl.dev/agent") == self.fleet:
                self._see_pod(thing, seconds)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to come."""
        return all(moment in self.at for moment in MOMENTS)

    def _see_pod(self, pod: Object, seconds: float) -> None:
        reached = ["pods"]
        if pod.get("spec", {}).get("nodeName") or _condition(pod, "PodScheduled"):
            reached.append("scheduled")
        if pod.get("status", {}).get("phase") == "Running":
            reached.append("running")
        if _condition(pod, "Ready"):
            reached.append("ready")
        for moment in reached:
            self._pods[moment].add(pod["metadata"]["uid"])
            if len(self._pods[moment]) >= self.wanted:
                self.at.setdefault(moment, seconds)

    def _is_ready(self, fleet: Object) -> bool:
        status = fleet.get("status", {})
        return _condition(fleet, "Ready") and status.get("readyReplicas", 0) >= self.wanted


def _condition(thing: Object, kind: str) -> bool:
    conditions = thing.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)
