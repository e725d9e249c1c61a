"""The Kubernetes of AGENTCTL_TEST_KUBECONFIG, with our image in it, and namespaces of the tests' own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .kubectl import SYSTEM, Kubectl
from .operators import Post
from .world import World, world


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    kubeconfig = os.environ.get("AGENTCTL_TEST_KUBECONFIG")
    if not kubeconfig:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")
    return Kubectl(Path(kubeconfig))


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """One of the test's own, which goes with all that is in it."""
    with _made(kubectl, f"test-{secrets.token_hex(4)}") as name:
        yield name


@pytest.fixture
def elsewhere(kubectl: Kubectl) -> Iterator[str]:
    """Another one."""
    with _made(kubectl, f"test-{secrets.token_hex(4)}") as name:
        yield name


@pytest.fixture
def post(kubectl: Kubectl, crds: None, namespace: str, tmp_path: Path) -> Iterator[Post]:
    """For operators outside the cluster that act on the namespace."""
    with _made(kubectl, f"{namespace}-system") as system:
        yield Post(kubectl.kubeconfig, system, namespace, tmp_path)


@pytest.fixture(scope="module")
def crds(kubectl: Kubectl) -> Iterator[None]:
    """Our kinds, without anything that acts on them; removed if they were not there before."""
    if kubectl("get", "crd", "agents.agentctl.dev", "--ignore-not-found"):
        yield
        return
    with installed(kubectl, "k8s/base/crds"):
        for plural in ("agents", "agentfleets", "modelpools", "mcpserversets"):
            kubectl("wait", "--for=condition=Established", f"crd/{plural}.agentctl.dev", "--timeout=30s")
        yield


@contextmanager
def _made(kubectl: Kubectl, name: str) -> Iterator[str]:
    kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--timeout=120s", seconds=130)


@contextmanager
def installed(kubectl: Kubectl, folder: str, *deployments: str) -> Iterator[None]:
    """What a kustomization says, until the end of the block; begins when the deployments serve."""
    try:
        kubectl("apply", "-k", folder, seconds=120)
        for name in deployments:
            kubectl.wait("condition=Available", f"deployment/{name}", SYSTEM)
        yield
    finally:
        kubectl("delete", "-k", folder, "--ignore-not-found", "--timeout=180s", seconds=200)


@pytest.fixture(scope="module")
def single(kubectl: Kubectl) -> Iterator[None]:
    """The overlay single, installed; afterwards removed."""
    with installed(kubectl, "k8s/overlays/single", "plane"):
        yield


@pytest.fixture(scope="module")
def around(kubectl: Kubectl, single: None) -> Iterator[World]:
    """A namespace under the overlay single, with a model and a tool server that do as they are told. It lets
    in only pods that meet the restricted pod security standard."""
    with _made(kubectl, f"test-{secrets.token_hex(4)}") as namespace:
        kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        yield world(kubectl, namespace)


@pytest.fixture(scope="module")
def dev(kubectl: Kubectl) -> Iterator[None]:
    """The overlay dev, installed; afterwards removed."""
    with installed(
        kubectl, "k8s/overlays/dev", "operator", "coordination", "apiserver", "admission", "provider"
    ):
        yield


@pytest.fixture(scope="module")
def guarded(kubectl: Kubectl) -> Iterator[None]:
    """The overlay dev behind the network policies, installed; afterwards removed."""
    folder = "integration/cluster/guarded"
    with installed(kubectl, folder, "operator", "coordination", "apiserver", "admission", "provider"):
        yield


@pytest.fixture(scope="module")
def keda(kubectl: Kubectl) -> None:
    """KEDA, which is not ours to install."""
    if not kubectl("get", "crd", "scaledobjects.keda.sh", "--ignore-not-found"):
        pytest.skip("there is no KEDA; on the node `python -m integration.cluster keda` installs it")


@pytest.fixture(scope="module")
def scaled(kubectl: Kubectl, keda: None) -> Iterator[None]:
    """The overlay dev-keda, installed; afterwards removed."""
    with installed(
        kubectl,
        "k8s/overlays/dev-keda",
        *("operator", "coordination", "apiserver", "admission", "provider", "scaler"),
    ):
        yield
