"""Cells of tables, out of objects as the API has them."""

from __future__ import annotations

import pytest

from ..columns import at, columns, pod_status, ready_of, restarts
from ..tree import _quantity, _used

UNITS = {"n": 1e-9, "m": 1e-3, "": 1.0}


def row(kind: str, thing: dict, *, wide: bool = False) -> dict[str, object]:
    return {title: cell(thing) for title, cell in columns(kind, wide=wide, namespaces=False)}


def test_what_is_not_there_is_an_empty_cell():
    for kind in ("Agent", "AgentFleet", "ModelPool", "Pod", "Job", "CronJob", "Event", "ConfigMap"):
        cells = row(kind, {"metadata": {"name": "x"}}, wide=True)
        assert cells["NAME"] == "x"
        assert None not in cells.values()


def test_a_path_that_leads_through_a_text_leads_nowhere():
    assert at({"spec": "text"}, "spec.mode") == ""
    assert at({"spec": {"replicas": 0}}, "spec.replicas") == 0


@pytest.mark.parametrize(
    ("metadata", "state", "said"),
    [
        ({}, {"running": {}}, "Running"),
        ({}, {"waiting": {"reason": "CrashLoopBackOff"}}, "CrashLoopBackOff"),
        ({}, {"terminated": {"reason": "Error"}}, "Error"),
        ({"deletionTimestamp": "now"}, {"running": {}}, "Terminating"),
    ],
)
def test_the_status_of_a_pod_says_most(metadata, state, said):
    statuses = [{"name": "agent", "restartCount": 2, "state": state}]
    pod = {"metadata": metadata, "status": {"phase": "Running", "containerStatuses": statuses}}
    assert (pod_status(pod), restarts(pod)) == (said, 2)


def test_a_workload_scaled_to_nothing_wants_nothing():
    assert ready_of({"spec": {"replicas": 0}}) == "0/0"
    assert ready_of({"spec": {}, "status": {"readyReplicas": 1}}) == "1/1"


def test_usage_is_the_sum_of_the_containers():
    containers = [
        {"usage": {"cpu": "1500000n", "memory": "1024Ki"}},
        {"usage": {"cpu": "2m", "memory": "1Mi"}},
    ]
    assert _used(containers) == ("3.5", "2.0")
    assert _quantity("1", UNITS) == 1.0
