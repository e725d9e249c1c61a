"""The ValidatingAdmissionPolicy that nobody but the operator makes agents' pods, or what makes them."""

from __future__ import annotations

from .crds import SYSTEM_NAMESPACE, Manifest

AGENT_LABEL = "agentctl.dev/agent"
"""What an agent's pod carries: by it the control plane finds whom to call."""
NAME = "agentctl-agent-pods"

_OPERATORS = ("operator", "plane")  # its account where it has a pod of its own, and where it has not
_CONTROLLERS = ("cronjob", "deployment", "job", "replicaset", "statefulset")
_WORKLOADS = (
    "apps/v1/Deployment",
    "apps/v1/ReplicaSet",
    "apps/v1/StatefulSet",
    "batch/v1/CronJob",
    "batch/v1/Job",
)
_RESOURCES = {
    "": ("pods", "pods/ephemeralcontainers", "replicationcontrollers"),
    "apps": ("daemonsets", "deployments", "replicasets", "statefulsets"),
    "batch": ("cronjobs", "jobs"),
}


def policy() -> list[Manifest]:
    """The policy and its binding.

    It is about the labels of pods and of pod templates, whoever carries them, before a change or after it. A
    change that leaves the label and what runs as they were is anybody's: scaling, restarting, other labels.
    Deletions, evictions and the writes of statuses are no CREATE or UPDATE of these resources, and never
    refused.
    """
    api = "admissionregistration.k8s.io/v1"
    metadata = {"name": NAME, "labels": {"app.kubernetes.io/part-of": "agentctl"}}
    operators = _accounts(SYSTEM_NAMESPACE, _OPERATORS)
    exempt = {"name": "not-the-operator", "expression": f"!(request.userInfo.username in {operators})"}
    validation = {
        "expression": "!variables.isAgents || variables.isKept || variables.isByController",
        "message": f"only the operator makes pods with the label {AGENT_LABEL}, or changes what they run: "
        "declare an Agent or an AgentFleet",
        "reason": "Forbidden",
    }
    return [
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [_rule(*each) for each in _RESOURCES.items()]},
                "matchConditions": [exempt],
                "variables": [{"name": name, "expression": text} for name, text in _variables().items()],
                "validations": [validation],
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        },
    ]


def _rule(group: str, resources: tuple[str, ...]) -> Manifest:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": list(resources),
        "scope": "*",  # as the API server completes it, or each apply would change it
    }


def _variables() -> dict[str, str]:
    """By name, in the order of their use."""
    controllers = _accounts("kube-system", tuple(f"{name}-controller" for name in _CONTROLLERS))
    users = [*controllers, "system:kube-controller-manager"]  # the latter where controllers share an account
    return {
        "pod": _pod("object"),
        "oldPod": f"request.operation == 'CREATE' ? dyn({{}}) : {_pod('oldObject')}",
        "labels": "variables.pod.?metadata.?labels.orValue({})",
        "oldLabels": "variables.oldPod.?metadata.?labels.orValue({})",
        "runs": _runs("pod"),
        "ran": _runs("oldPod"),
        "isAgents": f"'{AGENT_LABEL}' in variables.labels || '{AGENT_LABEL}' in variables.oldLabels",
        "isKept": f"variables.labels[?'{AGENT_LABEL}'] == variables.oldLabels[?'{AGENT_LABEL}']"
        " && variables.runs == variables.ran",
        "isByController": f"request.userInfo.username in {users}"
        " && dyn(object).metadata.?ownerReferences.orValue([]).exists(owner,"
        f" owner.?controller.orValue(false) && owner.apiVersion + '/' + owner.kind in {list(_WORKLOADS)})",
    }


def _pod(thing: str) -> str:
    """The pod itself, or the template. dyn: the kinds have no common type."""
    return (
        f"request.kind.kind == 'Pod' ? dyn({thing}) : "
        f"request.kind.kind == 'CronJob' ? dyn({thing}).spec.jobTemplate.spec.template : "
        f"dyn({thing}).spec.?template.orValue({{}})"
    )


def _runs(pod: str) -> str:
    """What of the spec decides what runs: of a template all; of a pod, the images are all that may change."""
    images = " + ".join(
        f"variables.{pod}.?spec.?{kind}.orValue([]).map(each, each.?image.orValue(''))"
        for kind in ("containers", "initContainers", "ephemeralContainers")
    )
    return f"request.kind.kind == 'Pod' ? dyn({images}) : dyn(variables.{pod}.?spec)"


def _accounts(namespace: str, names: tuple[str, ...]) -> list[str]:
    return [f"system:serviceaccount:{namespace}:{name}" for name in names]
