"""What the bearer of a believed token may be. Pure: decides from objects that somebody else has read.

A pod is an agent's if the live owners above it, each by uid, lead to a workload that the operator recorded in
the status of a live Agent or AgentFleet, and if all that decides what runs in the pod, and who can reach into
it, is what that workload's template says. Labels and names alone prove nothing, since whoever may create pods
may write them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from libs.cluster import Access, Bearer, Object
from libs.errors import DeniedError, InvalidError, UnavailableError
from libs.identity import LABEL

AGENT_LIFETIME = timedelta(hours=1)
LIFETIME = timedelta(hours=24)
"""Of everybody else's certificates."""

_CHAINS = {
    ("ReplicaSet", "Deployment"), ("Deployment",), ("StatefulSet",), ("Job",), ("Job", "CronJob"),
}  # fmt: skip
_ENDED = ("Succeeded", "Failed")
_CLOCK_SKEW = timedelta(minutes=1)  # after the end of a pod's grace: TokenReview has the same
_RECORDING = timedelta(minutes=2)  # from a workload's making to its record in a status, at the most
_GROUP = "identity.agentctl.dev"
_REQUEST = "request"


# What decides what runs and who reaches it. Both sides have the API server's defaults; what else a pod has
# may be its scheduler's or an admission plugin's: node, tolerations, priority, resources, pull secrets.
_POD = (
    "hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace", "securityContext",
    "runtimeClassName", "automountServiceAccountToken", "enableServiceLinks", "dnsPolicy", "dnsConfig",
    "hostAliases", "resourceClaims", "volumes",
)  # fmt: skip
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_CONTAINER = (
    "name", "image", "command", "args", "workingDir", "env", "envFrom", "ports", "volumeMounts",
    "volumeDevices", "lifecycle", "securityContext", "startupProbe", "readinessProbe", "livenessProbe",
    "restartPolicy", "targetContainerName",
)  # fmt: skip


