"""The runner as a whole: its end, and its start after an end that was not one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
from dataclasses import replace

import anyio
import psutil  # type: ignore[import-untyped]
import pytest

from libs.cluster.kinds import CONFIG_MAP, DEPLOYMENT, JOB, POD
from libs.cluster.local import LocalCluster, open_local
from libs.cluster.local.runner import Runner
from libs.cluster.local.runner.process import end_left_over

from .world import (
    LIMITS,
    PYTHON,
    SLEEP,
    STUBBORN,
    TIMEOUT,
    Clock,
    World,
    container,
    deployment,
    end_all,
    is_ready,
    job,
    processes_of,
    template,
    workload,
)  # fmt: skip

PLANE = textwrap.dedent("""
    import os, sys, uvloop
    from pathlib import Path
    from libs.cluster.local import open_local
    from libs.cluster.local.runner import Runner

    async def main():
        folder = Path(sys.argv[1])
        environment = {"PATH": os.environ["PATH"], "WORLD": str(folder)}
        async with open_local(folder) as cluster:
            await Runner(cluster, folder, commands={"python": sys.argv[2:]}, environment=environment).run()

    uvloop.run(main())
""")


async def test_cancelling_stops_everything_and_says_so(world: World):
    await world.apply(deployment(replicas=3))
    await world.apply(job("j", template(SLEEP)))
    pods = [*await world.ready("a", 3), *await world.ready("j")]
    assert len(world.processes()) == 4
    world.running.cancel()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.wait([world.running])
    assert await asyncio.to_thread(end_all, world.folder) == []
    for pod in pods:
        status = (await world.cluster.get(POD, "default", pod["metadata"]["name"]))["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "Terminated")


async def test_a_cancelled_scope_stops_everything_gracefully_too(tmp_path):
    marker = tmp_path / "tidied"
    code = (
        "import pathlib, signal, sys, time\n"
        f"def end(*_):\n time.sleep(0.2)\n pathlib.Path({str(marker)!r}).touch()\n sys.exit(0)\n"
        "signal.signal(15, end)\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    environment = {"PATH": os.environ["PATH"], "WORLD": str(tmp_path)}
    async with open_local(tmp_path / "home") as cluster:
        runner = Runner(cluster, tmp_path / "home", commands={"python": PYTHON}, environment=environment)
        try:
            with anyio.fail_after(TIMEOUT):
                async with anyio.create_task_group() as group:
                    group.start_soon(runner.run)
                    await cluster.apply(deployment(pod=template(code)), "test")
                    while not any(path.read_text() for path in tmp_path.glob("home/pods/*/agent.log")):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    group.cancel_scope.cancel()
            assert marker.exists()
        finally:
            left = await asyncio.to_thread(end_all, tmp_path)
        assert left == []


async def test_a_second_request_to_stop_kills(world: World):
    pod = template(STUBBORN, spec={"terminationGracePeriodSeconds": 600})
    await world.apply(deployment(pod=pod))
    (running,) = await world.ready("a")
    await world.said(running, "deaf")
    world.running.cancel()
    await world.pod(running["metadata"]["name"], lambda pod: not is_ready(pod))
    world.runner.hurry()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.wait([world.running])
    assert world.processes() == []


@pytest.mark.parametrize("limits", [replace(LIMITS, stop=1)], ids=["a second"])
async def test_a_long_grace_does_not_keep_the_runner(world: World):
    pod = template(STUBBORN, spec={"terminationGracePeriodSeconds": 600})
    await world.apply(deployment(pod=pod))
    (running,) = await world.ready("a")
    await world.said(running, "deaf")
    world.running.cancel()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.wait([world.running])


async def test_a_killed_job_is_tried_again_and_not_counted_if_its_policy_says_so(killed_plane):
    folder, _ = killed_plane
    environment = {"PATH": os.environ["PATH"], "WORLD": str(folder)}
    async with open_local(folder) as cluster:
        thing = await cluster.get(JOB, "default", "j")
        runner = Runner(cluster, folder, commands={"python": PYTHON}, environment=environment)
        running = asyncio.create_task(runner.run())
        world = World(cluster, folder, Clock(), runner, running)

        async def again():
            pods = await world.pods("j")
            return len(pods) == 2 and any(map(is_ready, pods))

        await world.until(again)
        status = (await cluster.get(JOB, "default", "j"))["status"]
        assert (status["failed"], thing["status"].get("failed", 0)) == (0, 0)
        running.cancel()
        await asyncio.wait([running])


async def test_the_next_run_has_new_pods_of_the_same_workloads(world: World):
    await world.apply(deployment())
    (before,) = await world.ready("a")
    world.running.cancel()
    await asyncio.wait([world.running])
    environment = {"PATH": os.environ["PATH"], "WORLD": str(world.folder)}
    again = Runner(world.cluster, world.folder, commands={"python": PYTHON}, environment=environment)
    world.running = asyncio.create_task(again.run())
    await world.gone(POD, before["metadata"]["name"])
    (after,) = await world.ready("a")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    world.running.cancel()
    await asyncio.wait([world.running])


@pytest.fixture
async def killed_plane(tmp_path):
    """A folder whose plane was killed while it ran a Deployment and a Job, and the pids of its children."""
    async with open_local(tmp_path) as cluster:
        child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"
        volumes = {"volumes": [{"name": "v", "emptyDir": {}}]}
        await cluster.apply(deployment(pod=template(child, spec=volumes)), "test")
        once = job("j", template(SLEEP))
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        once["spec"] |= {"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}}
        await cluster.apply(once, "test")
    plane = await asyncio.create_subprocess_exec(sys.executable, "-c", PLANE, str(tmp_path), *PYTHON)
    try:
        async with asyncio.timeout(TIMEOUT):
            while len(processes_of(tmp_path)) < 3 or len(list(tmp_path.glob("pods/*/*.process"))) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        records = [json.loads(path.read_text()) for path in tmp_path.glob("pods/*/*.process")]
        plane.kill()
        await plane.wait()
        yield tmp_path, [record["pid"] for record in records]
    finally:
        if plane.returncode is None:
            plane.kill()
            await plane.wait()
        end_all(tmp_path)


async def test_children_die_with_a_killed_plane(killed_plane):
    _, pids = killed_plane
    async with asyncio.timeout(TIMEOUT):
        while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_sweep_ends_what_is_left_of_a_killed_plane(killed_plane):
    folder, _ = killed_plane
    assert processes_of(folder) != []  # the grandchild is not told
    assert len(list(folder.glob("pods/*/volumes"))) == 1
    (folder / "pods" / "of-a-pod-that-is-no-more").mkdir()
    async with open_local(folder) as cluster:
        runner = Runner(cluster, folder, commands={}, environment={})
        await runner.sweep()
        assert processes_of(folder) == []
        assert list(folder.glob("pods/*/*.process")) == list(folder.glob("pods/*/volumes")) == []
        uids = {pod["metadata"]["uid"] for pod in (await cluster.list(POD)).items}
        assert {path.name for path in folder.glob("pods/*")} == uids
        for pod in (await cluster.list(POD)).items:
            status = pod["status"]
            assert (status["phase"], status["reason"]) == ("Failed", "Terminated")
            assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_a_process_that_only_has_the_pid_of_ours_is_left_alone(tmp_path):
    other = psutil.Popen([*PYTHON, SLEEP], start_new_session=True)
    try:
        record = tmp_path / "agent.process"
        record.write_text(json.dumps({"pid": other.pid, "started": "earlier", "host": "p"}))
        assert end_left_over(record, list(psutil.process_iter())) == 0
        assert other.poll() is None
        assert not record.exists()
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()


class Poisoned(LocalCluster):
    """A home whose ConfigMap `poison` is a bug to read, and whose Deployment `poison` is one."""

    async def get(self, kind, namespace, name):
        if name == "poison" and kind in (CONFIG_MAP, DEPLOYMENT):
            raise RuntimeError("a bug")
        return await super().get(kind, namespace, name)


@pytest.fixture
async def poisoned(tmp_path):
    async with open_local(tmp_path) as cluster:
        cluster.__class__ = Poisoned
        environment = {"PATH": os.environ["PATH"], "WORLD": str(tmp_path)}
        runner = Runner(
            cluster, tmp_path, commands={"python": PYTHON}, environment=environment, limits=LIMITS
        )
        running = asyncio.create_task(runner.run())
        yield World(cluster, tmp_path, Clock(), runner, running)
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert await asyncio.to_thread(end_all, tmp_path) == []


@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_a_bug_ends_its_pod_and_no_other(poisoned: World, policy, caplog):
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "poison", "key": "k"}}}]
    spec = {"containers": [container(SLEEP), container(SLEEP, "bad", env=env)], "restartPolicy": policy}
    await poisoned.apply(workload("Pod", "p", spec))

    def told(pod):
        status = pod.get("status", {})
        waiting = [each["state"].get("waiting", {}) for each in status.get("containerStatuses", ())]
        return "RunnerError: RuntimeError: a bug" in [
            f"{each.get('reason')}: {each.get('message')}" for each in [status, *waiting]
        ]

    sick = await poisoned.pod("p", told)
    assert sick["status"]["phase"] == ("Failed" if policy == "Never" else "Pending")
    assert [record.exc_info for record in caplog.records if "a bug ended it" in record.message]
    assert poisoned.processes() == []
    await poisoned.apply(deployment())
    await poisoned.ready("a")
    await poisoned.cluster.delete(POD, "default", "p")
    await poisoned.gone(POD, "p")


async def test_a_bug_in_the_pass_of_a_workload_stops_no_other(poisoned: World, caplog):
    await poisoned.apply(deployment("poison"))
    await poisoned.apply(deployment())
    await poisoned.ready("a")
    assert [record.exc_info for record in caplog.records if "a bug in its pass" in record.message]
