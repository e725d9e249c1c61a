"""The validator of the local home, beyond the manifests of libs/resources/tests."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

from libs.cluster.local.schema import Validator, findings
from libs.errors import InvalidError


def _fleet(**spec):
    return {
        "apiVersion": "agentctl.dev/v1alpha1",
        "kind": "AgentFleet",
        "metadata": {"name": "workers", "namespace": "team"},
        "spec": {"template": {"instruction": "Summarise.", "model": {"pool": "stand-in"}}} | spec,
    }


def _agent(namespace="team", **metadata):
    return {
        "apiVersion": "agentctl.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": "one", "namespace": namespace} | metadata,
        "spec": {"mode": "once", "instruction": "Go.", "model": {"pool": "stand-in"}},
    }


def _refusal(thing, old=None):
    with pytest.raises(InvalidError) as refused:
        Validator().validated(thing, old)
    return refused.value


def test_defaults_are_filled_in_and_the_given_object_is_not_touched():
    given = _fleet(scaling={"minReplicas": 2})
    before = copy.deepcopy(given)
    spec = Validator().validated(given)["spec"]
    assert spec["scaling"] == {"minReplicas": 2, "maxReplicas": 10, "mode": "claim", "cooldown": "5m"}
    assert spec["work"] == {"slots": 4, "lease": "30s", "maxAttempts": 3}
    assert given == before


def test_the_default_of_one_object_is_not_that_of_the_next():
    Validator().validated(_fleet())["spec"]["scaling"]["maxReplicas"] = 99
    assert Validator().validated(_fleet())["spec"]["scaling"]["maxReplicas"] == 10


def test_null_is_absent():
    assert "coordinator" not in Validator().validated(_fleet(coordinator=None))["spec"]
    assert Validator().validated(_fleet(work={"slots": None}))["spec"]["work"]["slots"] == 4


def test_one_wrong_field_is_one_line():
    error = _refusal(_fleet(work={"slots": 0}))
    what = "Invalid value: 0: spec.work.slots in body should be greater than or equal to 1"
    assert str(error) == f'The AgentFleet "workers" is invalid: spec.work.slots: {what}'
    assert error.violations == {"spec.work.slots": what}


def test_all_that_is_wrong_is_said_at_once():
    error = _refusal(_fleet(replicas=50, work={"queue": "A"}))
    assert str(error) == (
        'The AgentFleet "workers" is invalid: \n'
        "* spec.replicas: Invalid value: has to be between scaling.minReplicas and scaling.maxReplicas\n"
        '* spec.work.queue: Invalid value: "A": has to be a queue: lower case letters, digits, dots and '
        "dashes"
    )


def test_rules_wait_for_the_right_form():
    assert list(_refusal(_fleet(replicas=50, work={"slots": "x"})).violations) == ["spec.work.slots"]


def test_unknown_metadata_is_refused_by_name():
    assert 'unknown field "metadata.label"' in str(_refusal(_agent(label={"a": "b"})))


def test_pod_templates_have_metadata_of_their_own():
    thing = _agent()
    thing["spec"]["podTemplate"] = {"metadata": {"name": "mine"}}
    assert 'unknown field "spec.podTemplate.metadata.name"' in str(_refusal(thing))


def test_a_newline_at_the_end_is_part_of_the_text():
    assert "spec.work.lease" in _refusal(_fleet(work={"lease": "30s\n"})).violations


def test_no_agent_in_the_system_namespace():
    assert "agents cannot live in agentctl-system" in str(_refusal(_agent("agentctl-system")))


def test_but_one_that_is_there_can_be_deleted():
    going = _agent("agentctl-system", deletionTimestamp="2030-01-01T00:00:00Z")
    assert Validator().validated(going)["spec"]["mode"] == "once"


def test_what_did_not_change_is_not_held_against_a_newer_schema():
    old = _fleet(work={"slots": 999, "lease": "5x"})
    relabelled = copy.deepcopy(old)
    relabelled["metadata"]["labels"] = {"team": "a"}
    assert Validator().validated(relabelled, _stored(old))["metadata"]["labels"] == {"team": "a"}
    changed = copy.deepcopy(old)
    changed["spec"]["work"]["lease"] = "6x"
    assert list(_refusal(changed, _stored(old)).violations) == ["spec.work.lease"]


def _stored(thing):
    """As it was stored: with its defaults."""
    thing = copy.deepcopy(thing)
    thing["spec"] |= {"scaling": {"minReplicas": 0, "maxReplicas": 10}}
    thing["spec"]["work"] |= {"maxAttempts": 3}
    return thing


def test_items_of_a_list_map_are_compared_by_their_key():
    """Also when they have moved."""
    servers = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "port": {"type": "integer", "maximum": 9}},
        },
    }
    old = [{"name": "a", "port": 10}, {"name": "b", "port": 1}]
    assert findings(list(reversed(old)), old, servers) == []
    moved = [{"name": "b", "port": 10}, {"name": "a", "port": 10}]
    assert [finding.path for finding in findings(moved, old, servers)] == ["[0].port"]


def test_a_rule_on_a_change():
    schema = {
        "type": "object",
        "properties": {"queue": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.queue == oldSelf.queue", "message": "is immutable"}],
    }
    assert findings({"queue": "a"}, None, schema) == []
    assert findings({"queue": "a"}, {"queue": "a"}, schema) == []
    assert [one.what for one in findings({"queue": "b"}, {"queue": "a"}, schema)] == [
        "Invalid value: is immutable"
    ]


def test_a_kind_that_is_not_ours():
    with pytest.raises(KeyError):
        Validator().validated({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}})


def test_cel_is_loaded_by_the_first_rule_only():
    code = (
        "import sys, libs.cluster.local.schema as schema; schema.Validator(); sys.exit('cel' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
