"""Rows of verdicts, and findings out of their lines."""

from __future__ import annotations

import pytest

from libs.errors import InvalidError
from libs.findings import (
    Refusal,
    Row,
    complete,
    documents,
    exit_code,
    masked,
    name_of,
    one_line,
    refusals,
    row_of,
    shortened,
    unjudged,
)

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


@pytest.mark.parametrize(
    ("said", "value", "message"),
    [
        ('Invalid value: "a b": has to be a word', "a b", 'Invalid value: "a b": has to be a word'),
        ("Invalid value: 21: less than 20", "21", "Invalid value: 21: less than 20"),
        ("Invalid value: goes with mode loop", "", "Invalid value: goes with mode loop"),
        ('Duplicate value: {"name":"a"}', '{"name":"a"}', 'Duplicate value: {"name":"a"}'),
        ("Required value", "", "Required value"),
        (f'Invalid value: "{"a" * 5000}": rule', "a" * 79 + "…", f'Invalid value: "{"a" * 79}…": rule'),
    ],
)
def test_a_refusal_has_its_value_and_keeps_its_rule(said, value, message):
    [found] = refusals(InvalidError(violations={"spec.a": said}))
    assert (found.field, found.value, found.message) == ("spec.a", value, message)


def test_unknown_fields_are_named():
    error = InvalidError('strict decoding error: unknown field "spec.IMAGE", unknown field "spec.x[0].y"')
    mend = "remove it, or correct its name"
    assert refusals(error) == [
        Refusal("spec.IMAGE", "", "unknown field", mend),
        Refusal("spec.x[0].y", "", "unknown field", mend),
    ]
    assert [each.field for each in refusals(InvalidError("something else"))] == ["object"]


def test_a_password_is_in_no_row_and_in_no_value():
    url = "https://joe:hun@ter/2@x.example/v1"
    assert masked(f'"{url}" is no URL') == '"https://***@x.example/v1" is no URL'
    assert masked("a//b") == "a//b"
    assert shortened(f"{'a' * 70}{url}", 90) == f"{'a' * 70}https://***@x.examp…"
    row = Row(NAME, "denied", value=url, message=url)
    assert "hun" not in str(row.cells()) + str(documents([row]))
