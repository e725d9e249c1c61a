"""Changes that replace a workload: never two at a time, whenever the operator dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, CRON_JOB, DEPLOYMENT, JOB, POD, Kind
from libs.cluster.local import open_local

from .world import IMAGE, NODE, Mortal, World, namespace

WORKLOADS = (DEPLOYMENT, JOB, CRON_JOB)


async def test_the_next_singleton_waits_for_the_pod_of_the_last(local: World):
    async with local.operator() as operator:
        await local.apply(local.agent("x"))
        pod = await local.pod(await local.there(DEPLOYMENT, "x"), "x")
        await local.apply(local.agent("x", "once"))

        async def going() -> bool:
            there = await local.find(DEPLOYMENT, "x")
            return there is not None and "deletionTimestamp" in there["metadata"]

        await local.until(going)
        for _ in range(3):
            await local.settle(operator, AGENT, ["x"])
        assert await local.find(JOB, "x") is None
        status = (await local.get(AGENT, "x"))["status"]
        assert status["observedGeneration"] == 1  # the second is not there yet
        await local.bury(pod["metadata"]["name"])
        await local.there(JOB, "x")
        assert await local.find(DEPLOYMENT, "x") is None


async def test_an_agent_made_anew_waits_for_the_pod_of_its_predecessor(local: World):
    async with local.operator() as operator:
        await local.apply(local.agent("x"))
        pod = await local.pod(await local.there(DEPLOYMENT, "x"), "x")
        await local.cluster.delete(AGENT, local.namespace, "x")
        await local.gone(DEPLOYMENT, "x")
        await local.apply(local.agent("x"))
        await local.settle(operator, AGENT, ["x"])
        assert await local.find(DEPLOYMENT, "x") is None
        await local.bury(pod["metadata"]["name"])
        await local.there(DEPLOYMENT, "x")


async def test_a_fleet_rolls_without_waiting_and_without_a_new_workload(local: World):
    async with local.operator():
        await local.apply(local.fleet("f"))
        deployment = await local.there(DEPLOYMENT, "f")
        await local.pod(deployment, "f", fleet="f")
        await local.apply(local.fleet("f", template={"image": "registry.test/agent:2"}))

        async def rolled() -> Object | None:
            there = await local.get(DEPLOYMENT, "f")
            image = there["spec"]["template"]["spec"]["containers"][0]["image"]
            return there if image == "registry.test/agent:2" else None

        there = await local.until(rolled)
        assert there["metadata"]["uid"] == deployment["metadata"]["uid"]
        await local.accepted(AGENT_FLEET, "f", status="True")


async def test_a_run_happens_once_for_each_trigger(local: World):
    async with local.operator() as operator:
        await local.apply(local.agent("x", "once"))
        first = await local.there(JOB, "x")
        await _complete(local, first)

        async def seen() -> bool:
            run = (await local.get(AGENT, "x"))["status"].get("lastRun") or {}
            return run.get("outcome") == "Succeeded"

        await local.until(seen)
        await local.cluster.delete(JOB, local.namespace, "x")  # as its time to live does
        for _ in range(3):
            await local.settle(operator, AGENT, ["x"])
        assert await local.find(JOB, "x") is None
        await local.apply(local.agent("x", "once", runs={"trigger": "again"}))
        second = await local.there(JOB, "x")
        assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_changed_agent_replaces_its_job(local: World):
    async with local.operator():
        await local.apply(local.agent("x", "once"))
        first = await local.there(JOB, "x")
        await _complete(local, first)
        await local.apply(local.agent("x", "once", instruction="something else"))

        async def another() -> bool:
            there = await local.find(JOB, "x")
            return there is not None and there["metadata"]["uid"] != first["metadata"]["uid"]

        await local.until(another)
        await local.accepted(AGENT, "x", status="True")
        reasons = [each["reason"] for each in await local.events()]
        assert reasons.count("Recreated") == 1


async def _complete(world: World, job: Object) -> None:
    now = "2026-01-01T00:00:00Z"
    done = {"lastProbeTime": now, "lastTransitionTime": now, "reason": "", "message": ""}
    conditions = [{"type": kind, "status": "True", **done} for kind in ("SuccessCriteriaMet", "Complete")]
    await world.report(
        job, {"succeeded": 1, "startTime": now, "completionTime": now, "conditions": conditions}
    )


# --- The operator dies between any two writes ---


async def _mode_change(world: World) -> Object:
    return await world.apply(world.agent("x", "workflow"))


async def _new_job(world: World) -> Object:
    return await world.apply(world.agent("x", "workflow", workflow={"inline": "steps: [a]"}))


async def _back(world: World) -> Object:
    return await world.apply(world.agent("x", "reactive"))


async def _front(world: World) -> Object:
    return await world.apply(world.fleet("f", coordinator={"template": {"image": IMAGE}}))


async def _no_front(world: World) -> Object:
    return await world.apply(world.fleet("f", template={"image": "registry.test/agent:2"}))


_CHANGES: list[Callable[[World], Awaitable[Object]]] = [_mode_change, _new_job, _back, _front, _no_front]


@pytest.mark.parametrize("change", range(len(_CHANGES)), ids=lambda n: _CHANGES[n].__name__.strip("_"))
async def test_dying_between_any_two_writes_changes_nothing_in_the_end(tmp_path, change: int):
    """For every number of writes after which it can die: the next operator comes to the same end."""
    expected: object = None
    for writes in range(30):
        async with open_local(tmp_path / str(writes)) as cluster:
            await cluster.create(namespace("demo"))
            world = World(cluster, "demo", tmp_path)
            mortal = Mortal(cluster, writes)
            died, end = await _live_through(world, mortal, change)
        expected = expected or end
        assert end == expected, f"after {writes} writes"
        if not died:
            assert writes > 1
            return
    raise AssertionError("it never got through")


async def _live_through(world: World, mortal: Mortal, change: int) -> tuple[bool, object]:
    """The history up to the change under a healthy operator, the change under a mortal one, and the rest
    under a healthy one again. Whether it died, and how the world is at the end."""
    timeline: list[tuple[int, str, Kind, Object]] = []
    async with anyio.create_task_group() as group:
        group.start_soon(world.controllers)
        for kind in (*WORKLOADS, POD):
            group.start_soon(_record, world, kind, timeline)
        async with world.operator() as operator:
            await world.apply(world.agent("x"))
            await world.apply(world.fleet("f"))
            await _converged(world)
            for earlier in _CHANGES[:change]:
                await earlier(world)
                await _converged(world)
        async with world.operator(mortal):
            await _CHANGES[change](world)
            await _converged(world, mortal)
        died = mortal.dead.is_set()
        async with world.operator() as operator:
            await _converged(world)
            await world.settle(operator, AGENT, ["x"])
            await world.settle(operator, AGENT_FLEET, ["f"])
        group.cancel_scope.cancel()
    _assert_never_two(timeline)
    return died, await _picture(world)


async def _record(world: World, kind: Kind, timeline: list[tuple[int, str, Kind, Object]]) -> None:
    async for change in world.cluster.watch(kind, world.namespace):
        revision = int(change.object["metadata"]["resourceVersion"])
        timeline.append((revision, change.type, kind, change.object))


async def _converged(world: World, mortal: Mortal | None = None) -> None:
    """Until both objects are as their newest generation asks for, or the operator is dead."""

    async def look() -> bool:
        if mortal is not None and mortal.dead.is_set():
            return True
        for kind, name in ((AGENT, "x"), (AGENT_FLEET, "f")):
            thing = await world.get(kind, name)
            status = thing.get("status") or {}
            if status.get("observedGeneration") != thing["metadata"]["generation"]:
                return False
        return True

    await world.until(look)


def _assert_never_two(timeline: list[tuple[int, str, Kind, Object]]) -> None:
    """When a workload of the singleton is made, no other one is there, and no pod of one."""
    alive: dict[tuple[str, str], Object] = {}
    for _, type, kind, thing in sorted(timeline, key=lambda entry: entry[0]):
        agent = (thing["metadata"].get("labels") or {}).get("agentctl.dev/agent")
        if agent != "x":
            continue
        at = kind.name, thing["metadata"]["name"]
        if type == "DELETED":
            alive.pop(at, None)
            continue
        if type == "ADDED" and kind in WORKLOADS:
            assert not alive, f"{at} is made beside {sorted(alive)}"
        alive[at] = thing


async def _picture(world: World) -> object:
    """What is there, without what differs between two runs of the same."""
    found: dict[str, Any] = {}
    for kind in WORKLOADS:
        for thing in (await world.cluster.list(kind, world.namespace)).items:
            found[f"{kind.name} {thing['metadata']['name']}"] = thing["spec"]
    for kind, name in ((AGENT, "x"), (AGENT_FLEET, "f")):
        status = (await world.get(kind, name))["status"]
        found[name] = (
            {
                each["type"]: (each["status"], each["reason"], each.get("observedGeneration"))
                for each in status["conditions"]
            },
            [(each["kind"], each["name"]) for each in status["workloads"]],
        )
    return found


def test_the_check_of_the_timeline_can_fail():
    """A second workload beside the first, and one beside a pod, are both seen."""
    labels = {"agentctl.dev/agent": "x"}

    def named(name: str) -> Object:
        return {"metadata": {"name": name, "labels": labels, "finalizers": [NODE]}}

    for first in ((DEPLOYMENT, "x"), (POD, "x-1")):
        with pytest.raises(AssertionError, match="beside"):
            _assert_never_two([(1, "ADDED", first[0], named(first[1])), (2, "ADDED", JOB, named("x"))])
    one_after_the_other = [(1, "ADDED", DEPLOYMENT), (2, "DELETED", DEPLOYMENT), (3, "ADDED", JOB)]
    _assert_never_two([(*entry, named("x")) for entry in one_after_the_other])
