"""What is rendered, as files to read: `golden/<case>.yaml` is the object and what else is there,
`golden/<case>.plan.yaml` the plan.

After a change that is meant, write the plans anew and review the diff:
    AGENTCTL_UPDATE_GOLDEN=1 .venv/bin/python -m pytest services/operator/tests/test_plan_golden.py
"""

from __future__ import annotations

import os

import kubernetes_validate
import pytest
import yaml

from libs.cluster.kinds import OURS, SCALED_OBJECT, kind_of
from libs.cluster.local.schema import Validator

from .manifests import GOLDEN, case, cases, plan_of_case


@pytest.mark.parametrize("name", cases())
def test_the_plan_is_the_golden_one(name):
    plan = plan_of_case(name)
    assert plan.problems == ()
    path = GOLDEN / f"{name}.plan.yaml"
    if os.environ.get("AGENTCTL_UPDATE_GOLDEN"):
        path.write_text(yaml.safe_dump_all(plan.objects, sort_keys=False, width=110))
        pytest.skip("written anew: review the diff")
    assert list(plan.objects) == list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("name", cases())
def test_a_case_is_what_people_may_declare(name):
    first, others = case(name)
    for each in (first, *others):
        if kind_of(each["apiVersion"], each["kind"]) in OURS:
            Validator().validated(each)


def test_every_golden_plan_has_a_case():
    assert {path.name.removesuffix(".plan.yaml") for path in GOLDEN.glob("*.plan.yaml")} == set(cases())


@pytest.mark.parametrize("version", ["1.36", "1.37"])
@pytest.mark.parametrize("name", cases())
def test_what_is_rendered_is_as_the_schemas_of_kubernetes_say(name, version):
    for manifest in plan_of_case(name).objects:
        if manifest["kind"] != SCALED_OBJECT.name:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_refuse_what_is_not_in_them():
    manifest = plan_of_case("once").objects[0]
    with pytest.raises(kubernetes_validate.ValidationError, match="retries"):
        kubernetes_validate.validate(
            {**manifest, "spec": {**manifest["spec"], "retries": 1}}, "1.36", strict=True
        )
