"""How many workers a fleet of mode claim has, who says so, and what KEDA is told."""

from __future__ import annotations

import pytest

from libs.cluster.kinds import DEPLOYMENT, SCALED_OBJECT
from services.operator.plan import REPLICAS, Action, Says, certificate_in, change, counted, said_by

from .manifests import fleet, lived, one_of, plan_of

BOUNDS = {"minReplicas": 2, "maxReplicas": 10}


def live_workers(by, replicas):
    """Live workers, so many, of which the annotation says `by`; None: it is not there."""
    workers = lived(one_of(plan_of(fleet(scaling=BOUNDS), scales=True), DEPLOYMENT))
    workers = counted(workers, replicas, by or Says.OPERATOR)
    if by is None:
        del workers["metadata"]["annotations"][REPLICAS]
    return workers


def workers_in(plan):
    """Their number in the manifest of the Deployment, and who says it."""
    workers = one_of(plan, DEPLOYMENT)
    return workers["spec"].get("replicas"), workers["metadata"]["annotations"][REPLICAS]


def has_scaled_object(plan):
    return SCALED_OBJECT.name in [each["kind"] for each in plan.objects]


OPERATOR, SCALER, HELD = Says.OPERATOR, Says.SCALER, Says.HELD


@pytest.mark.parametrize(
    ("asked", "scales", "live", "expected", "by", "scaled_object"),
    [
        # a number by hand
        (5, False, None, 5, "operator", False),
        (5, True, None, 5, "operator", False),
        (5, True, (SCALER, 9), 5, "operator", False),
        (5, False, (HELD, 9), 5, "operator", False),
        (50, True, None, 10, "operator", False),
        (0, True, None, 2, "operator", False),
        # by demand: nothing is said, whatever there is
        (None, True, None, None, "scaler", True),
        (None, True, (OPERATOR, 5), None, "scaler", True),
        (None, True, (SCALER, 0), None, "scaler", True),
        (None, True, (HELD, 7), None, "scaler", True),
        # nothing scales here
        (None, False, None, 2, "operator", False),
        (None, False, (OPERATOR, 5), 2, "operator", False),
        (None, False, (None, 5), 2, "operator", False),
        # the scaler has gone: what runs stays
        (None, False, (SCALER, 7), 7, "held", False),
        (None, False, (SCALER, 0), 2, "held", False),
        (None, False, (HELD, 7), 7, "held", False),
        (None, False, (HELD, 12), 10, "held", False),
    ],
)  # fmt: skip
def test_who_says_how_many_workers_there_are(asked, scales, live, expected, by, scaled_object):
    said = {} if asked is None else {"replicas": asked}
    workers = live_workers(*live) if live else None
    plan = plan_of(fleet(scaling=BOUNDS, **said), scales=scales, workers=workers)
    assert workers_in(plan) == (expected, by)
    assert has_scaled_object(plan) is scaled_object


@pytest.mark.parametrize("by", [OPERATOR, HELD])
def test_a_fleet_comes_under_its_scaler_by_an_update(by):
    what = fleet(scaling=BOUNDS)
    wanted = one_of(plan_of(what, scales=True), DEPLOYMENT)
    assert change(what, wanted, live_workers(by, 5)).action is Action.UPDATE


def test_what_the_scaler_does_is_never_put_right():
    what = fleet(scaling=BOUNDS)
    wanted = one_of(plan_of(what, scales=True), DEPLOYMENT)
    for replicas in (0, 1, 9):
        assert change(what, wanted, live_workers(SCALER, replicas)).action is Action.NONE


def test_what_is_held_is_as_it_should_be_when_a_person_scales_it():
    what = fleet(scaling=BOUNDS)
    for replicas in (2, 7, 10):
        live = live_workers(HELD, replicas)
        wanted = one_of(plan_of(what, workers=live), DEPLOYMENT)
        live["metadata"]["annotations"] |= {
            key: value for key, value in wanted["metadata"]["annotations"].items() if key != REPLICAS
        }
        assert change(what, wanted, live).action is Action.NONE


def test_what_is_held_is_one_manifest_whatever_runs_but_for_the_number():
    held = [
        one_of(plan_of(fleet(scaling=BOUNDS), workers=live_workers(HELD, count)), DEPLOYMENT)
        for count in (3, 8)
    ]
    assert held[0] != held[1]
    assert counted(held[0], 8, Says.HELD) == held[1]


