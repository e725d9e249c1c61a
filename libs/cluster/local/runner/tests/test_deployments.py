"""Deployments: the plan as a function, and real pods."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from libs.cluster.kinds import DEPLOYMENT, POD
from libs.cluster.local.runner.deployments import HASH, plan

from .world import LIMITS, SERVE, World, deployment, is_ready, template


def a_pod(name, revision="new", ready=True, at="2026-01-01T00:00:00Z"):
    condition = {"type": "Ready", "status": str(ready)}
    metadata = {"name": name, "labels": {HASH: revision}, "creationTimestamp": at}
    return {"metadata": metadata, "status": {"phase": "Running", "conditions": [condition]}}


def names(pods):
    return [pod["metadata"]["name"] for pod in pods]


def test_scaling_down_takes_unready_pods_first_then_the_youngest():
    pods = [
        a_pod("old", at="2026-01-01T00:00:00Z"),
        a_pod("young", at="2026-01-03T00:00:00Z"),
        a_pod("sick", ready=False, at="2025-01-01T00:00:00Z"),
    ]
    assert names(plan(deployment(replicas=1), pods, "new").delete) == ["sick", "young"]


def test_a_roll_adds_the_surge_first_and_removes_old_pods_as_new_ones_are_ready():
    old = [a_pod("a", "old"), a_pod("b", "old")]
    thing = deployment(replicas=2)
    first = plan(thing, old, "new")
    assert (first.create, first.delete) == (1, [])
    second = plan(thing, [*old, a_pod("c", ready=False)], "new")
    assert (second.create, second.delete) == (0, [])
    third = plan(thing, [*old, a_pod("c")], "new")
    assert (third.create, len(third.delete)) == (1, 1)


def test_a_roll_may_remove_first_if_there_may_be_no_surge():
    thing = deployment(replicas=2, strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}})
    step = plan(thing, [a_pod("a", "old"), a_pod("b", "old")], "new")
    assert (step.create, len(step.delete)) == (1, 1)


def test_recreate_waits_until_old_pods_are_gone():
    thing = deployment(strategy={"type": "Recreate"})
    step = plan(thing, [a_pod("a", "old")], "new")
    assert (step.create, names(step.delete)) == (0, ["a"])
    stopping = a_pod("a", "old")
    stopping["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan(thing, [stopping], "new").create == 0
    assert plan(thing, [], "new").create == 1


async def test_replicas_are_made_scaled_and_reported(world: World):
    await world.apply(deployment(replicas=3))
    pods = await world.ready("a", 3)
    assert len({pod["status"]["podIP"] for pod in pods}) == 3
    owner = pods[0]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Deployment", "a", True)
    await world.apply(deployment(replicas=1))
    await world.ready("a", 1)

    async def settled():
        thing = await world.get(DEPLOYMENT, "a")
        status = thing["status"]
        return status if status["replicas"] == status["observedGeneration"] - 1 == 1 else None

    status = await world.until(settled)
    assert status["readyReplicas"] == status["updatedReplicas"] == status["availableReplicas"] == 1
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert conditions == {"Available": "True", "Progressing": "True"}


async def test_a_deleted_pod_is_replaced_and_a_deleted_deployment_takes_its_pods(world: World):
    await world.apply(deployment())
    (pod,) = await world.ready("a")
    await world.cluster.delete(POD, "default", pod["metadata"]["name"])
    await world.gone(POD, pod["metadata"]["name"])
    (other,) = await world.ready("a")
    assert other["metadata"]["uid"] != pod["metadata"]["uid"]
    await world.cluster.delete(DEPLOYMENT, "default", "a")
    await world.gone(POD, other["metadata"]["name"])
    assert world.processes() == []

    async def tidied():
        return not list((world.folder / "pods").iterdir())

    await world.until(tidied)


async def test_a_template_change_never_has_fewer_ready_pods_than_wanted(world: World):
    probe = {"httpGet": {"path": "/ready", "port": "http"}}
    more = {
        "env": [
            {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "SICK", "value": "/nowhere"},
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": probe,
    }
    await world.apply(deployment(pod=template(SERVE, **more), replicas=2))
    before = await world.ready("a", 2)
    listing = await world.cluster.list(POD, "default")
    pods, fewest = {pod["metadata"]["name"]: pod for pod in listing.items}, 2

    changed = template(SERVE, **more)
    changed["metadata"]["annotations"] = {"agentctl.dev/restartedAt": "now"}
    await world.apply(deployment(pod=changed, replicas=2))
    watched = world.cluster.watch(POD, "default", since=listing.revision)
    async with asyncio.timeout(20), aclosing(watched) as changes:  # type: ignore[type-var]
        async for change in changes:
            name = change.object["metadata"]["name"]
            pods[name] = change.object
            if change.type == "DELETED":
                del pods[name]
            live = [pod for pod in pods.values() if "deletionTimestamp" not in pod["metadata"]]
            fewest = min(fewest, sum(map(is_ready, live)))
            if not set(pods) & set(names(before)) and sum(map(is_ready, live)) == 2:
                break
    assert fewest == 2


async def test_recreate_never_runs_two(world: World):
    code = (
        "import os, pathlib, signal, sys, time\n"
        "lock = pathlib.Path(os.environ['LOCK'])\n"
        "lock.mkdir()\n"  # the second of two fails here
        "signal.signal(15, lambda *_: sys.exit(0))\n"
        "try: time.sleep(600)\n"
        "finally: time.sleep(0.2); lock.rmdir()\n"
    )
    env = [{"name": "LOCK", "value": str(world.folder / "lock-of-one")}]
    spec = {"strategy": {"type": "Recreate"}}
    await world.apply(deployment(pod=template(code, env=env), **spec))
    (pod,) = await world.ready("a")
    await world.until(lambda: asyncio.to_thread((world.folder / "lock-of-one").exists))
    changed = template(code, env=env)
    changed["metadata"]["annotations"] = {"agentctl.dev/restartedAt": "now"}
    await world.apply(deployment(pod=changed, **spec))
    await world.gone(POD, pod["metadata"]["name"])
    (other,) = await world.ready("a")
    await world.until(lambda: asyncio.to_thread((world.folder / "lock-of-one").exists))
    await world.cluster.delete(DEPLOYMENT, "default", "a")
    await world.gone(POD, other["metadata"]["name"])
    assert other["status"]["containerStatuses"][0]["restartCount"] == 0
    assert not (world.folder / "lock-of-one").exists()


async def test_there_are_never_more_pods_than_the_machine_takes(world: World):
    await world.apply(deployment(replicas=LIMITS.pods + 1))
    await world.ready("a", LIMITS.pods)

    async def refused():
        thing = await world.get(DEPLOYMENT, "a")
        return {each["type"] for each in thing["status"]["conditions"]} >= {"ReplicaFailure"}

    await world.until(refused)
    assert len(await world.pods("a")) == LIMITS.pods
