"""Deletion: finalizers, owners, namespaces."""

from __future__ import annotations

import sqlite3
from contextlib import aclosing, closing

import pytest

from libs.cluster.kinds import AGENT, CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD, SERVICE_ACCOUNT
from libs.cluster.local.gc import FOREGROUND
from libs.errors import ConflictError, InvalidError, NotFoundError, PreconditionError

from .things import agent, config_map, deployment, pod, reference, take, thing


async def names(cluster, kind):
    return [item["metadata"]["name"] for item in (await cluster.list(kind, "default")).items]


@pytest.fixture
async def family(cluster):
    """An agent, its deployment, and that one's two pods."""
    owner = await cluster.create(agent())
    child = await cluster.create(deployment(owners=[owner]))
    for name in ("one", "two"):
        await cluster.create(pod(name, owners=[child]))
    return owner, child


async def test_deletion_wants_the_right_uid(cluster):
    made = await cluster.create(config_map())
    with pytest.raises(ConflictError):
        await cluster.delete(CONFIG_MAP, "default", "settings", uid="another")
    await cluster.delete(CONFIG_MAP, "default", "settings", uid=made["metadata"]["uid"])
    assert await names(cluster, CONFIG_MAP) == []


async def test_background_deletion_takes_along_what_is_owned(cluster, family):
    await cluster.delete(AGENT, "default", "scribe")
    assert [await names(cluster, kind) for kind in (AGENT, DEPLOYMENT, POD)] == [[], [], []]


async def test_orphans_stay_without_their_owner(cluster, family):
    await cluster.delete(DEPLOYMENT, "default", "web", propagation="Orphan")
    assert await names(cluster, DEPLOYMENT) == []
    assert await names(cluster, POD) == ["one", "two"]
    assert "ownerReferences" not in (await cluster.get(POD, "default", "one"))["metadata"]


async def test_what_another_owns_too_stays_with_that_owner(cluster):
    one, two = [await cluster.create(config_map(name)) for name in ("one", "two")]
    await cluster.create(pod(owners=[one, two]))
    await cluster.delete(CONFIG_MAP, "default", "one")
    assert (await cluster.get(POD, "default", "worker"))["metadata"]["ownerReferences"] == [reference(two)]
    await cluster.delete(CONFIG_MAP, "default", "two")
    assert await names(cluster, POD) == []


async def test_what_comes_after_its_owner_is_gone_goes_too(cluster):
    owner = await cluster.create(config_map())
    await cluster.delete(CONFIG_MAP, "default", "settings")
    await cluster.apply(pod(owners=[owner]), "me")
    assert await names(cluster, POD) == []


