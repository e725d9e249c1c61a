"""The frozen tables: whole, consistent, and what 1.0 says for good."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from agentctl.agent.v1 import agent_service_pb2
from libs.contract import environment, events, methods, metrics
from libs.contract.manifest import MODES, VERBS, readable
from libs.contract.page import page
from libs.contract.run import State, state_of
from libs.contract.statuses import Status, exit_code, meaning
from libs.exits import INTENTS, MEANINGS, Exit, Intent, intent, is_retried

PAGE = Path(__file__).parents[3] / "docs/contract.md"

CODES = {
    "completed": 0,
    "drained": 1,
    "failed": 1,
    "lost": 1,
    "crashed": 1,
    "too_large": 3,
    "loop_detected": 3,
    "model": 4,
    "refused": 5,
    "cancelled": 5,
    "server": 6,
    "exhausted_steps": 7,
    "exhausted_tokens": 7,
    "deadline": 7,
    "depth": 7,
}


def test_the_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m libs.contract > docs/contract.md"


def test_statuses_have_the_exit_codes_of_1_0():
    assert {str(status): int(exit_code(status)) for status in Status} == CODES
    assert all(meaning(status) for status in Status)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_ends_a_run_in_a_state_that_agrees_with_its_code(status):
    state = state_of(status)
    assert state.ended
    assert (state is State.COMPLETED) == (status is Status.COMPLETED)
    if state is State.REFUSED:
        assert intent(exit_code(status)) is Intent.TERMINAL
    if state is State.FAILED:
        assert exit_code(status) != 0


def test_every_code_and_intent_is_explained():
    assert MEANINGS.keys() == set(Exit)
    assert INTENTS.keys() == set(Intent)
    assert {intent(code) for code in Exit} == set(Intent)


def test_what_ended_for_good_is_not_retried():
    assert {int(code) for code in Exit if is_retried(intent(code))} == {1, 4, 6, 137, 143}


def test_every_method_of_the_service_has_a_purpose_and_callers():
    (service,) = agent_service_pb2.DESCRIPTOR.services_by_name.values()
    assert service.full_name == methods.SERVICE
    assert [method.name for method in service.methods] == list(methods.PURPOSES)
    for name in methods.PURPOSES:
        steers = name not in ("GetManifest", "GetStatus", "WatchEvents")
        assert ("user" in methods.callers(name)) != steers
        assert {"cp/apiserver", "cp/gateway"} <= methods.callers(name)
    assert set(VERBS) <= methods.PURPOSES.keys()


@pytest.mark.parametrize(
    ("version", "taken"),
    [("1.0", True), ("1.7", True), ("2.0", False), ("0.9", False), ("1", False), ("1.x", False), ("", False)],
)
def test_only_an_unknown_major_is_refused(version, taken):
    assert readable(version) is taken


# --- Environment ---


def test_variables_are_unique_and_of_the_contract():
    rows = [row for group in environment.GROUPS.values() for row in group]
    assert len(rows) == len(environment.ENVIRONMENT)
    for row in rows:
        assert row.name.startswith(environment.PREFIXES)
        assert row.modes
        assert set(row.modes) <= set(MODES)
        assert bool(row.source) == (row.setter is environment.Setter.OPERATOR), row.name


def test_only_the_contracts_own_names_can_be_unknown():
    assert not environment.unknown([*environment.ENVIRONMENT, "PATH", "OTEL_SERVICE_NAME", "HOME"])
    assert environment.unknown(["AGENT_MODEL", "AGENT_MODLE", "AGENTCTL_X"]) == {"AGENT_MODLE", "AGENTCTL_X"}


# --- Metrics ---


def test_metrics_follow_prometheus_naming():
    for name, row in metrics.REGISTRY.items():
        assert name == row.name
        assert name.startswith("agent_")
        assert name.endswith("_total") == (row.type is metrics.Type.COUNTER)
        assert row.help


def samples(row):
    """What the default registry has of a metric."""
    name = row.name.removesuffix("_total")
    families = [family for family in REGISTRY.collect() if family.name == name]
    return [sample for family in families for sample in family.samples]


@given(st.text())
def test_a_label_never_leaves_its_domain(word):
    metrics.RUNS.inc(word)
    metrics.MODEL_ERRORS.inc(word)
    for row in (metrics.RUNS, metrics.MODEL_ERRORS):
        ((label, domain),) = row.labels
        assert {sample.labels[label] for sample in samples(row)} <= set(domain)


def test_a_label_without_a_word_for_the_rest_refuses_it():
    with pytest.raises(ValueError, match="none of in, out"):
        metrics.TOKENS.inc("sideways")
    with pytest.raises(ValueError, match=r"longer|shorter"):
        metrics.TOOL_CALLS.inc("server")


def test_names_are_bounded():
    row = metrics.Metric("agent_test_names_total", metrics.Type.COUNTER, "of this test", (("server", ()),))
    for n in range(metrics.MAX_NAMES + 20):
        row.inc(f"server-{n}")
    row.inc("server-3")
    values = {sample.labels["server"]: sample.value for sample in samples(row)}
    assert len(values) == metrics.MAX_NAMES + 1
    assert (values["server-3"], values[metrics.OTHER]) == (2, 20)


def test_a_counter_is_not_set():
    with pytest.raises(TypeError, match="is no gauge"):
        metrics.STEPS.set(to=1)


# --- Events ---


def test_events_are_named_in_dotted_words_and_explained():
    assert all(name.count(".") == 1 and name == name.lower() for name in events.NAMES)
    assert all(events.MEANINGS.values())
