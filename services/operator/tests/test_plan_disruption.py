"""What an agent that has to go is given: time, and company that stays."""

from __future__ import annotations

from typing import Any

import pytest

from libs.cluster.kinds import POD_DISRUPTION_BUDGET
from services.operator.plan import Shards
from services.operator.plan.duration import seconds

from .manifests import agent, fleet, one_of, plan_of, pod_of, pool, workload_of

FOREIGN = {
    "image": "example.com/agentd:1.4.0",
    "contract": "agentd-1",
    "instruction": "Work.",
    "model": {"pool": "models"},
}


def worker(**spec):
    return pod_of(workload_of(plan_of(fleet(**spec), pool(), shards=Shards(0, 0))))["spec"]


def drain_in(container):
    return {each["name"]: each.get("value") for each in container["env"]}.get("AGENT_DRAIN_TIMEOUT")


@pytest.mark.parametrize(
    ("drain", "own", "told", "grace"),
    [(None, None, None, 35), ("90s", None, "90s", 100), ("1h30m", None, "5400s", 5410),
     (None, 600, None, 600), ("90s", 600, "90s", 600)],
)  # fmt: skip
def test_an_agent_has_its_drain_and_ten_seconds_more(drain, own, told, grace):
    work = {"drain": drain} if drain else {}
    template: dict[str, Any] = {"image": "x", "instruction": "i"}
    if own:
        template["podTemplate"] = {"spec": {"terminationGracePeriodSeconds": own}}
    pod = worker(work=work, template=template)
    assert drain_in(pod["containers"][0]) == told
    assert pod["terminationGracePeriodSeconds"] == grace
    assert "lifecycle" not in pod["containers"][0]


@pytest.mark.parametrize(
    ("drain", "hours"), [(None, 1), ("12m", 1), ("1h", 5), ("6h", 30), ("10h", 34), ("24h", 48)]
)
def test_a_token_is_good_for_the_whole_drain_whenever_that_begins(drain, hours):
    """Kubelets renew it at 80 % of its life, or after a day, but not while the pod drains."""
    (token,) = (
        source["serviceAccountToken"]["expirationSeconds"]
        for volume in worker(work={"drain": drain} if drain else {})["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
    )
    assert token == hours * 3600
    assert token - min(0.8 * token, 86400) >= seconds(drain or "25s")


def test_a_foreign_agent_and_its_bridge_have_the_same_drain():
    for work, drain, grace in (({}, "25s", 35), ({"drain": "2m"}, "120s", 130)):
        pod = worker(template=FOREIGN, work=work)
        args = pod["containers"][0]["args"]
        assert args[args.index("--drain-timeout") + 1] == drain
        assert (drain_in(pod["initContainers"][0]) or "25s") == drain
        assert pod["terminationGracePeriodSeconds"] == grace


def test_a_coordinator_and_a_single_agent_have_the_usual_drain():
    front = {"template": {"image": "x"}}
    plan = plan_of(fleet(work={"drain": "2m"}, coordinator=front))
    graces = [pod_of(each)["spec"]["terminationGracePeriodSeconds"] for each in plan.objects if pod_of(each)]
    assert graces == [130, 35]
    assert pod_of(workload_of(plan_of(agent())))["spec"]["terminationGracePeriodSeconds"] == 35


@pytest.mark.parametrize(("mode", "most"), [("claim", "25%"), ("shard", 1)])
def test_of_a_fleets_workers_so_many_may_go_at_once(mode, most):
    front = {"template": {"image": "x"}}
    plan = plan_of(fleet(scaling={"mode": mode}, coordinator=front), shards=Shards(mode == "shard", 1))
    budget = one_of(plan, POD_DISRUPTION_BUDGET)["spec"]
    assert budget["maxUnavailable"] == most
    selected = [
        each["metadata"]["name"]
        for each in plan.objects
        if (pod := pod_of(each))
        and budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ]
    assert selected == ["f"]


def test_a_single_agent_has_no_budget():
    assert [each["kind"] for each in plan_of(agent(mode="reactive", subscribe=["file:///a"])).objects] == [
        "Deployment"
    ]
