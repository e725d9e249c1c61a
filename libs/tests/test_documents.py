"""Objects as messages, and back."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from libs.documents import document_of, struct_of
from libs.errors import InvalidError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.text(st.characters(exclude_categories=["Cs"]))
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20)


@given(st.dictionaries(KEYS, VALUES))
def test_what_comes_back_is_what_went(document):
    assert document_of(Struct.FromString(struct_of(document).SerializeToString())) == document


def test_whole_numbers_are_ints():
    back = document_of(struct_of({"replicas": 3, "list": [1, {"deep": 2}], "half": 0.5}))
    assert [type(back["replicas"]), type(back["list"][0]), type(back["list"][1]["deep"])] == [int] * 3
    assert type(back["half"]) is float


@pytest.mark.parametrize("number", [2**53 + 2, -(2**60), 1e300])
def test_what_doubles_do_not_hold_exactly_is_refused(number):
    with pytest.raises(InvalidError, match="beyond the whole numbers"):
        document_of(struct_of({"number": number}))


def test_what_is_no_json_number_is_refused():
    for number in (float("nan"), float("inf")):
        with pytest.raises(InvalidError, match="no JSON number"):
            document_of(struct_of({"number": number}))
