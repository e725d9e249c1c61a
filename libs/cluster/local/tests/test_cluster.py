"""Reading and writing objects: what is the client's, what is the home's, what is refused."""

from __future__ import annotations

import copy
import os
import sqlite3

import anyio
import pytest

from libs.cluster import Listing
from libs.cluster.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    EVENT,
    LEASE,
    MCP_SERVER_SET,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
)
from libs.cluster.local import ADMINISTRATOR, SYSTEM, open_local
from libs.cluster.local.store import OBJECT_BYTES
from libs.cluster.local.writer import EVENT_SECONDS, EVENTS
from libs.errors import ConflictError, InvalidError, NotFoundError, PreconditionError, UnavailableError

from .things import agent, config_map, deployment, job, pod, take, template, thing


def revision(found):
    return int(found["metadata"]["resourceVersion"])


async def test_a_new_home_has_its_namespaces_and_accounts(cluster):
    assert [item["metadata"]["name"] for item in (await cluster.list(NAMESPACE)).items] == [SYSTEM, "default"]
    accounts = await cluster.list(SERVICE_ACCOUNT)
    assert [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in accounts.items] == [
        (SYSTEM, ADMINISTRATOR),
        (SYSTEM, "default"),
        ("default", "default"),
    ]
    await cluster.create(thing(NAMESPACE, "other"))
    assert await cluster.get(SERVICE_ACCOUNT, "other", "default")


async def test_a_home_belongs_to_one_at_a_time(cluster, folder):
    with pytest.raises(PreconditionError, match=f"is open in process {os.getpid()}"):
        async with open_local(folder):
            pass


async def test_a_home_is_private(cluster, folder):
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "token.key").stat().st_mode & 0o777 == 0o600