def test_a_scaler_that_goes_is_an_update_that_says_what_runs():
    what = fleet(scaling=BOUNDS)
    live = live_workers(SCALER, 7)
    wanted = one_of(plan_of(what, workers=live), DEPLOYMENT)
    assert change(what, wanted, live).action is Action.UPDATE
    assert wanted["spec"]["replicas"] == live["spec"]["replicas"]


def test_before_it_is_handed_over_a_deployment_has_the_operators_number():
    plan = plan_of(fleet(scaling=BOUNDS), scales=True)
    wanted = one_of(plan, DEPLOYMENT)
    first = counted(wanted, 2)
    assert (first["spec"]["replicas"], said_by(first)) == (2, "operator")
    assert ("replicas" in wanted["spec"], said_by(wanted)) == (False, "scaler")
    assert change(fleet(scaling=BOUNDS), wanted, lived(first)).action is Action.UPDATE


def scaled_object(**spec):
    return one_of(plan_of(fleet(**spec), scales=True), SCALED_OBJECT)["spec"]


def test_keda_is_told_the_bounds_and_the_cooldown():
    said = scaled_object(scaling={"minReplicas": 1, "maxReplicas": 30, "cooldown": "2m"})
    trigger, behavior = said.pop("triggers")[0], said.pop("advanced")
    assert said == {
        "scaleTargetRef": {"name": "f"},
        "minReplicaCount": 1,
        "maxReplicaCount": 30,
        "pollingInterval": 30,
        "cooldownPeriod": 120,
        "initialCooldownPeriod": 120,
    }
    assert behavior["horizontalPodAutoscalerConfig"]["behavior"] == {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": 30, "periodSeconds": 15}],
        },
        "scaleDown": {"stabilizationWindowSeconds": 120},
    }
    assert (trigger["type"], trigger["authenticationRef"]) == (
        "external-push",
        {"name": "agentctl-scaler", "kind": "ClusterTriggerAuthentication"},
    )


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        ({}, {"target": "4"}),
        ({"work": {"slots": 9}}, {"target": "9"}),
        ({"work": {"slots": 9}, "scaling": {"target": 50}}, {"target": "50"}),
        ({"work": {"queue": "f"}}, {"target": "4"}),
        ({"work": {"queue": "jobs"}}, {"target": "4", "queue": "jobs"}),
        ({"scaling": {"targetAge": "1m30s"}}, {"target": "4", "targetAge": "90s"}),
    ],
)
def test_the_trigger_names_the_scaler_the_target_and_no_more_than_is_needed(spec, more):
    (trigger,) = scaled_object(**spec)["triggers"]
    assert trigger["metadata"] == {"scalerAddress": "scaler.agentctl-system.svc:7417", **more}


def test_the_trigger_names_kedas_certificate_so_that_another_one_is_an_update():
    what = fleet(scaling=BOUNDS)
    first, second = (
        one_of(plan_of(what, scales=True, scaler_certificate=each), SCALED_OBJECT) for each in ("a1", "b2")
    )
    assert certificate_in(first) == first["spec"]["triggers"][0]["metadata"]["certificate"] == "a1"
    assert change(what, second, lived(first)).action is Action.UPDATE
    assert change(what, first, lived(first)).action is Action.NONE
    assert certificate_in(None) == certificate_in({"metadata": {}}) == ""


def test_there_is_a_fallback_only_where_one_is_asked_for():
    assert "fallback" not in scaled_object()
    said = scaled_object(scaling={"fallbackReplicas": 3})
    assert said["fallback"] == {
        "failureThreshold": 3,
        "replicas": 3,
        "behavior": "currentReplicasIfHigher",
    }


@pytest.mark.parametrize(
    ("live", "expected", "by"), [(None, 2, "operator"), ((SCALER, 7), 7, "held"), ((HELD, 7), 7, "held")]
)
def test_before_keda_has_its_certificate_a_fleet_is_as_if_nothing_scaled(live, expected, by):
    workers = live_workers(*live) if live else None
    plan = plan_of(fleet(scaling=BOUNDS), scales=True, awaits_certificate=True, workers=workers)
    assert workers_in(plan) == (expected, by)
    assert not has_scaled_object(plan)
