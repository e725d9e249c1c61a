"""The Job's failure policy says what the exit-code table says."""

from __future__ import annotations

import pytest

from libs.exits import Exit, Intent, intent
from services.operator.exits import failure_policy


def action(code):
    """What a Job controller does with a code: the first rule that names it; without one, it counts."""
    for rule in failure_policy("agent")["rules"]:
        if code in rule.get("onExitCodes", {}).get("values", ()):
            return rule["action"]
    return "Count"


@pytest.mark.parametrize("code", [code for code in Exit if code])
def test_every_code_is_dealt_with_as_its_intent_says(code):
    expected = {
        Intent.RETRIABLE: "Count",
        Intent.TERMINAL: "FailJob",
        Intent.POLICY: "FailJob",
        Intent.INFRA: "Count",
    }
    assert action(code) == expected[intent(code)]


def test_no_code_is_in_two_rules_and_success_in_none():
    codes = [
        code
        for rule in failure_policy("agent")["rules"]
        for code in rule.get("onExitCodes", {}).get("values", ())
    ]
    assert sorted(codes) == sorted(code for code in Exit if code)


def test_an_evicted_pod_uses_up_no_retry():
    first = failure_policy("agent")["rules"][0]
    assert (first["action"], first["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")


def test_an_unknown_code_counts():
    assert action(99) == "Count"
