"""The port's promises, each as a test that every home passes.

The Kubernetes home is that of AGENTCTL_TEST_KUBECONFIG, with our CRDs installed; without it those tests are
skipped.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
import pytest

from libs.cluster import Access, Bearer, ExpiredError, Log, Object, controller_of
from libs.cluster.informer import Informer
from libs.cluster.kinds import (
    AGENT,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    JOB,
    LEASE,
    NAMESPACE,
    POD,
    POD_DISRUPTION_BUDGET,
    SCALED_OBJECT,
    SERVICE_ACCOUNT,
)
from libs.cluster.kubernetes import KubernetesCluster, connect
from libs.cluster.lease import Election
from libs.cluster.local import ADMINISTRATOR, SYSTEM, open_local
from libs.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnauthenticatedError,
)

AUDIENCE = "agentctl-identity"
AGENT_SPEC = {"mode": "once", "instruction": "count", "model": {"pool": "any"}}
PATIENCE = 60  # seconds; far above what a controller takes


@pytest.fixture(params=["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
async def home(request, tmp_path):
    if request.param == "local":
        async with open_local(tmp_path / "home") as cluster:
            yield cluster
    elif path := os.environ.get("AGENTCTL_TEST_KUBECONFIG"):
        async with connect(Path(path)) as cluster:
            yield cluster
    else:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")


@pytest.fixture
async def namespace(home):
    """A namespace of the test's own, and a deletion of it that is not waited for."""
    thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "conf-"}}
    name = (await home.create(thing))["metadata"]["name"]
    yield name
    with suppress(NotFoundError):  # the test did
        await home.delete(NAMESPACE, "", name)


@pytest.fixture
async def administrator(home):
    """Somebody who may do everything."""
    if isinstance(home, KubernetesCluster):
        return Bearer("somebody", ("system:masters",))
    return await home.review_token(await home.issue_token(SYSTEM, ADMINISTRATOR, AUDIENCE, 600), AUDIENCE)


@pytest.fixture
def make(namespace):
    """An object of the test's namespace: make(kind, name, labels=…, spec=…)."""

    def make(kind, name, *, labels=None, owner=None, finalizers=None, **parts):
        metadata = {"namespace": namespace, "name": name}
        metadata |= {"labels": labels} if labels else {}
        metadata |= {"finalizers": finalizers} if finalizers else {}
        metadata |= {"ownerReferences": [reference(owner)]} if owner else {}
        return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **parts}

    return make


def reference(owner):
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def names(things):
    return sorted(thing["metadata"]["name"] for thing in things)


def revision(thing):
    return thing["metadata"]["resourceVersion"]


def template(**container):
    """Pods that nothing ever starts: no scheduler has this name."""
    return {
        "metadata": {"labels": {"app": "conf"}},
        "spec": {
            "schedulerName": "nobody",
            "restartPolicy": "Always",
            "containers": [{"name": "agent", "image": "agentctl", **container}],
        },
    }


def deployment_spec(**container):
    return {"replicas": 0, "selector": {"matchLabels": {"app": "conf"}}, "template": template(**container)}


async def eventually(true):
    """Until that is so; for what controllers do in their own time."""
    with anyio.fail_after(PATIENCE):
        while not await true():  # noqa: ASYNC110 - no home has an event for it
            await anyio.sleep(0.05)


async def gone(home, kind, namespace, name):
    """Returns when it is."""

    async def missing():
        try:
            await home.get(kind, namespace, name)
        except NotFoundError:
            return True
        return False

    await eventually(missing)


async def dying(home, kind, namespace, name):
    """The object, once its deletion has begun."""
    found: list[Object] = []

    async def begun():
        found[:] = [await home.get(kind, namespace, name)]
        return "deletionTimestamp" in found[0]["metadata"]

    await eventually(begun)
    return found[0]


async def take(watched, count):
    """The next so many changes, without bookmarks: (type, name)."""
    changes = []
    with anyio.fail_after(PATIENCE):
        async for change in watched:
            if change.type != "BOOKMARK":
                changes.append(change)
            if len(changes) == count:
                break
    return changes


def told(changes):
    return [(change.type, change.object["metadata"]["name"]) for change in changes]


