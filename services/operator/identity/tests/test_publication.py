"""Whom to trust and who is denied, on its way to everybody."""

from __future__ import annotations

import pytest

from libs.cluster.kinds import CONFIG_MAP, NAMESPACE, POD
from libs.pki import TrustBundle
from services.operator.identity.attest import AGENT_LIFETIME
from services.operator.identity.office import open_office
from services.operator.identity.publication import NAME
from services.operator.identity.vault import ROTATE, SECRET_NAME

from .conftest import SYSTEM, named

pytestmark = pytest.mark.anyio

POD_ID = "spiffe://mesh.test/ns/demo/agent/worker/pod/worker-1/uid-1"


async def version(world, namespace):
    return (await world.cluster.get(CONFIG_MAP, namespace, NAME))["metadata"]["resourceVersion"]


async def test_the_bundle_is_published_and_nothing_is_written_twice(world, office):
    await world.namespace("demo")
    await office.keep()
    await office.publish("demo")
    data = await world.published("demo")
    assert TrustBundle.of(data) == office.vault.authority.bundle
    assert set(data) == {"ca.crt", "control-plane.crt", "workloads.crt", "users.crt"}
    before = [await version(world, each) for each in ("demo", SYSTEM)]
    await office.publish("demo")
    await office.keep()
    assert [await version(world, each) for each in ("demo", SYSTEM)] == before


async def test_the_copies_elsewhere_belong_to_the_system_namespace_and_go_with_it(world, office):
    await world.namespace("demo")
    await office.keep()
    await office.publish("demo")
    home = (await world.cluster.get(NAMESPACE, "", SYSTEM))["metadata"]["uid"]
    copy = await world.cluster.get(CONFIG_MAP, "demo", NAME)
    assert [each["uid"] for each in copy["metadata"]["ownerReferences"]] == [home]
    assert "ownerReferences" not in (await world.cluster.get(CONFIG_MAP, SYSTEM, NAME))["metadata"]


async def test_a_rotation_reaches_every_namespace_after_a_restart_too(world, office, charter):
    for namespace in ("demo", "other", "stranger"):
        await world.namespace(namespace)
    for namespace in ("demo", "other"):
        await office.publish(namespace)
    await world.cluster.apply(
        named("v1", "Secret", SYSTEM, SECRET_NAME, metadata={"annotations": {ROTATE: "root"}}), "someone"
    )
    async with open_office(world.cluster, charter, world.now) as again:
        await again.keep()
    for namespace in ("demo", "other", SYSTEM):
        assert (await world.published(namespace))["ca.crt"].count("BEGIN") == 2
    maps = await world.cluster.list(CONFIG_MAP, "stranger")
    assert not maps.items


async def test_copies_that_somebody_changed_or_deleted_are_mended(world, office):
    for namespace in ("demo", "other", "gone"):
        await world.namespace(namespace)
        await office.publish(namespace)
    await office.keep()
    await world.cluster.delete(CONFIG_MAP, "demo", NAME)
    await world.cluster.apply(named("v1", "ConfigMap", "other", NAME, data={"ca.crt": "mine"}), "someone")
    await world.cluster.delete(CONFIG_MAP, SYSTEM, NAME)
    await world.cluster.delete(NAMESPACE, "", "gone")
    await office.keep()
    await office.keep()
    for namespace in ("demo", "other", SYSTEM):
        assert TrustBundle.of(await world.published(namespace)) == office.vault.authority.bundle


async def test_a_pod_that_is_gone_is_denied_until_its_certificate_has_ended(world, office, charter):
    await office.keep()
    assert (await world.published())["denied"] == ""
    await office.denials.deny_pod("demo", "worker", "worker-1", "uid-1")
    assert office.denials.news.is_set()
    await office.keep()
    assert (await world.published())["denied"] == f"{POD_ID}\n"
    async with open_office(world.cluster, charter, world.now) as again:
        assert again.denials.denies(POD_ID), "a restart does not forget"
        assert (again.identity.folder / "denied").read_text() == f"{POD_ID}\n"
        world.clock += AGENT_LIFETIME.total_seconds() + 600
        await again.look()
        await again.keep()
        assert not again.denials.denies(POD_ID)
        assert (await world.published())["denied"] == ""


async def test_an_administrators_list_counts_and_can_be_taken_back(world, office):
    entries = {"leaked": "spiffe://mesh.test/ns/demo/user/eve\n", "stolen": "1234 5678"}
    await world.cluster.apply(named("v1", "ConfigMap", SYSTEM, "agentctl-denied", data=entries), "someone")
    await office.look()
    await office.keep()
    assert (await world.published())["denied"] == "1234\n5678\nspiffe://mesh.test/ns/demo/user/eve\n"
    await world.cluster.delete(CONFIG_MAP, SYSTEM, "agentctl-denied")
    await office.look()
    await office.keep()
    assert (await world.published())["denied"] == ""


async def test_the_deny_list_goes_to_components_only(world, office):
    await world.namespace("demo")
    await office.denials.deny_pod("demo", "worker", "worker-1", "uid-1")
    await office.publish("demo")
    assert "denied" not in await world.published("demo")


async def test_news_touch_the_components_pods_so_that_a_kubelet_looks(world, office):
    await office.keep()
    pod = named(
        "v1", "Pod", SYSTEM, "coordination-1",
        metadata={"labels": {"app.kubernetes.io/part-of": "agentctl"}},
        spec={"containers": [{"name": "coordination", "image": "agentctl"}]},
    )  # fmt: skip
    await world.cluster.create(pod)
    await office.denials.deny_pod("demo", "worker", "worker-1", "uid-1")
    await office.keep()
    annotations = (await world.cluster.get(POD, SYSTEM, "coordination-1"))["metadata"]["annotations"]
    assert annotations == {"agentctl.dev/trust-revision": await version(world, SYSTEM)}
