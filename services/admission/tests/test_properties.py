"""What holds of any object whatever, and of any change."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import replace

import jsonpatch
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from libs.cluster import Object
from services.admission.context import Facts, needs
from services.admission.rules import review
from services.admission.schema import check
from services.admission.verdict import Verdict

from .generated import JSON, changes

STAMP = "2026-01-01T00:00:00Z"


def prove(examples: int, begin: int = 0) -> Counter[str]:
    """Tries the properties on so many changes; how often each verdict was given."""
    seen: Counter[str] = Counter()

    @seed(begin)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(changes(), st.booleans())
    def holds(change: tuple[Object, Object | None, Facts], with_schema: bool) -> None:
        thing, old, facts = change
        if with_schema:
            facts = replace(facts, schema=check(thing, old))
        before = copy.deepcopy((thing, old))

        verdict = review(thing, old, facts)
        assert review(copy.deepcopy(thing), copy.deepcopy(old), facts) == verdict
        assert needs(thing, old) == needs(*copy.deepcopy((thing, old)))
        assert (thing, old) == before
        for finding in (*verdict.denials, *verdict.warnings):
            assert finding.rule
            assert finding.field
            assert finding.message
            assert finding.mend
            str(finding).encode()

        patched = jsonpatch.apply_patch(thing, list(verdict.patch))
        assert review(patched, old, facts).patch == ()
        if verdict.allowed:
            after = replace(facts, schema=check(patched, old) if with_schema else None)
            assert review(patched, old, after).allowed
        seen["allowed" if verdict.allowed else "denied"] += 1
        seen.update({finding.rule for finding in (*verdict.denials, *verdict.warnings)})

        for each in (thing, old):
            if each is not None and isinstance(each.get("metadata"), dict):
                each["metadata"]["deletionTimestamp"] = STAMP
        if old is not None and all(isinstance(each.get("metadata"), dict) for each in (thing, old)):
            assert review(thing, old, facts) == Verdict()
            seen["leaving"] += 1

    holds()
    return seen


def test_a_review_never_fails_and_a_mutation_changes_no_verdict():
    prove(500)


@pytest.mark.processes
def test_nor_does_it_for_ten_thousand_objects():
    seen = sum((prove(2_000, begin) for begin in range(1, 6)), Counter[str]())
    assert min(seen["allowed"], seen["denied"], seen["leaving"]) > 100, seen
    assert {"trifecta", "image-not-allowed", "secret-not-yours", "unknown-pool", "schema"} <= set(seen), seen


@settings(max_examples=200, deadline=None)
@given(JSON, JSON)
def test_what_is_no_object_is_refused_and_does_no_harm(thing, old):
    verdict = review(thing, old, Facts())
    half_a_character = "\\ud800"
    assert verdict.allowed == (isinstance(thing, dict) and half_a_character not in json.dumps(thing))
    assert verdict.patch == ()


def test_what_is_too_deep_is_refused():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    thing = {"apiVersion": "agentctl.dev/v1alpha1", "kind": "Agent", "metadata": {}, "spec": deep}
    assert [found.rule for found in review(thing, None, Facts()).denials] == ["malformed"]
