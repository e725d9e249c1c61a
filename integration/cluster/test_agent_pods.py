"""Nobody but the operator makes pods with our agent label, not even the cluster's administrator; and the
policy that says so is in nobody's way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .fleets import fleet
from .kubectl import Kubectl, RefusedError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("single")]

LABEL = {"agentctl.dev/agent": "summarize"}
REFUSED = "only the operator makes pods"


def pod(labels: dict[str, str]) -> dict[str, Any]:
    """A template of pods that nothing ever starts."""
    containers = [{"name": "agent", "image": "agentctl:dev"}]
    return {
        "metadata": {"labels": {"app": "x", **labels}},
        "spec": {"schedulerName": "nobody", "containers": containers},
    }


def templates(labels: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Every kind that makes pods, and one of it."""
    template, selector = pod(labels), {"matchLabels": {"app": "x"}}
    once = pod(labels)
    once["spec"]["restartPolicy"] = "Never"
    specs: dict[tuple[str, str], dict[str, Any]] = {
        ("v1", "ReplicationController"): {"replicas": 0, "template": template, "selector": {"app": "x"}},
        ("apps/v1", "Deployment"): {"replicas": 0, "template": template, "selector": selector},
        ("apps/v1", "ReplicaSet"): {"replicas": 0, "template": template, "selector": selector},
        ("apps/v1", "StatefulSet"): {
            "replicas": 0, "template": template, "selector": selector, "serviceName": "x",
        },
        ("apps/v1", "DaemonSet"): {"template": template, "selector": selector},
        ("batch/v1", "Job"): {"template": once, "suspend": True},
        ("batch/v1", "CronJob"): {
            "schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": {"template": once}},
        },
    }  # fmt: skip
    return {
        kind: {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
        for (version, kind), spec in specs.items()
    }


def test_a_pod_with_the_label_is_refused_however_it_comes_to_it(kubectl: Kubectl, namespace: str) -> None:
    run = ("run", "-n", namespace, "--image=agentctl:dev")
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl(*run, "fake", "--labels=agentctl.dev/agent=summarize")
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl(*run, "fake", "--labels=agentctl.dev/agent=")
    kubectl(*run, "plain")
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl("label", "pod", "plain", "-n", namespace, "agentctl.dev/agent=summarize")
    kubectl("label", "pod", "plain", "-n", namespace, "test.example/agent=summarize")


@pytest.mark.parametrize("kind", templates({}))
def test_so_is_a_template_with_the_label(kubectl: Kubectl, namespace: str, kind: str) -> None:
    plain, labelled = templates({})[kind], templates(LABEL)[kind]
    create = ("create", "-n", namespace, "-f", "-")
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl(*create, stdin=json.dumps(labelled))
    kubectl(*create, stdin=json.dumps(plain))
    if kind != "Job":  # whose template nobody can change
        with pytest.raises(RefusedError, match=REFUSED):
            kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(labelled))
    kubectl("delete", kind, "x", "-n", namespace)


def test_a_controllers_word_counts_for_what_a_workload_owns_only(kubectl: Kubectl, namespace: str) -> None:
    thing = {"apiVersion": "v1", "kind": "Pod", **pod(LABEL)}
    thing["metadata"] |= {"name": "x", "namespace": namespace}
    as_controller = ("--as", "system:serviceaccount:kube-system:replicaset-controller")
    create = ("create", "--dry-run=server", "-f", "-", *as_controller)
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl(*create, stdin=json.dumps(thing))
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": True}
    thing["metadata"]["ownerReferences"] = [owner]
    kubectl(*create, stdin=json.dumps(thing))
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl(*create[:4], stdin=json.dumps(thing))


def test_agents_scale_restart_are_evicted_and_deleted(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(*fleet(namespace))
    kubectl.wait("condition=Ready", "agentfleet/summarize", namespace)
    kubectl("rollout", "restart", "deployment/summarize", "-n", namespace)
    kubectl("rollout", "status", "deployment/summarize", "-n", namespace, "--timeout=90s", seconds=100)
    kubectl("scale", "agentfleet/summarize", "--replicas=3", "-n", namespace)
    kubectl.wait("jsonpath={.status.readyReplicas}=3", "deployment/summarize", namespace)
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl("set", "image", "deployment/summarize", "agent=elsewhere", "-n", namespace)
    evicted, changed, deleted = (
        each["metadata"]["name"] for each in kubectl.get("pods", "-n", namespace, "-l", "agentctl.dev/agent")
    )
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl("set", "image", f"pod/{changed}", "agent=elsewhere", "-n", namespace)
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl("label", "pod", changed, "-n", namespace, "agentctl.dev/agent-")
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl("debug", changed, "-n", namespace, "--image=elsewhere", "--attach=false")
    kubectl("label", "pod", changed, "-n", namespace, "test.example/of=somebody")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": evicted}}
    path = f"/api/v1/namespaces/{namespace}/pods/{evicted}/eviction"
    kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    kubectl("delete", "pod", deleted, "-n", namespace, "--now")
    kubectl.wait("delete", f"pod/{evicted}", namespace)
    kubectl.wait("jsonpath={.status.readyReplicas}=3", "deployment/summarize", namespace)
    kubectl("delete", "agentfleet", "summarize", "-n", namespace)
    kubectl.wait("delete", "deployment/summarize", namespace)


def test_no_change_takes_the_label_off_and_puts_other_code_in(kubectl: Kubectl, namespace: str) -> None:
    schedule = {"cron": "0 0 1 1 *"}
    spec = {"mode": "schedule", "schedule": schedule, "instruction": "x", "image": "agentctl:dev"}
    metadata = {"name": "yearly", "namespace": namespace}
    kubectl.apply(
        {"apiVersion": "agentctl.dev/v1alpha1", "kind": "Agent", "metadata": metadata, "spec": spec}
    )
    kubectl.wait("create", "cronjob/yearly", namespace)
    template = {
        "metadata": {"labels": {"agentctl.dev/agent": None}},
        "spec": {"containers": [{"name": "agent", "image": "elsewhere"}]},
    }
    patch = {"spec": {"jobTemplate": {"spec": {"template": template}}}}
    with pytest.raises(RefusedError, match=REFUSED):
        kubectl("patch", "cronjob", "yearly", "-n", namespace, "-p", json.dumps(patch))


def test_the_policy_is_well_typed(kubectl: Kubectl) -> None:
    kubectl(
        "wait", "--for=jsonpath={.status.observedGeneration}=1",
        "validatingadmissionpolicy/agentctl-agent-pods", "--timeout=30s",
    )  # fmt: skip
    status = kubectl.get("validatingadmissionpolicy", "agentctl-agent-pods")["status"]
    assert not status.get("typeChecking", {}).get("expressionWarnings")