class TestCreateAndGet:
    async def test_created_object_is_there_with_what_the_home_adds(self, home, namespace, make):
        given = make(CONFIG_MAP, "a", labels={"x": "y"}, data={"k": "v"})
        before = copy.deepcopy(given)
        made = await home.create(given)
        assert given == before
        found = await home.get(CONFIG_MAP, namespace, "a")
        assert found == made
        assert found["data"] == {"k": "v"}
        assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")
        assert {"uid", "resourceVersion", "creationTimestamp"} < found["metadata"].keys()

    async def test_caller_owns_what_it_gets(self, home, namespace, make):
        (await home.create(make(CONFIG_MAP, "a", data={"k": "v"})))["data"]["k"] = "changed"
        (await home.get(CONFIG_MAP, namespace, "a"))["data"]["k"] = "changed"
        assert (await home.get(CONFIG_MAP, namespace, "a"))["data"] == {"k": "v"}

    async def test_missing_object_is_not_found(self, home, namespace):
        for kind in (CONFIG_MAP, AGENT, DEPLOYMENT):
            with pytest.raises(NotFoundError):
                await home.get(kind, namespace, "missing")
        with pytest.raises(NotFoundError):
            await home.get(NAMESPACE, "", "conf-missing")

    async def test_second_of_a_name_conflicts(self, home, make):
        await home.create(make(CONFIG_MAP, "a"))
        with pytest.raises(ConflictError):
            await home.create(make(CONFIG_MAP, "a"))

    async def test_generated_names_differ_and_begin_as_asked(self, home, make):
        thing = make(CONFIG_MAP, "a")
        del thing["metadata"]["name"]
        thing["metadata"]["generateName"] = "prefix-"
        first, second = await home.create(thing), await home.create(thing)
        assert first["metadata"]["name"] != second["metadata"]["name"]
        assert all(name.startswith("prefix-") for name in names([first, second]))

    @pytest.mark.parametrize("name", ["", "..", "Upper", "a/b", "a b"])
    async def test_bad_names_are_invalid(self, home, make, name):
        with pytest.raises(InvalidError):
            await home.create(make(CONFIG_MAP, name))

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
    async def test_names_that_are_none_reach_no_other_object(self, home, namespace, make, name):
        await home.create(make(CONFIG_MAP, "a"))
        with pytest.raises((InvalidError, NotFoundError)):
            await home.get(CONFIG_MAP, namespace, name)
        with pytest.raises((InvalidError, NotFoundError)):
            await home.delete(CONFIG_MAP, namespace, name)
        assert await home.get(CONFIG_MAP, namespace, "a")

    async def test_what_says_too_little_of_itself_is_invalid(self, home, namespace, make):
        whole = make(CONFIG_MAP, "a")
        for thing in (
            {**whole, "kind": "ConfigMop"},
            {**whole, "apiVersion": "v2"},
            {**whole, "metadata": {"namespace": namespace}},
            {**whole, "metadata": {"name": "a"}},
        ):
            for write in (home.create, lambda thing: home.apply(thing, "us")):
                with pytest.raises(InvalidError):
                    await write(thing)

    async def test_namespace_must_exist(self, home, make):
        thing = make(CONFIG_MAP, "a")
        thing["metadata"]["namespace"] = "conf-missing"
        with pytest.raises(NotFoundError):
            await home.create(thing)

    async def test_each_namespace_has_a_default_account(self, home, namespace):
        async def there():
            return "default" in names((await home.list(SERVICE_ACCOUNT, namespace)).items)

        await eventually(there)

    async def test_refusal_of_our_kinds_names_the_field(self, home, make):
        with pytest.raises(InvalidError) as refused:
            await home.create(make(AGENT, "a", spec={"mode": "sometimes"}))
        assert "spec.mode" in refused.value.violations

    async def test_our_kinds_are_kept(self, home, namespace, make):
        await home.create(make(AGENT, "a", spec=AGENT_SPEC))
        assert (await home.get(AGENT, namespace, "a"))["spec"].items() >= AGENT_SPEC.items()


class TestList:
    async def test_namespace_and_labels_narrow_it(self, home, namespace, make):
        for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "x"}), ("c", {"app": "y"})):
            await home.create(make(CONFIG_MAP, name, labels=labels))
        found = {
            selector: names((await home.list(CONFIG_MAP, namespace, selector)).items)
            for selector in (
                "app=x", "app!=x,app", "app in (x, y)", "app notin (x),app", "tier", "app,!tier",
                "app=x,tier=1",
            )
        }  # fmt: skip
        assert found == {
            "app=x": ["a", "b"],
            "app!=x,app": ["c"],
            "app in (x, y)": ["a", "b", "c"],
            "app notin (x),app": ["c"],
            "tier": ["a"],
            "app,!tier": ["b", "c"],
            "app=x,tier=1": ["a"],
        }
        assert {"a", "b", "c"} <= set(names((await home.list(CONFIG_MAP, namespace)).items))
        assert "b" in names((await home.list(CONFIG_MAP, labels="app=x")).items)
        assert names((await home.list(CONFIG_MAP, "default", "app in (x, y)")).items) == []

    async def test_a_name_narrows_it_to_one(self, home, namespace, make):
        for name in ("a", "ab"):
            await home.create(make(CONFIG_MAP, name, labels={"app": "x"}))
        assert names((await home.list(CONFIG_MAP, namespace, name="a")).items) == ["a"]
        assert names((await home.list(CONFIG_MAP, namespace, "app=y", name="a")).items) == []

    async def test_items_say_what_they_are(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "a", labels={"app": "x"}))
        [item] = (await home.list(CONFIG_MAP, namespace, "app=x")).items
        assert (item["apiVersion"], item["kind"]) == ("v1", "ConfigMap")

    async def test_more_than_a_page_is_whole(self, home, namespace, make):
        async with anyio.create_task_group() as group:
            for start in range(20):
                group.start_soon(self.some, home, make, start)
        listing = await home.list(CONFIG_MAP, namespace, "of=many")
        assert names(listing.items) == sorted(f"m{number}" for number in range(620))

    async def some(self, home, make, start):
        for number in range(start, 620, 20):
            await home.create(make(CONFIG_MAP, f"m{number}", labels={"of": "many"}))

    async def test_kinds_without_namespace(self, home, namespace):
        assert namespace in names((await home.list(NAMESPACE)).items)


