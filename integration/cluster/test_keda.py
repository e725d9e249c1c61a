"""The real KEDA against our scaler, over mTLS: what its external-push trigger, its metrics adapter and the
cluster's HPA make of what the scaler says. ScaledObjects are made by hand; see test_keda_fleets for fleets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.pki import Authority

from .demand import KEDA, NAME, Demand, authenticated, demand
from .kubectl import SYSTEM, Kubectl
from .world import authority_of

pytestmark = pytest.mark.cluster

_NEVER = 3600
"""A poll interval, in seconds: what happens before is not by a poll."""


@pytest.fixture(scope="module")
def authority(
    kubectl: Kubectl, scaled: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authority]:
    """That of the installation, with which KEDA has a certificate for the scaler."""
    found = authority_of(kubectl)
    authenticated(kubectl, found.issue(f"spiffe://{found.domain}/cp/keda", tmp_path_factory.mktemp("keda")))
    yield found
    kubectl("delete", "clustertriggerauthentication/test-scaler", "--timeout=60s", seconds=70)
    kubectl("delete", "secret", "test-scaler", "-n", KEDA)


@pytest.fixture
async def docs(
    kubectl: Kubectl, authority: Authority, namespace: str, tmp_path: Path
) -> AsyncIterator[Demand]:
    async with demand(kubectl, authority, namespace, tmp_path) as made:
        yield made
        kubectl("delete", "scaledobject", NAME, "-n", namespace, "--timeout=60s", seconds=70)


async def test_the_first_item_is_pushed_and_the_hpa_does_the_rest_up_and_down(docs: Demand) -> None:
    docs.scaled(pollingInterval=_NEVER)
    await docs.grows(1)
    await docs.has(1)
    await docs.grows(3)
    await docs.has(4)
    await docs.grows(4)
    await docs.has(5)  # no more than maxReplicaCount
    await docs.shrinks(6)
    await docs.has(2)
    docs.scaled(pollingInterval=2)
    await docs.shrinks(2)
    await docs.has(0)
    assert docs.replicas[:4] == [0, 1, 4, 5]
    assert min(docs.replicas[1:-1]) > 0


async def test_replicas_hold_while_coordination_is_away(kubectl: Kubectl, docs: Demand) -> None:
    docs.scaled()
    await docs.grows(3)
    await docs.has(3)
    before = list(docs.replicas)
    kubectl("scale", "deployment/coordination", "--replicas=0", "-n", SYSTEM)
    try:
        await docs.asked(10, "UNAVAILABLE")  # more often than one cooldown has polls
    finally:
        kubectl("scale", "deployment/coordination", "--replicas=1", "-n", SYSTEM)
    kubectl.wait("condition=Available", "deployment/scaler", SYSTEM)
    await docs.asked(3, "OK")
    assert docs.replicas == before


async def test_with_a_fallback_what_runs_holds_too(kubectl: Kubectl, docs: Demand) -> None:
    fallback = {"failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher"}
    docs.scaled(fallback=fallback)
    await docs.grows(4)
    await docs.has(4)
    kubectl("scale", "deployment/coordination", "--replicas=0", "-n", SYSTEM)
    try:
        await docs.asked(20, "UNAVAILABLE")
        assert docs.replicas[-1] == 4
    finally:
        kubectl("scale", "deployment/coordination", "--replicas=1", "-n", SYSTEM)
    kubectl.wait("condition=Available", "deployment/scaler", SYSTEM)
    await docs.asked(3, "OK")
    assert docs.replicas[-1] == 4


async def test_keda_shows_a_new_certificate_when_the_scaled_object_changes(
    kubectl: Kubectl, authority: Authority, docs: Demand, tmp_path: Path
) -> None:
    docs.scaled(pollingInterval=_NEVER, trigger={"name": "before"})
    await docs.streams(1)
    authenticated(kubectl, authority.issue(f"spiffe://{authority.domain}/cp/keda", tmp_path / "keda"))
    docs.scaled(pollingInterval=_NEVER, trigger={"name": "after"})
    for _ in range(2):  # the first break makes KEDA let go of what it had before
        kubectl("rollout", "restart", "deployment/scaler", "-n", SYSTEM)
        kubectl("rollout", "status", "deployment/scaler", "-n", SYSTEM, "--timeout=120s", seconds=130)
        await docs.streams(1)
    await docs.grows(1)
    await docs.has(1)
