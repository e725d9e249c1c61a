"""The CustomResourceDefinitions of the four kinds, and the rule on where agents may live."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from libs.cluster.kinds import AGENT, AGENT_FLEET, MCP_SERVER_SET, MODEL_POOL, Kind

from .agent import AgentSpec
from .fleet import FleetSpec
from .pool import PoolSpec, ServerSetSpec
from .schema import Schema, schema_of
from .shape import Rule
from .status import AgentStatus, FleetStatus, PoolStatus

Manifest = dict[str, Any]

SYSTEM_NAMESPACE = "agentctl-system"
"""Where the components live, and no agent."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of kubectl get; one of priority 1 is for -o wide."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Declared:
    """What makes a class a kind of object."""

    kind: Kind
    spec: type[msgspec.Struct]
    status: type[msgspec.Struct]
    doc: str
    short_name: str
    longest_name: int  # so that what is made of it stays a legal name
    columns: tuple[Column, ...]
    scales: bool = False


_READY = Column("Ready", '.status.conditions[?(@.type=="Ready")].status')
_AGE = Column("Age", ".metadata.creationTimestamp", "date")

DECLARED = (
    Declared(
        AGENT, AgentSpec, AgentStatus, "One agent and what it does.", "ag",
        52,  # of a CronJob's name: its Jobs add 11
        (
            Column("Mode", ".spec.mode"), _READY, Column("Phase", ".status.phase"),
            Column("Runs", ".status.runs", "integer"), Column("Last", ".status.lastRun.reason"),
            Column("Pool", ".spec.model.pool", priority=1), Column("Model", ".spec.model.id", priority=1),
            Column("Image", ".spec.image", priority=1), Column("Contract", ".spec.contract", priority=1),
            _AGE,
        ),
    ),
    Declared(
        AGENT_FLEET, FleetSpec, FleetStatus, "Interchangeable agents that share a queue.", "afleet",
        51,  # with -coordinator a label value, and so in what a StatefulSet and KEDA make of it
        (
            Column("Mode", ".spec.scaling.mode"), Column("Queue", ".spec.work.queue"),
            Column("Agents", ".status.replicas", "integer"),
            Column("Up", ".status.readyReplicas", "integer"), _READY,
            Column("Scaled", '.status.conditions[?(@.type=="Scaled")].reason', priority=1),
            Column("Min", ".spec.scaling.minReplicas", "integer", 1),
            Column("Max", ".spec.scaling.maxReplicas", "integer", 1),
            Column("Pool", ".spec.template.model.pool", priority=1),
            Column("Image", ".spec.template.image", priority=1), _AGE,
        ),
        scales=True,
    ),
    Declared(
        MODEL_POOL, PoolSpec, PoolStatus, "Where models are.", "mp", 63,
        (
            Column("Endpoint", ".spec.endpoint"), Column("Users", ".status.users", "integer"), _READY,
            Column("Models", ".spec.models", priority=1), _AGE,
        ),
    ),
    Declared(
        MCP_SERVER_SET, ServerSetSpec, PoolStatus, "Where tools are.", "mcpset", 63,
        (
            Column("Users", ".status.users", "integer"), _READY, _AGE,
        ),
    ),
)  # fmt: skip

_NAME = Rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "a name is lower case letters, digits and dashes, and begins with a letter",
    ".metadata.name",
)


@cache
def schema_for(kind: Kind) -> Schema:
    """The schema of the whole object. The caller does not change it. KeyError for a kind that is not ours."""
    declared = {one.kind: one for one in DECLARED}[kind]
    name = {"type": "string", "maxLength": declared.longest_name}
    return {
        "description": declared.doc,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": schema_of(declared.spec),
            "status": schema_of(declared.status, defaults=False),
        },
        "x-kubernetes-validations": [_NAME.facet()],
    }


def crd(declared: Declared) -> Manifest:
    """The CustomResourceDefinition."""
    kind = declared.kind
    subresources: Manifest = {"status": {}}
    if declared.scales:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource, "labels": {"app.kubernetes.io/part-of": "agentctl"}},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [declared.short_name],
                "categories": ["agentctl"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema_for(kind)},
                    "subresources": subresources,
                    "additionalPrinterColumns": [_column(column) for column in declared.columns],
                }
            ],
        },
    }


def _column(column: Column) -> Manifest:
    out: Manifest = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return out | {"priority": column.priority} if column.priority else out


POLICY_NAME = "agentctl-system-namespace"
SYSTEM_RULE = Rule(
    f"object.metadata.namespace != '{SYSTEM_NAMESPACE}' || has(object.metadata.deletionTimestamp)",
    f"agents cannot live in {SYSTEM_NAMESPACE}, where the control plane is",
)
"""On `object`, an Agent or an AgentFleet. One that is being deleted passes, or its finalizer could not."""


def policy() -> list[Manifest]:
    """The ValidatingAdmissionPolicy that holds SYSTEM_RULE, and its binding."""
    api, labels = "admissionregistration.k8s.io/v1", {"app.kubernetes.io/part-of": "agentctl"}
    rules = {
        "apiGroups": [AGENT.group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [AGENT.plural, AGENT_FLEET.plural],
        "scope": "*",  # as the API server completes it, or each apply would change it
    }
    return [
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": POLICY_NAME, "labels": labels},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rules]},
                "validations": [{"expression": SYSTEM_RULE.rule, "message": SYSTEM_RULE.message}],
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY_NAME, "labels": labels},
            "spec": {"policyName": POLICY_NAME, "validationActions": ["Deny"]},
        },
    ]
