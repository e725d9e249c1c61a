"""Jobs: verdicts as functions, and real pods."""

from __future__ import annotations

from datetime import timedelta

import pytest

from libs.cluster.kinds import JOB, POD
from libs.cluster.local.runner.jobs import policy_of

from .world import SLEEP, World, container, job, template


def failed_pod(code, container="agent", conditions=()):
    terminated = {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}
    statuses = [{"name": container, "state": terminated}]
    status = {"phase": "Failed", "containerStatuses": statuses, "conditions": list(conditions)}
    return {"metadata": {"name": "p"}, "status": status}


@pytest.mark.parametrize(
    ("code", "action"), [(2, "FailJob"), (5, "FailJob"), (75, "Ignore"), (1, "Count"), (9, "Count")]
)
def test_the_first_rule_that_fits_an_exit_code_counts(code, action):
    rules = [
        {"action": "FailJob", "onExitCodes": {"containerName": "other", "operator": "NotIn", "values": [99]}},
        {"action": "FailJob", "onExitCodes": {"containerName": "agent", "operator": "In", "values": [2, 5]}},
        {"action": "Count", "onExitCodes": {"operator": "In", "values": [1]}},
        {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [9]}},
    ]
    assert policy_of({"podFailurePolicy": {"rules": rules}}, failed_pod(code))[0] == action


def test_a_rule_can_look_at_conditions():
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    disrupted = failed_pod(143, conditions=[{"type": "DisruptionTarget", "status": "True"}])
    assert policy_of({"podFailurePolicy": {"rules": rules}}, disrupted)[0] == "Ignore"
    assert policy_of({"podFailurePolicy": {"rules": rules}}, failed_pod(143))[0] == "Count"


async def ended(world: World, name: str, kind: str):
    async def see():
        thing = await world.get(JOB, name)
        conditions = {each["type"]: each for each in (thing or {}).get("status", {}).get("conditions", ())}
        return (thing["status"], conditions[kind]) if kind in conditions else None

    return await world.until(see)


async def test_a_job_whose_pod_succeeds_is_complete(world: World):
    await world.apply(job("j", template("print('done')")))
    status, condition = await ended(world, "j", "Complete")
    assert (status["succeeded"], status["failed"], status["active"]) == (1, 0, 0)
    assert status["startTime"] <= status["completionTime"]
    assert condition["reason"] == "CompletionsReached"
    (pod,) = await world.pods("j")
    assert pod["status"]["phase"] == "Succeeded"
    assert world.log(pod) == "done\n"
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")


async def test_a_job_fails_after_its_backoff_limit(world: World):
    thing = job("j", template("raise SystemExit(7)"))
    thing["spec"]["backoffLimit"] = 1
    await world.apply(thing)
    status, condition = await ended(world, "j", "Failed")
    assert (status["failed"], condition["reason"]) == (2, "BackoffLimitExceeded")
    codes = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in await world.pods("j")]
    assert [(code["exitCode"], code["reason"]) for code in codes] == [(7, "Error")] * 2


async def test_an_exit_code_can_fail_the_job_at_once(world: World):
    thing = job("j", template("raise SystemExit(5)"))
    codes = {"containerName": "agent", "operator": "In", "values": [5]}
    thing["spec"]["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
    await world.apply(thing)
    status, condition = await ended(world, "j", "Failed")
    assert (status["failed"], condition["reason"]) == (1, "PodFailurePolicy")
    assert "container agent" in condition["message"]
    assert "exit code 5" in condition["message"]


async def test_an_ignored_exit_code_is_tried_again_and_not_counted(world: World):
    marker = world.folder / "second"
    path = f"import pathlib, sys\np = pathlib.Path({str(marker)!r})\n"
    code = path + "sys.exit(0 if p.exists() else p.touch() or 75)"
    thing = job("j", template(code))
    rule = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}}
    thing["spec"] |= {"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}}
    await world.apply(thing)
    status, _ = await ended(world, "j", "Complete")
    assert (status["succeeded"], status["failed"]) == (1, 0)
    assert len(await world.pods("j")) == 2


async def test_a_job_that_is_active_too_long_fails_and_nothing_of_it_runs(world: World):
    thing = job("j", template(SLEEP))
    thing["spec"]["activeDeadlineSeconds"] = 60
    await world.apply(thing)
    await world.ready("j")
    world.clock.ahead += timedelta(seconds=61)
    world.runner.touch(JOB, "default", "j")
    _, condition = await ended(world, "j", "Failed")
    assert condition["reason"] == "DeadlineExceeded"
    assert await world.pods("j") == []
    assert world.processes() == []


async def test_the_runner_looks_by_itself_when_a_deadline_is_over(world: World):
    thing = job("j", template(SLEEP))
    thing["spec"]["activeDeadlineSeconds"] = 1
    await world.apply(thing)
    _, condition = await ended(world, "j", "Failed")
    assert condition["reason"] == "DeadlineExceeded"


async def test_a_suspended_job_stops_and_goes_on(world: World):
    thing = job("j", template(SLEEP))
    await world.apply(thing)
    (pod,) = await world.ready("j")
    thing["spec"]["suspend"] = True
    await world.apply(thing)
    await world.gone(POD, pod["metadata"]["name"])
    status, condition = await ended(world, "j", "Suspended")
    assert (condition["status"], "startTime" in status) == ("True", False)
    thing["spec"]["suspend"] = False
    await world.apply(thing)
    await world.ready("j")


async def test_a_finished_job_goes_after_its_ttl(world: World):
    thing = job("j", template("pass"))
    thing["spec"]["ttlSecondsAfterFinished"] = 100
    await world.apply(thing)
    await ended(world, "j", "Complete")
    world.clock.ahead += timedelta(seconds=101)
    world.runner.touch(JOB, "default", "j")
    await world.gone(JOB, "j")
    assert await world.pods() == []


async def test_every_pod_of_a_job_knows_the_jobs_uid(world: World):
    field = {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}
    env = [{"name": "RUN", "valueFrom": {"fieldRef": field}}]
    thing = job("j", template("import os\nprint(os.environ['RUN'])\nraise SystemExit(1)", env=env))
    thing["spec"]["backoffLimit"] = 1
    await world.apply(thing)
    await ended(world, "j", "Failed")
    uid = (await world.get(JOB, "j"))["metadata"]["uid"]
    assert [world.log(pod) for pod in await world.pods("j")] == [f"{uid}\n"] * 2


async def test_what_a_sidecar_returns_is_not_how_the_job_ended(world: World):
    side = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(5))\nsignal.pause()"
    rule = {"action": "FailJob", "onExitCodes": {"containerName": "agent", "operator": "In", "values": [5]}}
    pod = template("pass", spec={"initContainers": [container(side, "side", restartPolicy="Always")]})
    await world.apply(job("j", pod, podFailurePolicy={"rules": [rule]}))
    status, _ = await ended(world, "j", "Complete")
    assert (status["succeeded"], status["failed"]) == (1, 0)
