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
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
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
    finally:
        kubectl("delete", "-k", SINGLE, "--ignore-not-found", "--timeout=180s", seconds=200)
    assert {name for name in names(kubectl, OF_THE_CLUSTER) if "agentctl" in name} == set()
    with pytest.raises(RefusedError, match="NotFound"):
        kubectl("get", "namespace", SYSTEM)
    for made in names(kubectl, OF_A_NAMESPACE, "-n", namespace) - before:
        kubectl.wait("delete", made, namespace)  # the garbage collector's work; it may be gone meanwhile


def names(kubectl: Kubectl, kinds: str, *where: str) -> set[str]:
    """kind/name of all there are."""
    found = json.loads(kubectl("get", kinds, *where, "-o", "json"))["items"]
    return {f"{thing['kind'].lower()}/{thing['metadata']['name']}" for thing in found}