async def test_what_is_created_gets_what_the_home_adds(cluster):
    said = config_map(data={"a": "1"})
    before = copy.deepcopy(said)
    made = await cluster.create(said)
    assert said == before
    metadata = made["metadata"]
    assert metadata["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert len(metadata["uid"]) == 36
    assert made["data"] == {"a": "1"}
    assert await cluster.get(CONFIG_MAP, "default", "settings") == made


async def test_a_home_gives_away_no_object_of_its_own(cluster):
    made = await cluster.create(config_map(data={"a": "1"}))
    made["data"]["a"] = "2"
    got = await cluster.get(CONFIG_MAP, "default", "settings")
    assert got["data"] == {"a": "1"}
    got["data"]["a"] = "3"
    assert (await cluster.get(CONFIG_MAP, "default", "settings"))["data"] == {"a": "1"}


async def test_what_only_the_home_may_say_is_not_taken_from_a_client(cluster):
    said = pod()
    said["metadata"] |= {
        "generation": 9,
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "x",
    }
    made = await cluster.create(said | {"status": {"phase": "Running"}})
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["creationTimestamp"].startswith("2027")
    assert "deletionTimestamp" not in made["metadata"]
    assert made["status"] == {"phase": "Pending"}


async def test_create_of_what_is_there_conflicts(cluster):
    await cluster.create(config_map())
    with pytest.raises(ConflictError, match="already exists"):
        await cluster.create(config_map())


async def test_generate_name_gives_different_names(cluster):
    said = config_map()
    del said["metadata"]["name"]
    said["metadata"]["generateName"] = "run-"
    made = {(await cluster.create(said))["metadata"]["name"] for _ in range(20)}
    assert len(made) == 20
    assert all(name.startswith("run-") and len(name) == 9 for name in made)


async def test_what_is_missing_is_not_found(cluster):
    with pytest.raises(NotFoundError):
        await cluster.get(CONFIG_MAP, "default", "settings")
    with pytest.raises(NotFoundError):
        await cluster.delete(CONFIG_MAP, "default", "settings")
    with pytest.raises(NotFoundError):
        await cluster.apply(agent(), "me", subresource="status")
    with pytest.raises(NotFoundError, match='namespaces "nowhere"'):
        await cluster.create(config_map(namespace="nowhere"))
    with pytest.raises(NotFoundError, match='namespaces "nowhere"'):
        await cluster.apply(config_map(namespace="nowhere"), "me")


async def test_a_list_is_of_a_namespace_and_a_selector(cluster):
    await cluster.create(thing(NAMESPACE, "other"))
    for name, namespace, tier in (("a", "default", "x"), ("b", "default", "y"), ("c", "other", "x")):
        await cluster.create(config_map(name, namespace, labels={"tier": tier}))

    async def listed(namespace="", labels=""):
        return [
            item["metadata"]["name"] for item in (await cluster.list(CONFIG_MAP, namespace, labels)).items
        ]

    assert await listed() == ["a", "b", "c"]
    assert await listed("default") == ["a", "b"]
    assert await listed("", "tier=x") == ["a", "c"]
    assert await listed("default", "tier!=x") == ["b"]


async def test_the_revision_of_a_list_is_the_newest_of_all(cluster):
    before = (await cluster.list(CONFIG_MAP)).revision
    made = await cluster.create(pod())
    assert int((await cluster.list(CONFIG_MAP)).revision) == revision(made) > int(before)


async def test_apply_makes_then_changes_then_removes_what_it_named(cluster):
    made = await cluster.apply(config_map(data={"a": "1", "b": "2"}), "me")
    changed = await cluster.apply(config_map(data={"a": "3"}), "me")
    assert changed["data"] == {"a": "3"}
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert revision(changed) > revision(made)


async def test_apply_that_changes_nothing_keeps_the_revision(cluster):
    for said in (config_map(data={"a": "1"}), deployment(), agent(), pod()):
        once = await cluster.apply(said, "me")
        newest = (await cluster.list(NAMESPACE)).revision
        assert await cluster.apply(said, "me") == once
        assert await cluster.apply(said, "another") == once
        assert (await cluster.list(NAMESPACE)).revision == newest


async def test_apply_leaves_what_others_named(cluster):
    await cluster.apply(config_map(data={"a": "1"}, labels={"tier": "x"}), "one")
    await cluster.apply(config_map(data={"b": "2", "a": "1"}), "two")
    assert (await cluster.apply(config_map(), "one"))["data"] == {"a": "1", "b": "2"}
    assert "data" not in await cluster.apply(config_map(), "two")


async def test_who_changes_a_field_takes_it_from_the_others(cluster):
    await cluster.apply(config_map(data={"a": "1", "b": "1"}), "one")
    await cluster.apply(config_map(data={"a": "2", "b": "1"}), "two")
    assert (await cluster.apply(config_map(), "two"))["data"] == {"b": "1"}


async def test_who_replaces_a_field_takes_it_from_the_others(cluster):
    made = await cluster.apply(config_map(data={"a": "1", "b": "1"}), "me")
    await cluster.replace(made | {"data": {"a": "2", "b": "1"}})
    assert (await cluster.apply(config_map(), "me"))["data"] == {"a": "2"}


async def test_a_replacement_keeps_what_an_earlier_one_had(cluster):
    made = await cluster.create(config_map(data={"a": "1"}))
    await cluster.replace(made | {"data": {"a": "1", "b": "1"}})
    await cluster.apply(config_map(data={"a": "1", "b": "1"}), "me")
    assert (await cluster.apply(config_map(), "me"))["data"] == {"a": "1", "b": "1"}


async def test_apply_leaves_what_was_created_or_replaced(cluster):
    made = await cluster.create(config_map(data={"a": "1"}))
    await cluster.apply(config_map(data={"a": "1", "b": "2"}), "me")
    now = await cluster.apply(config_map(), "me")
    assert now["data"] == {"a": "1"}
    await cluster.replace(now | {"data": {"c": "3"}})
    await cluster.apply(config_map(data={"c": "3"}), "me")
    assert (await cluster.apply(config_map(), "me"))["data"] == {"c": "3"}
    assert made["data"] == {"a": "1"}


async def test_apply_remembers_who_named_what_after_reopening(folder):
    async with open_local(folder) as cluster:
        await cluster.apply(deployment(labels={"tier": "x"}), "me")
    async with open_local(folder) as cluster:
        changed = await cluster.apply(deployment(), "me")
    assert "labels" not in changed["metadata"]


async def test_apply_with_a_uid_or_revision_that_is_not_current_conflicts(cluster):
    made = await cluster.apply(config_map(data={"a": "1"}), "me")
    for key in ("uid", "resourceVersion"):
        said = config_map(data={"a": "2"})
        said["metadata"][key] = "1"
        with pytest.raises(ConflictError, match=key):
            await cluster.apply(said, "me")
    absent = config_map("absent")
    absent["metadata"]["uid"] = made["metadata"]["uid"]
    with pytest.raises(ConflictError):
        await cluster.apply(absent, "me")
    assert await cluster.get(CONFIG_MAP, "default", "settings") == made


async def test_dry_run_says_what_would_be_and_changes_nothing(cluster):
    would = await cluster.apply(config_map(data={"a": "1"}), "me", dry_run=True)
    assert would["data"] == {"a": "1"}
    with pytest.raises(NotFoundError):
        await cluster.get(CONFIG_MAP, "default", "settings")
    made = await cluster.apply(config_map(data={"a": "1"}), "me")
    assert (await cluster.apply(config_map(data={"b": "2"}), "me", dry_run=True))["data"] == {"b": "2"}
    assert await cluster.get(CONFIG_MAP, "default", "settings") == made
    with pytest.raises(InvalidError):
        await cluster.apply(config_map(labels={"a b": "c"}), "me", dry_run=True)


async def test_a_status_is_written_only_as_a_status(cluster):
    made = await cluster.apply(agent() | {"status": {"phase": "Done"}}, "me")
    assert "status" not in made
    reported = await cluster.apply(
        agent(instruction="another") | {"status": {"phase": "Running", "runs": 1}}, "me", subresource="status"
    )
    assert reported["status"] == {"phase": "Running", "runs": 1}
    assert reported["spec"] == made["spec"]
    assert (await cluster.apply(agent(), "me"))["status"] == {"phase": "Running", "runs": 1}
    less = await cluster.apply(agent() | {"status": {"phase": "Running"}}, "me", subresource="status")
    assert less["status"] == {"phase": "Running"}
    assert (await cluster.replace(less | {"status": {"phase": "Other"}}))["status"] == {"phase": "Running"}


async def test_conditions_of_two_managers_live_side_by_side(cluster):
    def status(kind):
        at = "2027-01-15T08:00:00Z"
        condition = {"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": at}
        return agent() | {"status": {"conditions": [condition]}}

    await cluster.apply(agent(), "me")
    await cluster.apply(status("Ready"), "one", subresource="status")
    both = await cluster.apply(status("Accepted"), "two", subresource="status")
    assert [condition["type"] for condition in both["status"]["conditions"]] == ["Ready", "Accepted"]
    left = await cluster.apply(agent() | {"status": {}}, "one", subresource="status")
    assert [condition["type"] for condition in left["status"]["conditions"]] == ["Accepted"]


async def test_a_kind_without_status_has_no_such_subresource(cluster):
    await cluster.create(config_map())
    with pytest.raises(NotFoundError, match="no subresource"):
        await cluster.apply(config_map(), "me", subresource="status")


async def test_generation_counts_changes_of_the_spec(cluster):
    made = await cluster.apply(agent(), "me")
    labelled = agent()
    labelled["metadata"]["labels"] = {"tier": "x"}
    await cluster.apply(labelled, "me")
    reported = await cluster.apply(agent() | {"status": {"phase": "Running"}}, "me", subresource="status")
    changed = await cluster.apply(agent(instruction="another"), "me")
    replaced = await cluster.replace(changed | {"spec": changed["spec"] | {"instruction": "a third"}})
    seen = [item["metadata"]["generation"] for item in (made, reported, changed, replaced)]
    assert seen == [1, 1, 2, 3]
    assert "generation" not in (await cluster.create(config_map()))["metadata"]


async def test_replace_wants_the_current_revision(cluster):
    made = await cluster.create(config_map(data={"a": "1"}, labels={"tier": "x"}))
    replaced = await cluster.replace(
        config_map(data={"b": "2"}) | {"metadata": made["metadata"] | {"labels": {}}}
    )
    assert replaced["data"] == {"b": "2"}
    assert replaced["metadata"]["labels"] == {}
    with pytest.raises(ConflictError):
        await cluster.replace(made)
    with pytest.raises(ConflictError):
        await cluster.replace(config_map(data={"c": "3"}))
    with pytest.raises(NotFoundError):
        await cluster.replace(config_map("absent"))
    assert await cluster.replace(replaced) == replaced


async def test_replace_of_a_recreated_object_conflicts(cluster):
    made = await cluster.create(config_map())
    await cluster.delete(CONFIG_MAP, "default", "settings")
    again = await cluster.create(config_map())
    made["metadata"]["resourceVersion"] = again["metadata"]["resourceVersion"]
    with pytest.raises(ConflictError, match="uid"):
        await cluster.replace(made)


async def test_a_secret_is_kept_as_data(cluster):
    made = await cluster.create(thing(SECRET, "ca", stringData={"key": "word"}))
    assert made["data"] == {"key": "d29yZA=="}
    assert made["type"] == "Opaque"
    assert "stringData" not in made


def mounting(volume):
    said = job()
    container = said["spec"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": volume, "mountPath": "/data"}]
    return said


def owned_by(*several, **parts):
    whole = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    said = config_map()
    said["metadata"]["ownerReferences"] = [whole | each for each in several or (parts,)]
    return said


@pytest.mark.parametrize(
    ("said", "where"),
    [
        (config_map("Upper"), "metadata.name"),
        (config_map("a" * 254), "metadata.name"),
        (config_map(""), "metadata.name"),
        (config_map("x\n"), "metadata.name"),
        (config_map(namespace=""), "metadata.namespace"),
        (thing(NAMESPACE, "dotted.name"), "metadata.name"),
        (config_map(labels={"a": "b c"}), "metadata.labels[a]"),
        (config_map(labels={"a": 1}), "metadata.labels[a]"),
        (config_map(labels={"-": "b"}), "metadata.labels"),
        (config_map(labels=[]), "metadata.labels"),
        (config_map(finalizers=["a", "a"]), "metadata.finalizers[1]"),
        (config_map(finalizers=[1]), "metadata.finalizers[0]"),
        (config_map(finalizers=["no name"]), "metadata.finalizers[0]"),
        (config_map(finalizers=[f"a.dev/{index}" for index in range(65)]), "metadata.finalizers"),
        (config_map(annotations={"a": 1}), "metadata.annotations[a]"),
        (config_map(annotations={"a": "x" * 2**18}), "metadata.annotations"),
        (owned_by(kind=["Agent"]), "metadata.ownerReferences[0].kind"),
        (owned_by(name={"a": "b"}), "metadata.ownerReferences[0].name"),
        (owned_by(uid=1), "metadata.ownerReferences[0].uid"),
        (owned_by(apiVersion=""), "metadata.ownerReferences[0].apiVersion"),
        (owned_by(controller="yes"), "metadata.ownerReferences[0].controller"),
        (owned_by(*({"uid": str(index)} for index in range(65))), "metadata.ownerReferences"),
        (config_map(binaryData=[]), "binaryData"),
        (config_map(binaryData={"k": "a"}), "binaryData[k]"),
        (config_map(binaryData={"k": 5}), "binaryData[k]"),
        (config_map(binaryData={"k": ""}, data={"k": ""}), "binaryData[k]"),
        (config_map(data={"..": ""}), "data[..]"),
        (config_map(data={str(index): "" for index in range(1001)}), "data"),
        (config_map(data={"a": "x" * (2**20 + 1)}), "data"),
        (config_map(immutable="no"), "immutable"),
        (thing(SECRET, "s", stringData={"a": 1}), "stringData[a]"),
        (thing(SECRET, "s", stringData={"a": "\ud800"}), "stringData[a]"),
        (thing(SECRET, "s", data={"a": 1}), "data[a]"),
        *(
            (thing(CRON_JOB, "c", spec={"schedule": "@daily", "timeZone": zone}), "spec.timeZone")
            for zone in ("Mars/Olympus", "America", "../zone", "a\0b", "", "Local", 1)
        ),
        (pod() | {"spec": "none"}, "spec"),
        (thing(DEPLOYMENT, "web", spec={"template": template(app="web")}), "spec.selector"),
        (
            thing(
                DEPLOYMENT, "w", spec={"selector": {"matchLabels": {"a": "1"}}, "template": template(a="2")}
            ),
            "spec.template.metadata.labels",
        ),
        (thing(SECRET, "s", data={"key": "no base64"}), "data[key]"),
        (thing(SECRET, "s", data=[]), "data"),
        (config_map(data={"a": 1}), "data[a]"),
        (config_map(data={"a/b": "1"}), "data[a/b]"),
        (thing(POD, "p", spec={"containers": []}), "spec.containers"),
        (thing(POD, "p", spec={"containers": [{"image": "a"}]}), "spec.containers[0].name"),
        (thing(POD, "p", spec={"containers": [{"name": "A_b"}]}), "spec.containers[0].name"),
        (mounting("absent"), "spec.template.spec.containers[0].volumeMounts[0].name"),
        (agent(mode="never"), "spec.mode"),
        (
            thing(MCP_SERVER_SET, "s", spec={"servers": [{"name": "a", "endpoint": "https://a"}] * 2}),
            "spec.servers[1]",
        ),
    ],
)
async def test_what_is_malformed_is_refused_and_named(cluster, said, where):
    for attempt in (cluster.create, lambda given: cluster.apply(given, "me")):
        with pytest.raises(InvalidError) as caught:
            await attempt(said)
        assert where in caught.value.violations


async def test_a_kind_that_we_do_not_have_is_refused(cluster):
    with pytest.raises(InvalidError, match='no matches for kind "Gadget" in version "v1"'):
        await cluster.create({"apiVersion": "v1", "kind": "Gadget", "metadata": {"name": "a"}})


def stateful_set(**spec):
    base = {
        "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}},
        "template": template(app="web"),
    }
    return thing(STATEFUL_SET, "web", spec=base | spec)


def relabelled():
    changed = deployment()
    changed["spec"] = {"selector": {"matchLabels": {"app": "x"}}, "template": template(app="x")}
    return changed


def rerun():
    changed = job()
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "another"
    return changed


def moved():
    changed = pod()
    changed["spec"]["containers"][0]["command"] = ["sh"]
    return changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (deployment(), relabelled()),
        (job(), rerun()),
        (stateful_set(), stateful_set(serviceName="other")),
        (stateful_set(), stateful_set(podManagementPolicy="Parallel")),
        (pod(), moved()),
        (config_map(immutable=True, data={"a": "1"}), config_map(immutable=True, data={"a": "2"})),
        (thing(SECRET, "s", type="Opaque"), thing(SECRET, "s", type="other")),
    ],
)
async def test_what_is_immutable_stays(cluster, before, after):
    made = await cluster.apply(before, "me")
    with pytest.raises(InvalidError, match="field is immutable"):
        await cluster.apply(after, "me")
    after["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    with pytest.raises(InvalidError, match="field is immutable"):
        await cluster.replace(after)


async def test_what_is_not_immutable_may_change(cluster):
    await cluster.apply(stateful_set(), "me")
    changed = await cluster.apply(stateful_set(replicas=3, template=template(app="web", more="x")), "me")
    assert changed["spec"]["replicas"] == 3
    await cluster.apply(job(), "me")
    suspended = job()
    suspended["spec"]["suspend"] = True
    assert (await cluster.apply(suspended, "me"))["spec"]["suspend"]
    placed = await cluster.create(pod())
    placed["spec"]["nodeName"] = "local"
    assert (await cluster.replace(placed))["spec"]["nodeName"] == "local"


async def test_a_refused_write_leaves_nothing_behind(cluster):
    before = await cluster.apply(deployment(), "me")
    newest = (await cluster.list(DEPLOYMENT)).revision
    with pytest.raises(InvalidError):
        await cluster.apply(relabelled(), "me")
    assert await cluster.get(DEPLOYMENT, "default", "web") == before
    assert (await cluster.list(DEPLOYMENT)).revision == newest
    assert await cluster.apply(deployment(), "me") == before


async def test_a_disk_that_refuses_is_unavailable_and_nothing_is_lost(cluster):
    # the same refusal that a full disk gives
    made = await cluster.apply(config_map(data={"a": "1"}), "me")
    database = cluster._store._db
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnavailableError, match="full"):
        await cluster.apply(config_map(data={"a": "x" * 100_000}), "me")
    database.execute("PRAGMA max_page_count = 1000000")
    assert await cluster.get(CONFIG_MAP, "default", "settings") == made
    assert revision(await cluster.apply(config_map(data={"a": "2"}), "me")) == revision(made) + 1


