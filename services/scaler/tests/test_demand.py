"""What a trigger may say, and what it makes of a queue."""

from __future__ import annotations

import re
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.errors import InvalidError
from libs.resources.fleet import Work

from ..demand import AGE, ITEMS, Demand, Trigger


def wrong(namespace: str = "demo", name: str = "docs", **metadata: str) -> set[str]:
    """The fields that are refused."""
    with pytest.raises(InvalidError) as refused:
        Trigger.of(namespace, name, metadata)
    assert all(refused.value.violations.values())
    return set(refused.value.violations)


def test_a_trigger_that_says_nothing_is_about_the_queue_of_its_fleet_item_by_item():
    trigger = Trigger.of("demo", "docs", {})
    assert trigger == Trigger("demo/docs", 1.0, None)
    assert trigger.targets() == {ITEMS: 1.0}


def test_kedas_own_keys_are_not_ours_to_judge():
    metadata = {"scalerAddress": "scaler:7417", "enableTLS": "true", "unsafeSsl": "false", "target": "5"}
    assert Trigger.of("demo", "docs", metadata) == Trigger("demo/docs", 5.0)


def test_a_trigger_may_name_another_queue_of_its_namespace():
    assert Trigger.of("demo", "docs", {"queue": "docs.urgent"}).queue == "demo/docs.urgent"


@pytest.mark.parametrize(
    "queue", ["", "other/docs", "/docs", "../other/docs", "Docs", "a b", "a" * 201, "a.", "ä"]
)
def test_a_queue_of_another_namespace_cannot_even_be_said(queue):
    assert wrong(queue=queue) == {"scalerMetadata.queue"}


@given(st.from_regex(r"\A[a-z0-9.-]{1,201}\Z") | st.sampled_from(["a..b", "a.-b", "a" * 200, "a" * 201, "."]))
def test_a_queue_is_called_as_an_agent_fleet_may_say(queue):
    (said,) = get_type_hints(Work, include_extras=True)["queue"].__metadata__
    (rule,) = said.extra_json_schema["x-kubernetes-validations"]
    (pattern,) = re.findall("r'(.+)'", rule["rule"])
    if len(queue) <= said.max_length and re.fullmatch(pattern, queue):
        assert Trigger.of("demo", "docs", {"queue": queue}).queue == f"demo/{queue}"
    else:
        assert wrong(queue=queue) == {"scalerMetadata.queue"}


def test_the_certificate_that_keda_has_is_none_of_our_business():
    plain, told = (
        {"target": "5"},
        {"target": "5", "certificate": "0123abcd", "scalerAddress": "scaler:7417"},
    )
    assert Trigger.of("demo", "docs", told) == Trigger.of("demo", "docs", plain)


@pytest.mark.parametrize("namespace", ["", "demo/docs", "a.b", "UP", "a" * 64])
def test_a_namespace_is_one_label(namespace):
    assert wrong(namespace=namespace) == {"namespace"}


def test_a_name_that_is_no_queues_is_refused_unless_a_queue_is_named():
    assert wrong(name="-docs") == {"name"}
    assert Trigger.of("demo", "-docs", {"queue": "docs"}).queue == "demo/docs"


@pytest.mark.parametrize(
    "target", ["", "0", "-1", "nan", "inf", "1e3", "five", " 5", "1_0", "٣", "0.0009", "1000000001"]
)
def test_a_target_is_a_number_of_items(target):
    assert wrong(target=target) == {"scalerMetadata.target"}


@pytest.mark.parametrize(("age", "seconds"), [("1ms", 0.001), ("1.5s", 1.5), ("5m", 300.0), ("2h", 7200.0)])
def test_a_target_age_is_a_second_metric(age, seconds):
    assert Trigger.of("demo", "docs", {"targetAge": age}).targets() == {ITEMS: 1.0, AGE: seconds}


@pytest.mark.parametrize("age", ["", "0s", "5", "s", "-1s", "1d", "1h30m", "0.5ms"])
def test_a_target_age_is_a_duration(age):
    assert wrong(targetAge=age) == {"scalerMetadata.targetAge"}


@pytest.mark.parametrize("key", ["coordinationUrl", "treshold", "Target", "caCert", "queueFromEnv"])
def test_a_key_that_nobody_knows_is_refused_and_not_passed_over(key):
    assert wrong(**{key: "1"}) == {f"scalerMetadata.{key}"}


def test_everything_that_is_wrong_is_named_at_once():
    assert wrong(namespace="", queue="a/b", target="x", targetAge="y", more="z") == {
        "namespace",
        "scalerMetadata.queue",
        "scalerMetadata.target",
        "scalerMetadata.targetAge",
        "scalerMetadata.more",
    }


@pytest.mark.parametrize(
    ("ready", "leased", "active"), [(0, 0, False), (1, 0, True), (0, 1, True), (3, 4, True)]
)
def test_one_item_that_waits_or_is_held_makes_it_active(ready, leased, active):
    demand = Demand(ready, leased)
    assert (demand.is_active, demand.items) == (active, ready + leased)


def test_the_age_grows_by_itself_and_is_none_while_nothing_is_ready():
    trigger = Trigger.of("demo", "docs", {"targetAge": "10s"})
    assert trigger.values(Demand(1, 0, 100.0), 104.5) == {ITEMS: 1.0, AGE: 4.5}
    assert trigger.values(Demand(0, 2), 104.5, AGE) == {AGE: 0.0}


def test_a_metric_that_the_trigger_does_not_have_is_refused():
    with pytest.raises(InvalidError) as refused:
        Trigger.of("demo", "docs", {}).values(Demand(), 0.0, AGE)
    assert set(refused.value.violations) == {"metricName"}


@given(
    ready=st.integers(),
    leased=st.integers(),
    since=st.none() | st.floats(-1e12, 1e12),
    now=st.floats(0, 1e12),
)
def test_no_number_makes_a_value_negative(ready, leased, since, now):
    values = Trigger("demo/docs", target_age=1.0).values(Demand(ready, leased, since), now)
    assert all(value >= 0 for value in values.values())
