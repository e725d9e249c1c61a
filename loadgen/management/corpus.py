"""Objects to review, and what has to be said of each. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

POOL = "stand-in"
_API = "agentctl.dev/v1alpha1"
_REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_RESOURCES = {"Agent": "agents", "AgentFleet": "agentfleets"}
_MODEL = {"pool": POOL, "id": "agentctl-extractive"}
_LIMITS = {"maxTokens": 50000, "deadline": "5m"}


@dataclass(frozen=True)
class Verdict:
    """Whether an object may be, and the rules that found something."""

    allowed: bool
    denials: frozenset[str] = frozenset()
    warnings: frozenset[str] = frozenset()

    def __str__(self) -> str:
        word = "allowed" if self.allowed else f"denied by {_listed(self.denials)}"
        return f"{word}, warned by {_listed(self.warnings)}" if self.warnings else word


@dataclass(frozen=True)
class Case:
    """An object that nobody has declared, and its verdict."""

    name: str
    thing: Object
    verdict: Verdict

    @property
    def body(self) -> bytes:
        """An AdmissionReview of it, as an API server posts it; its uid is the name of the case."""
        kind, metadata = self.thing["kind"], self.thing["metadata"]
        group, _, version = _API.partition("/")
        request = {
            "uid": self.name,
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": _RESOURCES[kind]},
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "operation": "CREATE",
            "userInfo": {"username": "load", "groups": ["system:authenticated"]},
            "object": self.thing,
            "dryRun": True,
        }
        return json.dumps({**_REVIEW, "request": request}).encode()

    def complaint(self, found: Verdict) -> str:
        """What is wrong with a verdict; "" if nothing is."""
        return "" if found == self.verdict else f"{self.name} was {found}, not {self.verdict}"


def cases(namespace: str) -> Sequence[Case]:
    """Each is asked as often as the others. The namespace has to have what `surroundings` says."""
    model: Object = {"model": _MODEL, "limits": _LIMITS}
    agent: Object = {"mode": "once", "instruction": "Look around.", **model}
    lost: Object = {**agent, "model": {"pool": "nowhere"}}
    loose: Object = {"mode": "once", "instruction": "Look around.", "image": "example.com/agent:latest"}
    warned = Verdict(True, warnings=frozenset({"image-floating", "no-deadline", "no-resources"}))
    return (
        Case("fleet", fleet(namespace, "load-fleet", 2), Verdict(True)),
        Case("agent", _declared("Agent", namespace, "load-agent", agent), Verdict(True)),
        Case(
            "denied",
            _declared("Agent", namespace, "load-lost", lost),
            Verdict(False, frozenset({"unknown-pool"})),
        ),
        Case("warned", _declared("Agent", namespace, "load-loose", loose), warned),
    )


def surroundings(namespace: str) -> Iterator[Object]:
    """What has to be there before."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    yield _declared("ModelPool", namespace, POOL, {"models": [_MODEL["id"]]})


def fleet(namespace: str, name: str, agents: int) -> Object:
    """So many agents, whose queue stays empty."""
    template = {"instruction": "Summarise it.", "model": _MODEL, "limits": _LIMITS}
    scaling = {"minReplicas": agents, "maxReplicas": agents}
    return _declared("AgentFleet", namespace, name, {"template": template, "scaling": scaling})


def _declared(kind: str, namespace: str, name: str, spec: Object) -> Object:
    return {
        "apiVersion": _API,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def _listed(rules: frozenset[str]) -> str:
    return ", ".join(sorted(rules)) or "nothing"