class TestApply:
    async def test_makes_it_and_then_changes_it(self, home, make):
        first = await home.apply(make(CONFIG_MAP, "a", data={"k": "1"}), "us")
        second = await home.apply(make(CONFIG_MAP, "a", data={"k": "2"}), "us")
        assert second["data"] == {"k": "2"}
        assert second["metadata"]["uid"] == first["metadata"]["uid"]
        assert revision(second) != revision(first)

    async def test_change_of_nothing_keeps_the_revision(self, home, namespace, make):
        for thing in (
            make(CONFIG_MAP, "a", data={"k": "1"}),
            make(AGENT, "a", spec=AGENT_SPEC),
            make(EVENT, "a", **event(namespace)),
        ):
            first = await home.apply(thing, "us")
            assert revision(await home.apply(thing, "us")) == revision(first)

    async def test_what_is_named_no_more_is_removed(self, home, make):
        await home.apply(make(CONFIG_MAP, "a", labels={"x": "1"}, data={"k": "1", "l": "2"}), "us")
        after = await home.apply(make(CONFIG_MAP, "a", data={"k": "1"}), "us")
        assert after["data"] == {"k": "1"}
        assert not after["metadata"].get("labels")

    async def test_what_others_named_stays(self, home, make):
        await home.apply(make(CONFIG_MAP, "a", data={"ours": "1", "both": "1"}), "us")
        await home.apply(make(CONFIG_MAP, "a", data={"theirs": "1", "both": "1"}), "them")
        after = await home.apply(make(CONFIG_MAP, "a"), "us")
        assert after["data"] == {"theirs": "1", "both": "1"}
        after = await home.apply(make(CONFIG_MAP, "a"), "them")
        assert not after.get("data")

    async def test_field_of_another_is_taken_over(self, home, make):
        await home.apply(make(CONFIG_MAP, "a", data={"k": "theirs"}), "them")
        after = await home.apply(make(CONFIG_MAP, "a", data={"k": "ours"}), "us")
        assert after["data"] == {"k": "ours"}
        after = await home.apply(make(CONFIG_MAP, "a"), "them")  # it is theirs no more
        assert after["data"] == {"k": "ours"}

    async def test_a_number_goes_from_one_manager_to_another_and_never_dips(self, home, namespace, make):
        """The first says 2; the second says the same and nothing else; the first says it no more; a third may
        say another then, which no word of the first changes."""
        spec = deployment_spec()
        first = await home.apply(make(DEPLOYMENT, "a", spec={**spec, "replicas": 2}), "us")
        alone = make(DEPLOYMENT, "a", spec={"replicas": 2})
        alone["metadata"]["uid"] = first["metadata"]["uid"]
        both = await home.apply(alone, "keeper")
        assert both["spec"] == first["spec"]
        silent = {name: value for name, value in spec.items() if name != "replicas"}
        for replicas, manager in ((2, "keeper"), (3, "scaler"), (1, "scaler")):
            await home.apply(make(DEPLOYMENT, "a", spec={"replicas": replicas}), manager)
            after = await home.apply(make(DEPLOYMENT, "a", spec=silent), "us")
            assert after["spec"]["replicas"] == replicas
        after = await home.apply(make(DEPLOYMENT, "a", spec={**spec, "replicas": 4}), "us")
        assert after["spec"]["replicas"] == 4

    async def test_apply_to_what_is_gone_or_another_by_now_conflicts(self, home, namespace, make):
        first = await home.apply(make(CONFIG_MAP, "a", data={"k": "1"}), "us")
        await home.apply(make(CONFIG_MAP, "a", data={"k": "2"}), "us")
        stale = make(CONFIG_MAP, "a", data={"k": "3"})
        stale["metadata"]["resourceVersion"] = revision(first)
        other = make(CONFIG_MAP, "b", data={"k": "3"})
        other["metadata"]["uid"] = first["metadata"]["uid"]
        for thing in (stale, other):
            with pytest.raises(ConflictError):
                await home.apply(thing, "us")
        assert (await home.get(CONFIG_MAP, namespace, "a"))["data"] == {"k": "2"}
        assert names((await home.list(CONFIG_MAP, namespace, name="b")).items) == []

    async def test_what_was_created_or_replaced_by_hand_stays(self, home, make):
        made = await home.create(make(CONFIG_MAP, "a", data={"hand": "1"}))
        await home.replace({**made, "data": {"hand": "2", "more": "1"}})
        await home.apply(make(CONFIG_MAP, "a", data={"ours": "1"}), "us")
        after = await home.apply(make(CONFIG_MAP, "a"), "us")
        assert after["data"] == {"hand": "2", "more": "1"}

    async def test_dry_run_tells_but_does_nothing(self, home, namespace, make):
        would = await home.apply(make(CONFIG_MAP, "a", data={"k": "1"}), "us", dry_run=True)
        assert would["data"] == {"k": "1"}
        with pytest.raises(NotFoundError):
            await home.get(CONFIG_MAP, namespace, "a")
        made = await home.apply(make(CONFIG_MAP, "a", data={"k": "1"}), "us")
        would = await home.apply(make(CONFIG_MAP, "a", data={"l": "1"}), "us", dry_run=True)
        assert would["data"] == {"l": "1"}
        assert await home.get(CONFIG_MAP, namespace, "a") == made

    async def test_dry_run_refuses_what_the_real_one_would(self, home, make):
        with pytest.raises(InvalidError):
            await home.apply(make(AGENT, "a", spec={"mode": "sometimes"}), "us", dry_run=True)

    async def test_containers_and_their_variables_are_merged_by_name(self, home, make):
        env = [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]
        await home.apply(make(DEPLOYMENT, "a", spec=deployment_spec(env=env)), "us")
        theirs = {"containers": [{"name": "agent", "env": [{"name": "C", "value": "1"}]}]}
        await home.apply(make(DEPLOYMENT, "a", spec={"template": {"spec": theirs}}), "them")
        after = await home.apply(make(DEPLOYMENT, "a", spec=deployment_spec(env=env[:1])), "us")
        [container] = after["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "agentctl"
        assert names([{"metadata": variable} for variable in container["env"]]) == ["A", "C"]

    async def test_item_goes_with_the_last_who_named_it_though_others_changed_it(self, home, namespace, make):
        env = [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]
        await home.apply(make(DEPLOYMENT, "a", spec=deployment_spec(env=env)), "us")

        async def by_hand():
            thing = await home.get(DEPLOYMENT, namespace, "a")
            [container] = thing["spec"]["template"]["spec"]["containers"]
            container["env"][1]["value"] = "2"
            container["env"].append({"name": "H", "value": "1"})
            with suppress(ConflictError):  # with the controller
                return await home.replace(thing)

        await eventually(by_hand)
        after = await home.apply(make(DEPLOYMENT, "a", spec=deployment_spec(env=env[:1])), "us")
        [container] = after["spec"]["template"]["spec"]["containers"]
        assert container["env"] == [{"name": "A", "value": "1"}, {"name": "H", "value": "1"}]

    async def test_generation_counts_specs_only(self, home, make):
        first = await home.apply(make(AGENT, "a", spec=AGENT_SPEC), "us")
        labelled = await home.apply(make(AGENT, "a", labels={"x": "1"}, spec=AGENT_SPEC), "us")
        conditions = [condition("Ready", "True")]
        observed = await home.apply(
            make(AGENT, "a", status={"conditions": conditions}), "us", subresource="status"
        )
        changed = await home.apply(make(AGENT, "a", spec={**AGENT_SPEC, "instruction": "add"}), "us")
        generations = [thing["metadata"]["generation"] for thing in (first, labelled, observed, changed)]
        assert generations == [1, 1, 1, 2]

    async def test_status_is_changed_as_a_subresource_only(self, home, make):
        await home.apply(make(AGENT, "a", spec=AGENT_SPEC), "us")
        status = {"observedGeneration": 1, "conditions": [condition("Ready", "False")]}
        after = await home.apply(
            make(AGENT, "a", spec={**AGENT_SPEC, "instruction": "ignored"}, status=status),
            "us",
            subresource="status",
        )
        assert after["status"].items() >= status.items()
        assert after["spec"]["instruction"] == "count"
        ignored = {"conditions": [condition("Ready", "True")]}
        after = await home.apply(make(AGENT, "a", spec=AGENT_SPEC, status=ignored), "us")
        assert after["status"].items() >= status.items()

    async def test_conditions_of_two_managers_live_together(self, home, make):
        await home.apply(make(AGENT, "a", spec=AGENT_SPEC), "us")
        for manager, type in (("us", "Ready"), ("them", "Accepted")):
            status = {"conditions": [condition(type, "True")]}
            after = await home.apply(make(AGENT, "a", status=status), manager, subresource="status")
        assert sorted(each["type"] for each in after["status"]["conditions"]) == ["Accepted", "Ready"]

    async def test_status_of_a_missing_object_is_not_found(self, home, make):
        with pytest.raises(NotFoundError):
            await home.apply(make(AGENT, "a", status={}), "us", subresource="status")

    async def test_template_of_a_job_may_not_change(self, home, namespace, make):
        pod = {**template(), "spec": {**template()["spec"], "restartPolicy": "Never"}}
        made = await home.apply(make(JOB, "a", spec={"suspend": True, "template": pod}), "us")
        other = copy.deepcopy(pod)
        other["spec"]["containers"][0]["image"] = "another"
        with pytest.raises(InvalidError) as refused:
            await home.apply(make(JOB, "a", spec={"suspend": True, "template": other}), "us")
        assert any(field.startswith("spec.template") for field in refused.value.violations)
        found = await home.get(JOB, namespace, "a")
        assert found["spec"]["template"] == made["spec"]["template"]

    async def test_selector_of_a_deployment_may_not_change(self, home, make):
        await home.apply(make(DEPLOYMENT, "a", spec=deployment_spec()), "us")
        spec = deployment_spec()
        spec["selector"] = {"matchLabels": {"app": "other"}}
        spec["template"]["metadata"]["labels"] = {"app": "other"}
        with pytest.raises(InvalidError):
            await home.apply(make(DEPLOYMENT, "a", spec=spec), "us")


class TestReplace:
    async def test_stale_view_conflicts(self, home, namespace, make):
        first = await home.create(make(CONFIG_MAP, "a", data={"k": "1"}))
        second = await home.replace({**first, "data": {"l": "2"}})
        assert second["data"] == {"l": "2"}
        with pytest.raises(ConflictError):
            await home.replace({**first, "data": {"k": "3"}})
        assert await home.get(CONFIG_MAP, namespace, "a") == second

    async def test_missing_object_is_not_made(self, home, namespace, make):
        for kind in (CONFIG_MAP, LEASE):
            made = await home.create(make(kind, "a"))
            await home.delete(kind, namespace, "a")
            with pytest.raises((NotFoundError, ConflictError)):
                await home.replace(made)
            with pytest.raises(NotFoundError):
                await home.get(kind, namespace, "a")

    async def test_view_of_no_revision_conflicts(self, home, namespace, make):
        made = await home.create(make(CONFIG_MAP, "a", data={"k": "1"}))
        with pytest.raises(ConflictError):
            await home.replace(make(CONFIG_MAP, "a", data={"k": "2"}))
        assert await home.get(CONFIG_MAP, namespace, "a") == made

    async def test_one_of_many_at_once_wins(self, home, make):
        made = await home.create(make(CONFIG_MAP, "a"))
        won = []

        async def one(number):
            with suppress(ConflictError):
                won.append(await home.replace({**made, "data": {"winner": str(number)}}))

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(one, number)
        assert len(won) == 1


class TestDelete:
    async def test_deleted_object_is_gone(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "a"))
        await home.delete(CONFIG_MAP, namespace, "a")
        with pytest.raises(NotFoundError):
            await home.get(CONFIG_MAP, namespace, "a")
        with pytest.raises(NotFoundError):
            await home.delete(CONFIG_MAP, namespace, "a")

    async def test_uid_of_another_conflicts(self, home, namespace, make):
        first = await home.create(make(CONFIG_MAP, "a"))
        await home.delete(CONFIG_MAP, namespace, "a", uid=first["metadata"]["uid"])
        second = await home.create(make(CONFIG_MAP, "a"))
        with pytest.raises(ConflictError):
            await home.delete(CONFIG_MAP, namespace, "a", uid=first["metadata"]["uid"])
        assert await home.get(CONFIG_MAP, namespace, "a") == second

    async def test_finalizers_hold_it_until_they_are_gone(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "a", finalizers=["agentctl.dev/test"]))
        await home.delete(CONFIG_MAP, namespace, "a")
        held = await home.get(CONFIG_MAP, namespace, "a")
        assert held["metadata"]["deletionTimestamp"]
        await home.delete(CONFIG_MAP, namespace, "a")  # again: no error, no difference
        del held["metadata"]["finalizers"]
        await home.replace(held)
        await gone(home, CONFIG_MAP, namespace, "a")

    async def test_finalizer_that_apply_names_no_more_is_gone(self, home, namespace, make):
        await home.apply(make(CONFIG_MAP, "a", finalizers=["agentctl.dev/test"]), "us")
        await home.delete(CONFIG_MAP, namespace, "a")
        await home.apply(make(CONFIG_MAP, "a"), "us")
        await gone(home, CONFIG_MAP, namespace, "a")

    async def test_what_it_owns_goes_with_it(self, home, namespace, make):
        owner = await home.create(make(CONFIG_MAP, "owner"))
        child = await home.create(make(CONFIG_MAP, "child", owner=owner))
        await home.create(make(CONFIG_MAP, "grandchild", owner=child))
        await home.create(make(CONFIG_MAP, "stranger"))
        assert controller_of(child) == child["metadata"]["ownerReferences"][0]
        await home.delete(CONFIG_MAP, namespace, "owner")
        for name in ("child", "grandchild"):
            await gone(home, CONFIG_MAP, namespace, name)
        assert await home.get(CONFIG_MAP, namespace, "stranger")

    @pytest.mark.parametrize(
        ("kind", "spec", "status"),
        [
            (
                POD_DISRUPTION_BUDGET,
                {"maxUnavailable": "25%", "selector": {"matchLabels": {"app": "conf"}}},
                {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
            ),
            (
                SCALED_OBJECT,
                {"scaleTargetRef": {"name": "none"}, "triggers": [{"type": "cpu", "metadata": {}}]},
                {"conditions": [{"type": "Ready", "status": "False", "reason": "Why", "message": "so"}]},
            ),
        ],
        ids=lambda value: getattr(value, "name", ""),
    )
    async def test_what_a_workload_has_beside_it_goes_with_its_owner(
        self, home, namespace, make, kind, spec, status
    ):
        try:
            await home.list(kind, namespace, name="none")
        except NotFoundError:
            pytest.skip(f"there are no {kind.plural} in this cluster")
        owner = await home.create(make(CONFIG_MAP, "owner"))
        made = await home.apply(make(kind, "a", owner=owner, spec=spec), "us")
        assert made["spec"].items() >= spec.items()
        said = await home.apply(make(kind, "a", status=status), "them", subresource="status")
        assert said["status"]
        assert said["metadata"]["generation"] == made["metadata"]["generation"]
        assert controller_of(said) == controller_of(made)
        await home.delete(CONFIG_MAP, namespace, "owner")
        await gone(home, kind, namespace, "a")

    async def test_orphans_stay_and_have_no_owner(self, home, namespace, make):
        owner = await home.create(make(CONFIG_MAP, "owner"))
        await home.create(make(CONFIG_MAP, "child", owner=owner))
        await home.delete(CONFIG_MAP, namespace, "owner", propagation="Orphan")
        await gone(home, CONFIG_MAP, namespace, "owner")
        child = await home.get(CONFIG_MAP, namespace, "child")
        assert controller_of(child) is None

    async def test_foreground_waits_for_what_it_owns(self, home, namespace, make):
        owner = await home.create(make(CONFIG_MAP, "owner"))
        await home.create(make(CONFIG_MAP, "child", owner=owner, finalizers=["agentctl.dev/test"]))
        await home.delete(CONFIG_MAP, namespace, "owner", propagation="Foreground")
        assert (await home.get(CONFIG_MAP, namespace, "owner"))["metadata"]["deletionTimestamp"]
        child = await dying(home, CONFIG_MAP, namespace, "child")
        child["metadata"]["finalizers"] = []
        await home.replace(child)
        await gone(home, CONFIG_MAP, namespace, "owner")

    async def test_namespace_takes_all_with_it_and_nothing_new_comes(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "a", finalizers=["agentctl.dev/test"]))
        await home.create(make(AGENT, "a", spec=AGENT_SPEC))
        await home.delete(NAMESPACE, "", namespace)
        await gone(home, AGENT, namespace, "a")
        with pytest.raises(PreconditionError):
            await home.create(make(CONFIG_MAP, "b"))
        held = await dying(home, CONFIG_MAP, namespace, "a")
        await home.replace({**held, "metadata": {**held["metadata"], "finalizers": []}})
        await gone(home, NAMESPACE, "", namespace)


