from __future__ import annotations

import pytest

from ..provision.timeline import MOMENTS, Timeline


def pod(uid, *, node="", phase="Pending", ready=False):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"uid": uid, "labels": {"agentctl.dev/agent": "f"}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": conditions},
    }


def named(name, **more):
    return {"metadata": {"name": name}, **more}


def ready_fleet(replicas):
    return named("f", status={"readyReplicas": replicas, "conditions": [{"type": "Ready", "status": "True"}]})


def test_a_moment_is_when_the_last_pod_came_to_it():
    timeline = Timeline("f", 2)
    timeline.see("Pod", pod("a"), 1)
    timeline.see("Pod", pod("a", node="n", phase="Running"), 2)
    assert timeline.at == {}
    timeline.see("Pod", pod("b", node="n"), 3)
    assert timeline.at == {"pods": 3, "scheduled": 3}
    timeline.see("Pod", pod("b", node="n", phase="Running", ready=True), 4)
    timeline.see("Pod", pod("a", node="n", phase="Running", ready=True), 5)
    timeline.see("Pod", pod("a", node="n", phase="Running", ready=True), 6)
    assert timeline.at == {"pods": 3, "scheduled": 3, "running": 4, "ready": 5}


@pytest.mark.parametrize(
    ("kind", "thing"),
    [
        ("Pod", {"metadata": {"uid": "x", "labels": {"agentctl.dev/agent": "other"}}}),
        ("Pod", {"metadata": {"uid": "x"}}),
        ("Deployment", named("other")),
        ("AgentFleet", named("other")),
        ("AgentFleet", named("f", status={"conditions": [{"type": "Ready", "status": "False"}]})),
        ("AgentFleet", ready_fleet(1)),
    ],
)
def test_what_is_not_of_the_fleet_or_not_ready_is_no_moment(kind, thing):
    timeline = Timeline("f", 2)
    timeline.see(kind, thing, 1)
    assert timeline.at == {}


def test_it_is_done_when_all_moments_are_there():
    timeline = Timeline("f", 1)
    timeline.at["applied"] = 0.1
    timeline.see("Deployment", named("f"), 0.2)
    timeline.see("Pod", pod("a", node="n", phase="Running", ready=True), 0.3)
    assert not timeline.done
    timeline.see("AgentFleet", ready_fleet(1), 0.4)
    assert timeline.done
    assert set(timeline.at) == set(MOMENTS)
