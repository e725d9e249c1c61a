"""The Kubernetes of AGENTCTL_TEST_KUBECONFIG, with our image in it, and namespaces of the tests' own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .kubectl import SYSTEM, Kubectl


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    kubeconfig = os.environ.get("AGENTCTL_TEST_KUBECONFIG")
    if not kubeconfig:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")
    return Kubectl(Path(kubeconfig))


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """One of the test's own, which goes with all that is in it."""
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    yield name
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
def guarded(kubectl: Kubectl) -> Iterator[None]:
    """The overlay dev behind the network policies, installed; afterwards removed."""
    with installed(kubectl, "integration/cluster/guarded", "operator", "coordination", "provider"):
        yield