class TestWatch:
    async def test_changes_since_a_revision_come_in_order_and_once(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "before", labels={"w": "1"}))
        listing = await home.list(CONFIG_MAP, namespace, "w=1")
        made = await home.create(make(CONFIG_MAP, "a", labels={"w": "1"}))
        async with aclosing(home.watch(CONFIG_MAP, namespace, "w=1", since=listing.revision)) as watched:
            assert told(await take(watched, 1)) == [("ADDED", "a")]
            made = await home.replace({**made, "data": {"k": "1"}})
            await home.create(make(CONFIG_MAP, "b", labels={"w": "1"}))
            await home.delete(CONFIG_MAP, namespace, "a")
            changes = await take(watched, 3)
        assert told(changes) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
        assert changes[0].object == made
        async with aclosing(
            home.watch(CONFIG_MAP, namespace, "w=1", since=revision(changes[0].object))
        ) as resumed:
            assert told(await take(resumed, 2)) == [("ADDED", "b"), ("DELETED", "a")]

    async def test_without_a_revision_all_that_there_is_comes_first(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "a", labels={"w": "1"}))
        async with aclosing(home.watch(CONFIG_MAP, namespace, "w=1")) as watched:
            assert told(await take(watched, 1)) == [("ADDED", "a")]
            await home.create(make(CONFIG_MAP, "b", labels={"w": "1"}))
            assert told(await take(watched, 1)) == [("ADDED", "b")]

    async def test_object_comes_into_view_and_leaves_it_by_its_labels(self, home, namespace, make):
        since = (await home.list(CONFIG_MAP, namespace, "w=1")).revision
        await home.apply(make(CONFIG_MAP, "a"), "us")
        await home.apply(make(CONFIG_MAP, "a", labels={"w": "1"}), "us")
        await home.apply(make(CONFIG_MAP, "a", labels={"w": "2"}), "us")
        async with aclosing(home.watch(CONFIG_MAP, namespace, "w=1", since=since)) as watched:
            assert told(await take(watched, 2)) == [("ADDED", "a"), ("DELETED", "a")]

    async def test_a_watch_of_a_name_tells_of_it_alone(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "before"))
        async with aclosing(home.watch(CONFIG_MAP, namespace, name="a")) as watched:
            asked = asyncio.create_task(take(watched, 1))
            await home.create(make(CONFIG_MAP, "b"))
            made = await home.create(make(CONFIG_MAP, "a"))
            assert told(await asked) == [("ADDED", "a")]
            await home.delete(CONFIG_MAP, namespace, "b")
            await home.replace({**made, "data": {"k": "1"}})
            assert told(await take(watched, 1)) == [("MODIFIED", "a")]

    async def test_other_kinds_and_namespaces_are_not_told(self, home, namespace, make):
        since = (await home.list(AGENT, namespace)).revision
        await home.create(make(CONFIG_MAP, "a"))
        await home.create(make(AGENT, "b", spec=AGENT_SPEC))
        async with aclosing(home.watch(AGENT, since=since)) as watched:
            while True:  # other tests may run on the same cluster
                [change] = await take(watched, 1)
                if change.object["metadata"]["namespace"] == namespace:
                    break
        assert told([change]) == [("ADDED", "b")]
        assert (change.object["apiVersion"], change.object["kind"]) == (AGENT.api_version, "Agent")

    async def test_deletion_tells_a_revision_to_go_on_from(self, home, namespace, make):
        made = await home.create(make(CONFIG_MAP, "a", labels={"w": "1"}))
        async with aclosing(home.watch(CONFIG_MAP, namespace, "w=1", since=revision(made))) as watched:
            await home.delete(CONFIG_MAP, namespace, "a")
            [deleted] = await take(watched, 1)
        assert revision(deleted.object) != revision(made)
        await home.create(make(CONFIG_MAP, "b", labels={"w": "1"}))
        async with aclosing(
            home.watch(CONFIG_MAP, namespace, "w=1", since=revision(deleted.object))
        ) as watched:
            assert told(await take(watched, 1)) == [("ADDED", "b")]

    async def test_old_revision_is_expired(self, home, make, namespace):
        if not isinstance(home, KubernetesCluster):  # ten thousand changes are remembered
            made = await home.create(make(CONFIG_MAP, "a"))
            for number in range(10_200):
                made = await home.replace({**made, "data": {"k": str(number)}})
        elif await remembers(home):
            pytest.skip("this API server is so young that it has forgotten nothing yet")
        async with aclosing(home.watch(CONFIG_MAP, namespace, since="1")) as watched:
            with pytest.raises(ExpiredError):
                await take(watched, 1)