async def test_events_are_kept_by_number_and_age(cluster, clock):
    for number in range(EVENTS + 5):
        await cluster.create(thing(EVENT, f"event-{number:04}", note="x"))
    kept = [item["metadata"]["name"] for item in (await cluster.list(EVENT)).items]
    assert kept == [f"event-{number:04}" for number in range(5, EVENTS + 5)]
    clock.now += EVENT_SECONDS + 1
    for number in range(EVENTS // 9):
        await cluster.create(thing(EVENT, f"late-{number:04}", note="x"))
    left = [item["metadata"]["name"] for item in (await cluster.list(EVENT)).items]
    assert left == [f"late-{number:04}" for number in range(EVENTS // 9)]


async def test_the_file_of_a_newer_schema_is_refused(folder):
    async with open_local(folder):
        pass
    with sqlite3.connect(folder / "objects.sqlite") as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(PreconditionError, match="schema 2"):
        async with open_local(folder):
            pass


async def test_an_object_that_is_too_large_is_refused(cluster):
    with pytest.raises(InvalidError, match="bytes"):
        await cluster.create(config_map(data={"a": "x" * OBJECT_BYTES}))
    assert (await cluster.list(CONFIG_MAP)).items == []


async def test_a_namespace_that_lives_has_its_default_account(cluster):
    made = await cluster.get(SERVICE_ACCOUNT, "default", "default")
    await cluster.delete(SERVICE_ACCOUNT, "default", "default")
    again = await cluster.get(SERVICE_ACCOUNT, "default", "default")
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


async def test_a_list_is_of_one_revision_whatever_comes_meanwhile(cluster):
    for number in range(250):
        await cluster.create(config_map(f"a-{number:03}"))
    listed: list[Listing] = []

    async def read():
        listed.append(await cluster.list(CONFIG_MAP))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(cluster.delete, CONFIG_MAP, "default", "a-200")
        tasks.start_soon(cluster.create, config_map("b"))
    known = {item["metadata"]["name"] for item in listed[0].items}
    changes = cluster.watch(CONFIG_MAP, since=listed[0].revision)
    assert len(known) == 250
    assert await take(changes, 2) == [("DELETED", "a-200"), ("ADDED", "b")]


async def test_a_lease_is_an_object_like_any_other(cluster):
    made = await cluster.create(thing(LEASE, "operator", spec={"holderIdentity": "a"}))
    held = await cluster.replace(made | {"spec": {"holderIdentity": "b"}})
    assert held["spec"]["holderIdentity"] == "b"
    with pytest.raises(ConflictError):
        await cluster.replace(made | {"spec": {"holderIdentity": "c"}})


async def test_it_says_what_it_is(cluster):
    assert await cluster.version() == "local"


async def test_a_refusal_repeats_no_long_text(cluster):
    long = "x" * 100_000
    for said in (config_map(long), config_map(labels={long: long}), config_map(data={f"{long}/": "1"})):
        with pytest.raises(InvalidError) as caught:
            await cluster.create(said)
        assert len(str(caught.value)) + len(str(caught.value.violations)) < 2_000
    with pytest.raises(InvalidError) as caught:
        await cluster.create(config_map(labels={f"{index}/": 1 for index in range(1_000)}))
    assert len(str(caught.value)) < 4_000
    with pytest.raises(NotFoundError) as missing:
        await cluster.get(CONFIG_MAP, "default", long)
    assert len(str(missing.value)) < 200


async def test_the_accounts_of_the_system_stay(cluster):
    for name in (ADMINISTRATOR, "default"):
        with pytest.raises(PreconditionError, match="may not be deleted"):
            await cluster.delete(SERVICE_ACCOUNT, SYSTEM, name)
        assert await cluster.get(SERVICE_ACCOUNT, SYSTEM, name)
