"""YAML becomes what kubectl makes of it, and never more than its length allows."""

from __future__ import annotations

import pytest

from libs.yamls import YamlError, documents


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2020-01-01", "2020-01-01"),
        ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"),
        ("1:30", "1:30"),
        ("yes", True),
        ("Off", False),
        ('"yes"', "yes"),
        ("!!str 12", "12"),
        ("0777", 511),
        ("0o17", 15),
        ("0x1F", 31),
        ("08", 8),
        ("1_000", 1000),
        ("1e3", 1000),
        ("2.0", 2),
        (".5", 0.5),
        ("1e400", "1e400"),
        ("18446744073709551615", 2**64 - 1),
        ("123456789012345678901234567890", 1.2345678901234568e29),
        ("NULL", None),
        ("=", "="),
        ("{1: a, true: b, 1.5: c}", {"1": "a", "true": "b", "1.5": "c"}),
        ("{<<: [{a: 1, b: 1}, {a: 2, c: 2}], b: 3}", {"a": 1, "b": 3, "c": 2}),
        ("[&x {a: 1}, *x]", [{"a": 1}, {"a": 1}]),
    ],
)
def test_what_a_text_means(text, value):
    [(_, document)] = documents(f"is: {text}")
    assert document == {"is": value}
    assert type(document["is"]) is type(value)


def test_documents_are_numbered_with_the_empty_ones():
    assert list(documents("# nothing\n---\n---\na: 1\n---\nb: 2\n")) == [(2, {"a": 1}), (3, {"b": 2})]


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20)
)
MERGES = "a0: &a0 {x: x}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, "aliases stand for more than 100000 values"),
        (MERGES, "aliases stand for more than 100000 values"),
        ("a: &a {b: *a}", "nested deeper than 32 levels, in line 2"),
        ("a: &a {<<: *a}", "nested deeper than 32 levels, in line 2"),
        ("[" * 33 + "]" * 33, "nested deeper than 32 levels, in line 2"),
        ("[" * 100_000, "not YAML|nested deeper"),
        ("- " * 100_000, "nested deeper than 32 levels, in line 2"),
        ("a: *b", "not YAML: found undefined alias"),
        ("a: 1\nb: 2\na: 3", "a is there twice, in line 4"),
        ("a: [", "not YAML"),
        ("a: \x01", "not YAML"),
        ("a: .nan", ".nan is no JSON number, in line 2"),
        ("a: !!binary aGVsbG8=", "is nothing that JSON has, in line 2"),
        ("{~: a}", "a key that is no text, in line 2"),
        ("{[a]: b}", "a key that is no text, in line 2"),
        ("{<<: 7}", "<< takes mappings only, in line 2"),
    ],
)
def test_what_no_json_says_is_refused(text, why):
    with pytest.raises(YamlError, match=why):
        list(documents(f"---\n{text}"))


def test_what_is_32_deep_is_read():
    [(_, document)] = documents("[" * 32 + "]" * 32)
    for _ in range(31):
        [document] = document
    assert document == []