async def remembers(home):
    """Whether the history from the first revision on is there: etcd is compacted every five minutes."""
    try:
        async with asyncio.timeout(2), aclosing(home.watch(NAMESPACE, since="1")) as watched:
            await take(watched, 1)
    except ExpiredError:
        return False
    except TimeoutError:
        pass
    return True


class TestTokens:
    async def test_token_is_believed_for_its_audience(self, home, make, namespace):
        made = await home.create(make(SERVICE_ACCOUNT, "robot"))
        token = await home.issue_token(namespace, "robot", AUDIENCE, 3600)
        bearer = await home.review_token(token, AUDIENCE)
        assert bearer.username == f"system:serviceaccount:{namespace}:robot"
        assert bearer.service_account == (namespace, "robot")
        assert bearer.uid == made["metadata"]["uid"]
        assert f"system:serviceaccounts:{namespace}" in bearer.groups
        assert (bearer.pod, bearer.pod_uid) == ("", "")
        assert 3300 < bearer.expires_at - time.time() < 3700

    async def test_each_token_has_an_id_of_its_own(self, home, make, namespace):
        await home.create(make(SERVICE_ACCOUNT, "robot"))
        tokens = [await home.issue_token(namespace, "robot", AUDIENCE, 3600) for _ in range(2)]
        ids = [(await home.review_token(token, AUDIENCE)).token_id for token in (*tokens, *tokens)]
        assert len(set(ids)) == 2
        assert ids[:2] == ids[2:]

    async def test_other_audience_is_refused(self, home, make, namespace):
        await home.create(make(SERVICE_ACCOUNT, "robot"))
        token = await home.issue_token(namespace, "robot", "somebody-else", 3600)
        with pytest.raises(UnauthenticatedError):
            await home.review_token(token, AUDIENCE)

    async def test_no_audience_is_that_of_the_api_server(self, home, make, namespace):
        await home.create(make(SERVICE_ACCOUNT, "robot"))
        token = await home.issue_token(namespace, "robot", AUDIENCE, 3600)
        with pytest.raises(UnauthenticatedError):
            await home.review_token(token, "")
        if isinstance(home, KubernetesCluster):  # the local home has none
            own = await home.issue_token(namespace, "robot", "", 3600)
            assert (await home.review_token(own, "")).service_account == (namespace, "robot")

    @pytest.mark.parametrize("token", ["", "garbage", "a.b.c", "ey.ey.ey", "\x00", "x" * 10_000])
    async def test_garbage_is_refused(self, home, token):
        with pytest.raises(UnauthenticatedError):
            await home.review_token(token, AUDIENCE)

    async def test_forged_signature_is_refused(self, home, make, namespace):
        await home.create(make(SERVICE_ACCOUNT, "robot"))
        head, body, signature = (await home.issue_token(namespace, "robot", AUDIENCE, 3600)).split(".")
        forged = ("B" if signature[0] == "A" else "A") + signature[1:]
        with pytest.raises(UnauthenticatedError):
            await home.review_token(f"{head}.{body}.{forged}", AUDIENCE)

    async def test_token_of_a_deleted_account_is_refused(self, home, make, namespace):
        await home.create(make(SERVICE_ACCOUNT, "robot"))
        token = await home.issue_token(namespace, "robot", AUDIENCE, 3600)
        await home.delete(SERVICE_ACCOUNT, namespace, "robot")
        await home.create(make(SERVICE_ACCOUNT, "robot"))  # another one of that name
        with pytest.raises(UnauthenticatedError):
            await home.review_token(token, AUDIENCE)

    async def test_token_of_a_missing_account_is_not_issued(self, home, namespace):
        with pytest.raises(NotFoundError):
            await home.issue_token(namespace, "missing", AUDIENCE, 3600)

    async def test_account_may_nothing_that_nobody_granted(self, home, make, namespace):
        await home.create(make(SERVICE_ACCOUNT, "robot"))
        token = await home.issue_token(namespace, "robot", AUDIENCE, 3600)
        bearer = await home.review_token(token, AUDIENCE)
        for access in (
            Access("request", "identity.agentctl.dev", "administrators"),
            Access("request", "identity.agentctl.dev", "producers", "default"),
            Access("delete", "", "pods", namespace),
        ):
            assert not await home.review_access(bearer, access)

    async def test_administrator_may_all(self, home, administrator):
        for access in (
            Access("request", "identity.agentctl.dev", "administrators"),
            Access("request", "identity.agentctl.dev", "users", "default"),
        ):
            assert await home.review_access(administrator, access)


