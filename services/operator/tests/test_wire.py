"""Objects survive the trip through a Struct."""

from __future__ import annotations

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as some

from libs.errors import InvalidError
from services.operator.wire import object_of, struct_of

_texts = some.text(some.characters(codec="utf-8"), max_size=8)
_leaves = some.none() | some.booleans() | some.integers(-(2**53), 2**53) | _texts
_values = some.recursive(
    _leaves, lambda inner: some.lists(inner, max_size=3) | some.dictionaries(_texts, inner, max_size=3)
)


@given(some.dictionaries(_texts, _values, max_size=4))
def test_an_object_comes_back_as_it_was(thing):
    back = object_of(struct_of(thing))
    assert back == thing
    assert repr(back) == repr(thing) or _types(back) == _types(thing)


def _types(value):
    match value:
        case dict():
            return {name: _types(inner) for name, inner in value.items()}
        case list():
            return [_types(inner) for inner in value]
    return type(value)


def test_fractions_stay_fractions():
    assert object_of(struct_of({"a": 0.5})) == {"a": 0.5}


def test_a_number_that_json_cannot_say_is_refused():
    struct = struct_pb2.Struct()
    struct["n"] = float("nan")
    with pytest.raises(InvalidError, match="finite"):
        object_of(struct)
