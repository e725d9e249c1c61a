"""What a plan asks of what is there; what is not ours."""

from __future__ import annotations

import pytest

from libs.cluster.kinds import DEPLOYMENT
from services.operator.plan import Action, Context, change, conflict, desired

from .manifests import (
    SETTINGS,
    agent,
    case,
    cases,
    config,
    fleet,
    lived,
    plan_of,
    plan_of_case,
    pod_of,
    pool,
    thing,
    workload_of,
)  # fmt: skip

NEW_IMAGE = Context(type(SETTINGS)("agentctl:2.0", "c:1", "i:1"))


def workload(what, *others):
    return workload_of(plan_of(what, *others))


def ended(manifest, how="Complete"):
    return lived(manifest, status={"conditions": [{"type": how, "status": "True"}]})


@pytest.mark.parametrize("name", cases())
def test_what_is_there_as_it_should_be_is_left_alone(name):
    first, _ = case(name)
    for manifest in plan_of_case(name).objects:
        assert change(first, manifest, lived(manifest)).action is Action.NONE
        assert change(first, manifest, None).action is Action.CREATE


def test_a_changed_template_is_an_update():
    before, after = workload(fleet()), workload(fleet(work={"slots": 5}))
    assert change(fleet(), after, lived(before)).action is Action.UPDATE


@pytest.mark.parametrize(
    "spoil",
    [
        lambda live: live["spec"].update(replicas=9),
        lambda live: live["spec"]["template"]["spec"]["containers"][0]["env"].pop(0),
        lambda live: live["spec"]["template"]["spec"]["containers"][0].update(image="evil"),
        lambda live: live["metadata"]["labels"].pop("agentctl.dev/agent"),
        lambda live: live["metadata"].update(ownerReferences=[]),
    ],
)
def test_what_somebody_else_changed_is_put_right(spoil):
    manifest = workload(fleet())
    live = lived(manifest)
    spoil(live)
    assert change(fleet(), manifest, live).action is Action.UPDATE


def test_what_others_add_is_theirs():
    manifest = workload(fleet())
    live = lived(manifest)
    live["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "3"
    live["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "INJECTED", "value": "1"})
    assert change(fleet(), manifest, live).action is Action.NONE


def test_what_is_being_deleted_is_made_anew():
    manifest = workload(fleet())
    live = lived(manifest)
    live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert change(fleet(), manifest, live).action is Action.RECREATE


@pytest.mark.parametrize("how", ["Complete", "Failed"])
def test_an_ended_run_is_repeated_for_a_new_trigger_or_spec_only(how):
    what = agent(runs={"trigger": "1"})
    live = ended(workload(what), how)
    upgraded = desired(what, NEW_IMAGE).objects[0]
    assert change(what, upgraded, live).action is Action.NONE
    again = agent(runs={"trigger": "2"})
    assert change(again, workload(again), live).action is Action.RECREATE
    other = agent(instruction="Do something else.", runs={"trigger": "1"})
    assert change(other, workload(other), live).action is Action.RECREATE


def test_defaults_spelt_out_are_no_change_of_the_spec():
    one, same = agent(), agent(podTemplate=None, runs=None, mcpServers=[])
    assert change(same, workload(same), ended(workload(one))).action is Action.NONE


@pytest.mark.parametrize(("ready", "action"), [(0, Action.RECREATE), (1, Action.NONE)])
def test_a_run_that_is_not_at_work_yet_is_made_anew_when_its_pool_moves(ready, action):
    what = agent(model={"pool": "models"})
    live = lived(workload(what, pool()), status={"active": 1, "ready": ready})
    moved = workload(what, pool(endpoint="https://elsewhere.example.com/v1"))
    assert change(what, moved, live).action is action


def test_a_run_that_ended_is_not_repeated_because_its_job_expired():
    what = agent(runs={"keepFor": "1h"})
    what["status"] = {"observedGeneration": 1, "lastRun": {"name": "a", "outcome": "Succeeded"}}
    assert change(what, workload(what), None).action is Action.NONE
    what["metadata"]["generation"] = 2
    assert change(what, workload(what), None).action is Action.CREATE


def test_a_job_that_goes_after_its_end_is_not_repeated():
    what = agent()
    what["status"] = {"observedGeneration": 1, "lastRun": {"name": "a", "outcome": "Failed"}}
    live = ended(workload(what), "Failed")
    live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert change(what, workload(what), live).action is Action.NONE


@pytest.mark.parametrize(("keep", "action"), [({}, Action.CREATE), ({"keepFor": "1h"}, Action.NONE)])
def test_a_run_whose_end_nobody_saw_is_repeated_unless_its_job_may_have_expired(keep, action):
    what = agent(runs=keep)
    what["status"] = {"observedGeneration": 1, "lastRun": {"name": "a", "outcome": "Running"}}
    assert change(what, workload(what), None).action is action


def test_only_pods_that_live_on_follow_the_content_they_read():
    template = {"spec": {"containers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}}
    reading = {"podTemplate": template, "image": "x", "instruction": "i"}

    def pods(what):
        return [pod_of(workload(what, config("c", level=level))) for level in "12"]

    before, after = pods(fleet(template=reading))
    assert before != after
    before, after = pods(agent(podTemplate=template))
    assert before == after


def test_a_pool_that_gets_one_more_model_rolls_nothing():
    what = fleet(template={"instruction": "i", "model": {"pool": "models"}})
    assert workload(what, pool("models", "small")) == workload(what, pool("models", "small", "other"))


def test_scaling_does_not_roll_the_pods():
    few, many = workload(fleet(replicas=1)), workload(fleet(replicas=4))
    assert (few["spec"]["replicas"], many["spec"]["replicas"]) == (1, 4)
    assert pod_of(few) == pod_of(many)


@pytest.mark.parametrize(
    ("said", "count"),
    [({}, 0), ({"scaling": {"minReplicas": 2}}, 2), ({"replicas": 7}, 7), ({"replicas": 70}, 10),
     ({"replicas": 0, "scaling": {"minReplicas": 1}}, 1)],
)  # fmt: skip
def test_a_fleet_has_as_many_as_asked_for_between_its_bounds(said, count):
    assert workload(fleet(**said))["spec"]["replicas"] == count


def test_ours_is_what_we_control():
    what = fleet()
    live = lived(workload(what))
    assert conflict(live, what) is None
    rebuilt = fleet()
    rebuilt["metadata"]["uid"] = "another"
    assert "belongs to AgentFleet f" in _conflict(live, rebuilt).message
    problem = _conflict(thing(DEPLOYMENT, "f", spec={}), what)
    assert problem.reason == "NameConflict"
    assert problem.message.startswith(
        "Deployment f is there already and was made by somebody else; delete it"
    )


def _conflict(live, what):
    problem = conflict(live, what)
    assert problem is not None
    return problem


def test_an_owner_that_is_no_controller_is_nobody():
    what = fleet()
    live = lived(workload(what))
    live["metadata"]["ownerReferences"][0]["controller"] = False
    assert conflict(live, what) is not None