class TestEventsLogsAndVersion:
    async def test_event_is_kept_and_listed(self, home, namespace, make):
        await home.create(make(EVENT, "a.1", **event(namespace)))
        [found] = (await home.list(EVENT, namespace)).items
        assert (found["reason"], found["note"]) == ("Tested", "it is well")
        assert found["regarding"]["name"] == "a"

    async def test_logs_of_a_missing_pod_are_not_found(self, home, namespace):
        async with aclosing(home.logs(Log(namespace, "missing"))) as pieces:
            with pytest.raises(NotFoundError):
                await anext(pieces)

    async def test_pod_is_an_object_like_any_other(self, home, namespace, make):
        await home.create(make(POD, "a", spec=template()["spec"]))
        assert (await home.get(POD, namespace, "a"))["spec"]["containers"][0]["name"] == "agent"

    async def test_version_says_what_it_is(self, home):
        assert await home.version()


class TestWhatStandsOnIt:
    async def test_informer_follows(self, home, namespace, make):
        await home.create(make(CONFIG_MAP, "a", labels={"w": "1"}, data={"k": "1"}))
        informer = Informer(home, CONFIG_MAP, namespace, "w=1")
        heard, wake = [], anyio.Event()

        def subscriber(old, new):
            heard.append(((new or old)["metadata"]["name"], old is not None, new is not None))
            if len(heard) == 4:
                wake.set()

        informer.subscribe(subscriber)
        async with anyio.create_task_group() as group:
            group.start_soon(informer.run)
            with anyio.fail_after(PATIENCE):
                await informer.synced()
                await home.apply(make(CONFIG_MAP, "b", labels={"w": "1"}), "us")
                await home.apply(make(CONFIG_MAP, "b", labels={"w": "1"}, data={"k": "2"}), "us")
                await home.delete(CONFIG_MAP, namespace, "a")
                await wake.wait()
            group.cancel_scope.cancel()
        assert heard == [("a", False, True), ("b", False, True), ("b", True, True), ("a", True, False)]
        [kept] = informer.items()
        assert kept["metadata"]["name"] == "b"
        assert "managedFields" not in kept["metadata"]

    async def test_lease_goes_from_one_leader_to_the_next(self, home, namespace):
        async def lead():
            led.append((await home.get(LEASE, namespace, "lead"))["spec"]["holderIdentity"])

        led: list[str] = []
        for name in ("anna", "ben"):
            with anyio.fail_after(PATIENCE):
                await Election(home, namespace, "lead", name).run(lead)
        assert led == ["anna", "ben"]
        spec = (await home.get(LEASE, namespace, "lead"))["spec"]
        assert spec["leaseTransitions"] == 1
        assert not spec.get("holderIdentity")


def condition(type, status):
    return {
        "type": type,
        "status": status,
        "reason": "Tested",
        "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "observedGeneration": 1,
    }


def event(namespace):
    return {
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "agentctl.dev/operator",
        "reportingInstance": "operator-0",
        "action": "Reconcile",
        "reason": "Tested",
        "type": "Normal",
        "note": "it is well",
        "regarding": {
            "apiVersion": AGENT.api_version, "kind": "Agent", "namespace": namespace, "name": "a"
        },
    }  # fmt: skip
