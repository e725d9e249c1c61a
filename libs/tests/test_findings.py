"""Rows of verdicts, and findings out of their lines."""

from __future__ import annotations

import pytest

from libs.findings import Row, complete, exit_code, name_of, one_line, row_of, unjudged

NAME = "agent/demo/scout"


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (
            "spec.image 'a:1': is not: a, b; use those; or ask (not-allowed)",
            Row(NAME, "denied", "not-allowed", "spec.image", "a:1", "is not: a, b; use those", "or ask"),
        ),
        (
            'metadata.a[b.c/d] "it\'s fine": it may leak; stop (trifecta)',
            Row(NAME, "denied", "trifecta", "metadata.a[b.c/d]", "it's fine", "it may leak", "stop"),
        ),
        ("spec.a: no bounds (no-limits)", Row(NAME, "denied", "no-limits", "spec.a", "", "no bounds")),
        (
            "spec.a 'x': unknown; look (not-looked-up)",
            Row(NAME, "not-checked", "not-looked-up", "spec.a", "x", "unknown", "look"),
        ),
        ('unknown field "spec.x"', Row(NAME, "denied", message='unknown field "spec.x"')),
        ("", Row(NAME, "denied")),
    ],
)  # fmt: skip
def test_a_line_is_read_as_the_finding_that_it_is(line, row):
    assert row_of(line, NAME, "denied") == row


def test_what_nothing_denies_is_allowed():
    warned, denied = Row(NAME, "warning", "a"), Row(NAME, "denied", "b")
    assert complete(NAME, [warned]) == [Row(NAME, "allowed"), warned]
    assert complete(NAME, [denied, warned]) == [denied, warned]
    assert (exit_code([warned]), exit_code([warned, denied])) == (0, 1)


def test_rows_name_kind_namespace_and_name():
    assert name_of({"kind": "Agent", "metadata": {"namespace": "demo", "name": "scout"}}) == NAME
    assert name_of({"kind": "Agent", "metadata": {"generateName": "s-"}}) == "agent/s-*"
    assert unjudged({"kind": "Secret", "metadata": {"name": "s"}}).message == "no rule is about a Secret"


def test_a_cell_cannot_steer_a_terminal():
    assert one_line("a\n b\x1b[2J\x9b") == "a b\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
