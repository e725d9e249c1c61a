"""Whom to trust and who is denied, on its way to everybody."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from libs.cluster.kinds import CONFIG_MAP, NAMESPACE, POD
from libs.pki import TrustBundle
from services.operator.identity.attest import AGENT_LIFETIME, Rules
from services.operator.identity.office import open_office
from services.operator.identity.publication import NAME
from services.operator.identity.vault import ROTATE, SECRET_NAME

from ...tests.world import Through
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


async def test_the_copies_of_another_operator_are_left_alone(world, office, charter):
    elsewhere = replace(charter, rules=Rules("another-system"), tls_dir=world.folder / "another")
    for namespace in ("demo", "other", "another-system"):
        await world.namespace(namespace)
    await office.publish("demo")
    async with open_office(world.cluster, elsewhere, world.now) as another:
        await another.publish("other")
        await another.keep()
        await office.keep()
        assert TrustBundle.of(await world.published("demo")) == office.vault.authority.bundle
        assert TrustBundle.of(await world.published("other")) == another.vault.authority.bundle
        assert office.vault.authority.bundle != another.vault.authority.bundle


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


async def test_pods_that_are_gone_are_denied_by_components_only(world, office):
    await world.namespace("demo")
    await office.denials.deny_pod("demo", "worker", "worker-1", "uid-1")
    await office.publish("demo")
    assert "denied" not in await world.published("demo")


async def test_agents_deny_those_who_could_call_them_and_hear_of_nobody_else(world, office):
    for namespace in ("demo", "other"):
        await world.namespace(namespace)
        await office.publish(namespace)
    ids = ["/cp/gateway", "/user/root", "/ns/demo/user/eve", "/ns/other/user/mallory", "/ns/demo/producer/ci"]
    entries = {"ids": " ".join(f"spiffe://mesh.test{each}" for each in ids), "rest": f"{POD_ID} 1234 junk"}
    await world.cluster.apply(named("v1", "ConfigMap", SYSTEM, "agentctl-denied", data=entries), "someone")
    await office.look()
    await office.keep()
    everywhere = ["1234", "spiffe://mesh.test/cp/gateway"]
    for namespace, user in (("demo", "eve"), ("other", "mallory")):
        denied = (await world.published(namespace))["denied"].split()
        assert denied == [
            *everywhere,
            f"spiffe://mesh.test/ns/{namespace}/user/{user}",
            "spiffe://mesh.test/user/root",
        ]
    await world.cluster.delete(CONFIG_MAP, SYSTEM, "agentctl-denied")
    await office.look()
    await office.keep()
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


class Buggy(Through):
    """Has a bug in the writes to one namespace, so many times."""

    def __init__(self, inner, namespace, times):
        super().__init__(inner)
        self.namespace, self.times = namespace, times

    def before(self, verb, kind, namespace, name):
        if (kind, namespace, name) == (CONFIG_MAP, self.namespace, NAME) and self.times:
            self.times -= 1
            raise KeyError("a bug")


async def test_a_copy_of_somebody_elses_making_stops_nobody(world, office):
    for namespace in ("demo", "stranger"):
        await world.namespace(namespace)
    await office.publish("demo")
    labels = (await world.cluster.get(CONFIG_MAP, "demo", NAME))["metadata"]["labels"]
    await world.cluster.create(named("v1", "ConfigMap", "stranger", NAME, metadata={"labels": labels}))
    await world.cluster.delete(CONFIG_MAP, "demo", NAME)
    await office.keep()
    assert TrustBundle.of(await world.published("demo")) == office.vault.authority.bundle
    assert "data" not in await world.cluster.get(CONFIG_MAP, "stranger", NAME), "it is not ours"


async def test_what_one_namespace_meets_is_logged_and_the_others_are_served(world, charter, caplog):
    buggy = Buggy(world.cluster, "demo", 0)
    async with open_office(buggy, charter, world.now) as office:
        for namespace in ("demo", "other"):
            await world.namespace(namespace)
            await office.publish(namespace)
            await world.cluster.delete(CONFIG_MAP, namespace, NAME)
        buggy.times = 1
        await office.keep()
        assert TrustBundle.of(await world.published("other")) == office.vault.authority.bundle
        assert "the namespace demo: a bug" in caplog.text
        assert "Traceback" in caplog.text
        await office.keep()
        assert TrustBundle.of(await world.published("demo")) == office.vault.authority.bundle


async def copies(world):
    return (await world.cluster.list(CONFIG_MAP, SYSTEM, "agentctl.dev/trust=bundle")).items


@pytest.mark.parametrize("loop", ["run", "lead"])
async def test_the_loops_outlive_a_bug_and_say_it(world, charter, loop, caplog):
    """As the system's own copy, or the administrator's list, meets it: before all others."""

    class Broken(Through):
        broken = False

        async def get(self, kind, namespace, name):
            if self.broken:
                self.broken = False
                raise KeyError("a bug")
            return await super().get(kind, namespace, name)

    broken = Broken(world.cluster)
    quick = replace(charter, look_seconds=0.01, keep_seconds=0.01)
    entries = {"why": POD_ID}
    async with open_office(broken, quick, world.now) as office, anyio.create_task_group() as group:
        broken.broken = True
        group.start_soon(getattr(office, loop))
        with anyio.fail_after(10):
            while "after a bug" not in caplog.text:  # noqa: ASYNC110  (nothing tells when it was logged)
                await anyio.sleep(0.01)
            await world.cluster.apply(named("v1", "ConfigMap", SYSTEM, "agentctl-denied", data=entries), "x")
            if loop == "run":
                await office.denials.news.wait()
            while loop == "lead" and not await copies(world):  # noqa: ASYNC110  (as above)
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert "Traceback" in caplog.text
