"""`kubectl delete -k` takes everything along: what it installed, what the operator made, and the agents."""

from __future__ import annotations

import json

import pytest

from . import foreign
from .fleets import fleet
from .kubectl import SYSTEM, Kubectl, RefusedError

pytestmark = pytest.mark.cluster

SINGLE = "k8s/overlays/single"
OF_THE_CLUSTER = (
    "customresourcedefinitions,clusterroles,clusterrolebindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "validatingwebhookconfigurations,mutatingwebhookconfigurations"
)
OF_A_NAMESPACE = "pods,deployments,statefulsets,jobs,cronjobs,replicasets,services,configmaps,secrets"


def test_deleting_the_overlay_leaves_nothing(kubectl: Kubectl, namespace: str) -> None:
    before = names(kubectl, OF_A_NAMESPACE, "-n", namespace)
    kubectl("apply", "-k", SINGLE, seconds=120)
    try:
        kubectl.wait("condition=Available", "deployment/plane", SYSTEM)
        kubectl.apply(*fleet(namespace), foreign.agent(namespace, "alone", "work"))
        kubectl.wait("condition=Ready", "agentfleet/summarize", namespace)
        kubectl.wait("condition=Ready", "agent/alone", namespace)
        kubectl.wait("create", "apiservice/v1alpha1.management.agentctl.dev", SYSTEM)
    finally:
        kubectl("delete", "-k", SINGLE, "--ignore-not-found", "--timeout=180s", seconds=200)
    assert ours(kubectl, OF_THE_CLUSTER) == set()
    assert ours(kubectl, "roles,rolebindings", "-n", "kube-system") == set()
    with pytest.raises(RefusedError, match="NotFound"):
        kubectl("get", "namespace", SYSTEM)
    # The garbage collector's work; they may be gone meanwhile.
    for made in ours(kubectl, "apiservices") | names(kubectl, OF_A_NAMESPACE, "-n", namespace) - before:
        kubectl.wait("delete", made, namespace)


def ours(kubectl: Kubectl, kinds: str, *where: str) -> set[str]:
    """Those that are called after us."""
    return {name for name in names(kubectl, kinds, *where) if "agentctl" in name}


def names(kubectl: Kubectl, kinds: str, *where: str) -> set[str]:
    """kind/name of all there are."""
    found = json.loads(kubectl("get", kinds, *where, "-o", "json"))["items"]
    return {f"{thing['kind'].lower()}/{thing['metadata']['name']}" for thing in found}
