"""A fleet of mode shard, and how its queue comes to be divided otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from libs.cluster.kinds import (
    DEPLOYMENT,
    POD_DISRUPTION_BUDGET,
    SCALED_OBJECT,
    SERVICE,
    STATEFUL_SET,
)
from services.operator.plan import Says, Shards

from .manifests import agent, fleet, one_of, plan_of, pod_of, pool
from .test_plan_scaling import live_workers

KEPT = {(DEPLOYMENT, "f"), (STATEFUL_SET, "f"), (SCALED_OBJECT, "f")}
CLAIMING = live_workers(Says.SCALER, 4)


def sharded(count=3, **spec):
    return fleet(replicas=count, scaling={"mode": "shard"}, **spec)


SHARDED = one_of(plan_of(sharded(3), shards=Shards(3, 7)), STATEFUL_SET)


def kinds(plan):
    return [each["kind"] for each in plan.objects]


def env_in(plan):
    pod = pod_of(one_of(plan, STATEFUL_SET))
    return {
        each["name"]: each.get("value", each.get("valueFrom")) for each in pod["spec"]["containers"][0]["env"]
    }


@pytest.mark.parametrize(
    ("what", "known", "alive", "live", "runs", "keeps", "reshards", "waits"),
    [
        # mode shard
        (sharded(3), Shards(3, 7), 0, None, "StatefulSet", set(), False, None),
        (sharded(3), Shards(3, 7), 3, None, "StatefulSet", set(), False, None),
        (sharded(5), Shards(3, 7), 3, None, "", set(), False, "Resharding"),
        (sharded(5), Shards(3, 7), 1, None, "", set(), False, "Resharding"),
        (sharded(5), Shards(3, 7), 0, None, "", set(), True, "Resharding"),
        (sharded(5), Shards(5, 8), 0, None, "StatefulSet", set(), False, None),
        (sharded(3), Shards(0, 0), 0, None, "", set(), True, "Resharding"),
        (sharded(3), None, 0, None, "", KEPT, False, "ShardsUnknown"),
        (sharded(3), None, 3, None, "", KEPT, False, "ShardsUnknown"),
        # from mode claim
        (sharded(3), None, 4, CLAIMING, "", KEPT, False, "ShardsUnknown"),
        (sharded(3), Shards(0, 0), 4, CLAIMING, "", set(), False, "Resharding"),
        (sharded(3), Shards(0, 0), 0, CLAIMING, "", set(), False, "Resharding"),
        # back to mode claim
        (fleet(), None, 3, SHARDED, "", KEPT, False, "ShardsUnknown"),
        (fleet(), Shards(3, 7), 3, None, "", set(), False, "Resharding"),
        (fleet(), Shards(3, 7), 0, None, "", set(), True, "Resharding"),
        (fleet(), Shards(0, 8), 0, None, "Deployment", set(), False, None),
        # mode claim has nothing to wait for
        (fleet(), None, 4, CLAIMING, "Deployment", set(), False, None),
        (fleet(), Shards(0, 0), 4, CLAIMING, "Deployment", set(), False, None),
    ],
)  # fmt: skip
def test_workers_end_before_their_queue_is_divided_anew(
    what, known, alive, live, runs, keeps, reshards, waits
):
    pods = [f"f-{number}" for number in range(alive)]
    plan = plan_of(what, scales=True, shards=known, workers_alive=pods, workers=live)
    assert plan.problems == ()
    assert [kind for kind in kinds(plan) if kind in ("Deployment", "StatefulSet")] == ([runs] if runs else [])
    assert set(plan.keeps) == keeps
    assert plan.queue is not None
    assert plan.queue.reshards is reshards
    assert (plan.waits.reason if plan.waits else None) == waits


def test_what_it_waits_for_is_said():
    there: list[dict[str, Any]] = [
        {"workers_alive": ["f-1", "f-0"]},
        {"workers_alive": ["f-3", "f-2", "f-1", "f-0"], "queue_wait": "2 items are held"},
        {"workers": CLAIMING},
        {"queue_wait": "2 items are held"},
        {},
    ]
    waits = [plan_of(sharded(5), shards=Shards(1, 7), **more).waits for more in there]
    assert [wait.message for wait in waits if wait] == [
        "queue f goes from 1 shard to 5 shards: its agents end first, 2 are left: f-0, f-1",
        "queue f goes from 1 shard to 5 shards: its agents end first, 4 are left: f-0, f-1, f-2, …",
        "queue f goes from 1 shard to 5 shards: its agents end first",
        "queue f goes from 1 shard to 5 shards: 2 items are held",
        "queue f goes from 1 shard to 5 shards: coordination has to do it",
    ]


@pytest.mark.parametrize("what", [sharded(3), fleet()])
def test_a_fleet_whose_queue_is_anothers_has_no_workers_and_says_whose(what):
    plan = plan_of(what, queue_owner="g", workers=CLAIMING, workers_alive=["f-1"])
    assert not {"Deployment", "StatefulSet"} & set(kinds(plan))
    assert plan.keeps == ()
    assert plan.waits is not None
    assert plan.waits.reason == "QueueRefused"
    assert plan.waits.message == "queue f: fleet g has it, and shards are not shared"
    assert plan.queue is not None
    assert not plan.queue.reshards


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({"scaling": {"mode": "shard"}}, 1),
        ({"scaling": {"mode": "shard", "minReplicas": 4}}, 4),
        ({"replicas": 6, "scaling": {"mode": "shard"}}, 6),
        ({"replicas": 6, "scaling": {"mode": "claim"}}, 0),
        ({}, 0),
    ],
)
def test_a_fleet_wants_so_many_shards(spec, count):
    plan = plan_of(fleet(**spec), shards=Shards(count, 2))
    assert plan.queue is not None
    assert plan.queue.shards == count
    if count:
        assert one_of(plan, STATEFUL_SET)["spec"]["replicas"] == count


def test_each_pod_knows_its_shard_and_the_division_that_it_is_of():
    env = env_in(plan_of(sharded(3), shards=Shards(3, 7)))
    assert env["AGENT_SHARD_INDEX"] == {
        "fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
    }
    assert (env["AGENT_SHARD_COUNT"], env["AGENT_SHARD_EPOCH"]) == ("3", "7")


def test_the_bridge_of_a_foreign_agent_knows_it():
    part = {
        "image": "example.com/agentd:1.4.0",
        "contract": "agentd-1",
        "instruction": "Work.",
        "model": {"pool": "models"},
    }
    plan = plan_of(sharded(3, template=part), pool(), shards=Shards(3, 7))
    spec = pod_of(one_of(plan, STATEFUL_SET))["spec"]
    told, theirs = (
        {each["name"] for each in spec[kind][0]["env"]} for kind in ("initContainers", "containers")
    )
    names = {"AGENT_SHARD_INDEX", "AGENT_SHARD_COUNT", "AGENT_SHARD_EPOCH"}
    assert names <= told
    assert not names & theirs


def test_no_other_pod_is_told_of_shards():
    plans = [plan_of(fleet(), shards=Shards(0, 7)), plan_of(agent())]
    assert all("AGENT_SHARD" not in str(plan.objects) for plan in plans)


def test_a_new_epoch_makes_the_pods_anew():
    pods = [pod_of(one_of(plan_of(sharded(3), shards=Shards(3, epoch)), STATEFUL_SET)) for epoch in (7, 9)]
    assert pods[0] != pods[1]


def test_the_service_is_the_stateful_sets_and_has_the_workers_only():
    plan = plan_of(sharded(3, coordinator={"template": {"image": "x"}}), shards=Shards(3, 7))
    assert kinds(plan) == ["Service", "StatefulSet", "PodDisruptionBudget", "Deployment"]
    service, workers = one_of(plan, SERVICE), one_of(plan, STATEFUL_SET)
    assert (service["metadata"]["name"], workers["spec"]["serviceName"]) == ("f", "f")
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["spec"]["selector"] == workers["spec"]["selector"]["matchLabels"]
    front = pod_of(one_of(plan, DEPLOYMENT))["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= front.items()


def test_demand_does_not_change_shards():
    assert SCALED_OBJECT.name not in kinds(plan_of(sharded(3), scales=True, shards=Shards(3, 7)))


@pytest.mark.parametrize("known", [None, Shards(2, 7)])
def test_all_but_the_workers_is_there_meanwhile(known):
    plan = plan_of(sharded(3, coordinator={"template": {"image": "x"}}), scales=True, shards=known)
    assert kinds(plan) == ["Service", "PodDisruptionBudget", "Deployment"]
    assert one_of(plan, DEPLOYMENT)["metadata"]["name"] == "f-coordinator"
    assert one_of(plan, POD_DISRUPTION_BUDGET)