class UnattestedError(DeniedError):
    """The pod is no agent's. The caller hears only that; `why` is for our log."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__("this token's pod is not an agent's pod")


@dataclass(frozen=True)
class Rules:
    """Which ServiceAccounts of the system namespace may be which components."""

    system_namespace: str = "agentctl-system"
    components: Mapping[str, frozenset[str]] = field(
        default_factory=lambda: {
            "admission": frozenset({"admission"}),
            "apiserver": frozenset({"apiserver"}),
            "coordination": frozenset({"coordination"}),
            "mcpgateway": frozenset({"mcpgateway"}),
            "modelgateway": frozenset({"modelgateway"}),
            "provider": frozenset({"provider"}),
            "scaler": frozenset({"scaler"}),
            "plane": frozenset(
                {
                    "admission",
                    "apiserver",
                    "coordination",
                    "mcpgateway",
                    "modelgateway",
                    "plane",
                    "provider",
                    "scaler",
                }
            ),
        }
    )


@dataclass(frozen=True)
class Grant:
    """An id under the trust domain, and what its certificate is like."""

    path: str
    lifetime: timedelta = LIFETIME
    dns_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lineage:
    """A live pod and the live objects that control it, nearest first; each has the uid that the one before
    it names."""

    pod: Object
    owners: Sequence[Object]


def component(name: str, bearer: Bearer, rules: Rules) -> Grant:
    """A component, for exactly its ServiceAccount. DeniedError."""
    namespace, account = bearer.service_account
    allowed = (
        rules.components.get(account, frozenset()) if namespace == rules.system_namespace else frozenset()
    )
    if name not in allowed:
        raise DeniedError(f"this token's ServiceAccount is not one of the component {name[:63]!r}")
    service = f"{name}.{rules.system_namespace}.svc"
    return Grant(f"/cp/{name}", LIFETIME, (service, f"{service}.cluster.local", "localhost"))


def person(kind: str, namespace: str, bearer: Bearer) -> tuple[Grant, Access]:
    """A producer or user of a namespace, or an administrator, if RBAC lets the bearer do the access.
    DeniedError for tokens of pods; InvalidError."""
    account_namespace, account = bearer.service_account
    if not account:
        raise DeniedError("this is not a ServiceAccount's token")
    if bearer.pod:
        raise DeniedError("a pod's token is for its agent's or component's id only")
    name = f"{account_namespace}.{account}"
    if kind == "administrator":
        return Grant(f"/user/{name}"), Access(_REQUEST, _GROUP, "administrators")
    if not re.fullmatch(LABEL, namespace):
        raise InvalidError(violations={f"{kind}_namespace": "must be the name of a namespace"})
    return Grant(f"/ns/{namespace}/{kind}/{name}"), Access(_REQUEST, _GROUP, f"{kind}s", namespace)


def agent(bearer: Bearer, lineage: Lineage, rules: Rules, now: datetime) -> Grant:
    """The agent whose pod this is, if it is `as_templated` too. UnattestedError; UnavailableError if the
    workload is so young that its record may still come."""
    pod = lineage.pod
    namespace, name, uid = _key(pod)
    if namespace == rules.system_namespace:
        raise UnattestedError("no agent lives in the system namespace")
    account = _account_in(pod["spec"])
    if (bearer.pod, bearer.pod_uid) != (name, uid) or bearer.service_account != (namespace, account):
        raise UnattestedError("the pod is not the one that the token is bound to")
    if pod.get("status", {}).get("phase") in _ENDED or _is_overdue(pod, now):
        raise UnattestedError("the pod has ended, or has had its time to end")
    *between, declarer = lineage.owners or [{}]
    if tuple(each.get("kind") for each in between) not in _CHAINS:
        raise UnattestedError("the pod's owners are not those of an agent's pod")
    workload = between[-1]
    _check_declared(workload, declarer, now)
    _check_selected(pod, between)
    return Grant(f"/ns/{namespace}/agent/{workload['metadata']['name']}/pod/{name}/{uid}", AGENT_LIFETIME)


def as_templated(lineage: Lineage) -> bool:
    """Whether the pod runs what the template of its workload says now."""
    template = _template(lineage.owners[-2])["spec"]
    return fingerprint(lineage.pod["spec"]) == fingerprint(template)


def fingerprint(spec: Object) -> str:
    """What a pod spec runs and who can reach into it; of a pod and of its template the same."""
    said = _said(spec, _POD) | {"account": _account_in(spec)}
    said |= {kind: [_said(each, _CONTAINER) for each in spec.get(kind) or ()] for kind in _CONTAINERS}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _said(thing: Object, fields: Sequence[str]) -> Object:
    """Of these fields, those that say something; no list is as good as an empty one."""
    return {name: thing[name] for name in fields if thing.get(name) not in (None, "", [], {})}


def _check_declared(workload: Object, declarer: Object, now: datetime) -> None:
    """That the declarer is ours, has the workload's uid on record, and that the name is one it may use."""
    metadata, name = declarer["metadata"], workload["metadata"]["name"]
    names = {"Agent": [metadata["name"]], "AgentFleet": [metadata["name"], f"{metadata['name']}-coordinator"]}
    if name not in names.get(declarer.get("kind", ""), ()):
        raise UnattestedError("the workload is not one that an Agent or AgentFleet has")
    recorded = {"kind": workload["kind"], "name": name, "uid": workload["metadata"]["uid"]}
    if recorded in declarer.get("status", {}).get("workloads", ()):
        return
    if now - _made_at(workload) < _RECORDING:
        raise UnavailableError("this pod is not on record yet, try again")
    raise UnattestedError("the workload is not on record with its owner")


def _check_selected(pod: Object, owners: Sequence[Object]) -> None:
    labels = pod["metadata"].get("labels", {})
    for owner in owners:
        selector: dict[str, Any] = owner["spec"].get("selector") or {}
        wanted = selector.get("matchLabels") or {}
        if set(selector) - {"matchLabels"} or not wanted.items() <= labels.items():
            raise UnattestedError(f"its labels are not what its {owner['kind']} selects")
    template = _template(owners[-1]).get("metadata") or {}
    if not (template.get("labels") or {}).items() <= labels.items():
        raise UnattestedError("its labels are not those of the workload's template")


def _template(workload: Object) -> Object:
    spec = workload["spec"]
    template: Object = (spec["jobTemplate"]["spec"] if workload["kind"] == "CronJob" else spec)["template"]
    return template


def _key(thing: Object) -> tuple[str, str, str]:
    metadata = thing["metadata"]
    return metadata["namespace"], metadata["name"], metadata["uid"]


def _account_in(spec: Object) -> str:
    return spec.get("serviceAccountName") or "default"


def _is_overdue(pod: Object, now: datetime) -> bool:
    """Whether its grace is over. One that drains stays who it is until then."""
    deadline = pod["metadata"].get("deletionTimestamp")
    return bool(deadline) and now > datetime.fromisoformat(deadline) + _CLOCK_SKEW


def _made_at(thing: Object) -> datetime:
    return datetime.fromisoformat(thing["metadata"]["creationTimestamp"])