async def test_finalizers_hold_an_object_until_they_are_gone(cluster):
    made = await cluster.create(config_map(finalizers=["a.dev/one", "a.dev/two"]))
    await cluster.delete(CONFIG_MAP, "default", "settings")
    marked = await cluster.get(CONFIG_MAP, "default", "settings")
    assert marked["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:00Z"
    await cluster.delete(CONFIG_MAP, "default", "settings")
    assert await cluster.get(CONFIG_MAP, "default", "settings") == marked
    with pytest.raises(ConflictError):
        await cluster.create(config_map())
    marked["metadata"]["finalizers"].remove("a.dev/one")
    marked = await cluster.replace(marked)
    with pytest.raises(InvalidError, match="no new finalizers"):
        await cluster.replace(marked | {"metadata": marked["metadata"] | {"finalizers": ["a.dev/three"]}})
    async with aclosing(cluster.watch(CONFIG_MAP, since=marked["metadata"]["resourceVersion"])) as changes:
        del marked["metadata"]["finalizers"]
        await cluster.replace(marked)
        assert await take(changes, 2) == [("MODIFIED", "settings"), ("DELETED", "settings")]
    assert (await cluster.create(config_map()))["metadata"]["uid"] != made["metadata"]["uid"]


@pytest.mark.parametrize(
    ("said", "phase", "expected", "grace"),
    [
        ({}, "Running", "2027-01-15T08:00:30Z", 30),
        ({"terminationGracePeriodSeconds": 3600}, "Running", "2027-01-15T09:00:00Z", 3600),
        ({"terminationGracePeriodSeconds": 0}, "Running", "2027-01-15T08:00:00Z", 0),
        ({"terminationGracePeriodSeconds": 3600}, "Failed", "2027-01-15T08:00:00Z", None),
    ],
)
async def test_the_deletion_of_a_pod_says_when_its_grace_is_over(cluster, said, phase, expected, grace):
    held = pod(finalizers=["a.dev/one"])
    held["spec"] |= said
    made = await cluster.create(held)
    await cluster.apply({**thing(POD, "worker"), "status": {"phase": phase}}, "me", subresource="status")
    await cluster.delete(POD, "default", "worker")
    marked = (await cluster.get(POD, "default", "worker"))["metadata"]
    assert marked["uid"] == made["metadata"]["uid"]
    assert (marked["deletionTimestamp"], marked.get("deletionGracePeriodSeconds")) == (expected, grace)


async def test_finalizers_of_two_managers_are_a_set(cluster):
    await cluster.apply(config_map(finalizers=["a.dev/one"]), "one")
    both = await cluster.apply(config_map(finalizers=["a.dev/two"]), "two")
    assert both["metadata"]["finalizers"] == ["a.dev/one", "a.dev/two"]
    await cluster.delete(CONFIG_MAP, "default", "settings")
    await cluster.apply(config_map(), "one")
    left = await cluster.get(CONFIG_MAP, "default", "settings")
    assert left["metadata"]["finalizers"] == ["a.dev/two"]
    await cluster.apply(config_map(), "two")
    assert await names(cluster, CONFIG_MAP) == []


async def test_a_held_dependent_does_not_hold_its_owner_in_the_background(cluster):
    owner = await cluster.create(config_map())
    held = await cluster.create(pod(owners=[owner], finalizers=["a.dev/one"]))
    await cluster.delete(CONFIG_MAP, "default", "settings")
    assert await names(cluster, CONFIG_MAP) == []
    left = await cluster.get(POD, "default", "worker")
    assert "deletionTimestamp" in left["metadata"]
    assert left["metadata"]["generation"] == held["metadata"]["generation"] + 1


async def test_foreground_deletion_waits_for_what_is_owned(cluster, family):
    held = await cluster.get(POD, "default", "one")
    held["metadata"]["finalizers"] = ["a.dev/one"]
    held = await cluster.replace(held)
    await cluster.delete(AGENT, "default", "scribe", propagation="Foreground")
    for kind, name in ((AGENT, "scribe"), (DEPLOYMENT, "web")):
        waiting = (await cluster.get(kind, "default", name))["metadata"]
        assert waiting["finalizers"] == [FOREGROUND]
        assert waiting["deletionTimestamp"]
    assert await names(cluster, POD) == ["one"]
    held = await cluster.get(POD, "default", "one")
    del held["metadata"]["finalizers"]
    await cluster.replace(held)
    assert [await names(cluster, kind) for kind in (AGENT, DEPLOYMENT, POD)] == [[], [], []]


async def test_foreground_deletion_waits_for_none_that_does_not_block(cluster):
    owner = await cluster.create(config_map())
    child = pod(finalizers=["a.dev/one"])
    child["metadata"]["ownerReferences"] = [reference(owner, blocks=False)]
    await cluster.create(child)
    await cluster.delete(CONFIG_MAP, "default", "settings", propagation="Foreground")
    assert await names(cluster, CONFIG_MAP) == []
    assert "deletionTimestamp" in (await cluster.get(POD, "default", "worker"))["metadata"]


async def test_a_namespace_goes_with_what_is_in_it(cluster):
    await cluster.create(thing(NAMESPACE, "other"))
    held = await cluster.create(pod(namespace="other", finalizers=["a.dev/one"]))
    await cluster.create(config_map(namespace="other"))
    kept = await cluster.create(config_map())
    await cluster.delete(NAMESPACE, "", "other")
    assert (await cluster.get(NAMESPACE, "", "other"))["status"] == {"phase": "Terminating"}
    assert (await cluster.list(CONFIG_MAP, "other")).items == []
    with pytest.raises(PreconditionError, match="being terminated"):
        await cluster.create(config_map(namespace="other"))
    held = await cluster.get(POD, "other", "worker")
    del held["metadata"]["finalizers"]
    await cluster.replace(held)
    with pytest.raises(NotFoundError):
        await cluster.get(NAMESPACE, "", "other")
    assert (await cluster.list(SERVICE_ACCOUNT, "other")).items == []
    assert await cluster.get(CONFIG_MAP, "default", "settings") == kept
    await cluster.create(thing(NAMESPACE, "other"))


async def test_the_first_namespaces_stay(cluster):
    for name in ("default", "agentctl-system"):
        with pytest.raises(PreconditionError):
            await cluster.delete(NAMESPACE, "", name)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
@pytest.mark.parametrize("length", [1, 2, 3])
async def test_owners_may_form_a_ring(cluster, propagation, length):
    ring = [await cluster.create(config_map(f"a-{number}")) for number in range(length)]
    for number, owner in enumerate(ring):
        await cluster.apply(config_map(f"a-{(number + 1) % length}", owners=[owner]), "me")
    assert len(await names(cluster, CONFIG_MAP)) == length
    await cluster.delete(CONFIG_MAP, "default", "a-0", propagation=propagation)
    assert await names(cluster, CONFIG_MAP) == []


async def test_nothing_of_a_removed_object_is_left_in_the_file(cluster, folder):
    def rows(table):
        with closing(sqlite3.connect(folder / "objects.sqlite")) as database:
            return database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    before = [rows(table) for table in ("objects", "owners", "fields")]
    owner = await cluster.apply(config_map("owner", finalizers=["a.dev/one"]), "me")
    await cluster.apply(pod(owners=[owner], finalizers=["a.dev/one"]), "me")
    await cluster.apply(thing(POD, "worker", status={"phase": "Running"}), "runner", subresource="status")
    await cluster.delete(CONFIG_MAP, "default", "owner")
    await cluster.apply(config_map("owner"), "me")
    await cluster.apply(pod(), "me")
    assert await names(cluster, POD) == await names(cluster, CONFIG_MAP) == []
    assert [rows(table) for table in ("objects", "owners", "fields")] == before


async def test_an_owner_that_waits_for_its_dependents_gets_no_new_ones(cluster):
    owner = await cluster.create(config_map())
    await cluster.create(pod("held", owners=[owner], finalizers=["a.dev/one"]))
    await cluster.delete(CONFIG_MAP, "default", "settings", propagation="Foreground")
    await cluster.apply(pod("late", owners=[owner]), "me")
    assert await names(cluster, POD) == ["held"]


async def test_an_owner_waits_no_longer_for_what_names_it_no_more(cluster):
    owner = await cluster.create(agent())
    await cluster.apply(config_map(owners=[owner], finalizers=["a.dev/x"]), "one")
    await cluster.delete(AGENT, "default", "scribe", propagation="Foreground")
    assert FOREGROUND in (await cluster.get(AGENT, "default", "scribe"))["metadata"]["finalizers"]
    await cluster.apply(config_map(finalizers=["a.dev/x"]), "one")
    with pytest.raises(NotFoundError):
        await cluster.get(AGENT, "default", "scribe")
