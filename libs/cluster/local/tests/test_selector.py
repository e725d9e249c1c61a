"""Label selectors."""

from __future__ import annotations

import pytest

from libs.cluster.local.selector import selector
from libs.errors import InvalidError

LABELS = {"app.dev/name": "web", "tier": "front", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("tier=front", True),
        ("tier==front", True),
        ("tier=back", False),
        ("tier!=back", True),
        ("absent!=back", True),
        ("app.dev/name=web,tier=front", True),
        ("app.dev/name=web, tier=back", False),
        ("tier in (back, front)", True),
        ("tier in (back),tier=front", False),
        ("tier notin (back,front)", False),
        ("absent notin (back)", True),
        ("tier", True),
        ("absent", False),
        ("!absent", True),
        ("!tier", False),
        ("empty=", True),
    ],
)
def test_a_selector_matches_as_in_the_api(text, matches):
    assert selector(text)(LABELS) == matches


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "=x",
        "a=b=c",
        "a in b",
        ",",
        "a=b,",
        "a>1",
        "a in ()",
        "a notin ( )",
        "," * 150_000,
        "a" * 5_000,
    ],
)
def test_nonsense_is_refused(text):
    with pytest.raises(InvalidError):
        selector(text)


def test_a_refusal_repeats_no_long_selector():
    with pytest.raises(InvalidError) as caught:
        selector("?" * 4_000)
    assert len(str(caught.value.violations)) < 200


def test_a_list_of_values_may_hold_empty_ones():
    assert selector("empty in (x,),tier in (front)")(LABELS)
