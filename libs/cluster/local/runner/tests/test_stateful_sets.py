"""StatefulSets: the plan as a function, and real pods."""

from __future__ import annotations

from libs.cluster.kinds import POD, STATEFUL_SET
from libs.cluster.local.runner.stateful_sets import REVISION, plan

from .world import World, template, workload


def stateful(replicas, pod=None, **more):
    spec = {"selector": {"matchLabels": {"app": "a"}}, "serviceName": "s", "replicas": replicas}
    return workload("StatefulSet", "s", {**spec, "template": pod or template(), **more})


def a_pod(ordinal, ready=True, revision="new", deleted=False):
    metadata = {"name": f"s-{ordinal}", "labels": {REVISION: revision}}
    metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": metadata, "status": status}


def test_each_pod_waits_for_those_before_it():
    assert plan(stateful(3), {}, "new").create == [0]
    assert plan(stateful(3), {0: a_pod(0, ready=False)}, "new").create == []
    assert plan(stateful(3), {0: a_pod(0)}, "new").create == [1]
    assert plan(stateful(3, podManagementPolicy="Parallel"), {}, "new").create == [0, 1, 2]


def test_the_last_pod_goes_first_one_at_a_time():
    pods = {each: a_pod(each) for each in range(3)}
    assert plan(stateful(1), pods, "new").delete == [pods[2]]
    pods[2] = a_pod(2, deleted=True)
    assert plan(stateful(1), pods, "new").delete == []


def test_a_template_change_replaces_the_last_pod_while_the_others_are_ready():
    pods = {each: a_pod(each, revision="old") for each in range(2)}
    assert plan(stateful(2), pods, "new").delete == [pods[1]]
    half = {0: a_pod(0, revision="old"), 1: a_pod(1, ready=False)}
    assert plan(stateful(2), half, "new").delete == []


def test_an_old_pod_that_is_never_ready_does_not_stop_its_own_repair():
    pods = {0: a_pod(0, ready=False, revision="old")}
    assert plan(stateful(2), pods, "new").delete == [pods[0]]


async def test_pods_have_their_ordinals_and_are_rolled(world: World):
    await world.apply(stateful(2))
    before = await world.ready("s", 2)
    assert sorted(pod["metadata"]["name"] for pod in before) == ["s-0", "s-1"]
    changed = template()
    changed["metadata"]["annotations"] = {"agentctl.dev/restartedAt": "now"}
    await world.apply(stateful(2, changed))
    old = {pod["metadata"]["uid"] for pod in before}

    async def rolled():
        status = (await world.get(STATEFUL_SET, "s"))["status"]
        pods = await world.pods("s")
        return status["readyReplicas"] == 2 and not old & {pod["metadata"]["uid"] for pod in pods}

    await world.until(rolled)
    await world.apply(stateful(1, changed))
    await world.gone(POD, "s-1")
    assert [pod["metadata"]["name"] for pod in await world.pods("s")] == ["s-0"]
