"""Objects as messages, and back."""

from __future__ import annotations

from datetime import date

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from agentctl.resource.v1.resource_service_pb2 import ApplyRequest
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


LOOP: dict = {}
LOOP["again"] = [LOOP]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"spec": {"list": [1, {"at": date(2020, 1, 1)}]}}, r"^spec\.list\[1\]\.at: date is nothing"),
        ({"data": {1: "a"}}, "^data: the key 1 is no text"),
        ({1: "a"}, "^1: the key 1 is no text"),
        ({"spec": {"count": 2**64 + 1}}, r"^spec\.count: 18446744073709551617 is beyond"),
        ({"spec": [10**400]}, r"^spec\[0\]: 1000.* is beyond"),
        ({"text": "\ud800"}, "^text: is no Unicode"),
        (LOOP, r"^again\[0\]\.again\[0\].*: is nested deeper than 32 levels"),
    ],
)
def test_what_is_no_json_is_refused_by_its_path(document, path):
    with pytest.raises(InvalidError, match=path):
        struct_of(document)


def test_what_is_as_deep_as_allowed_can_be_read_inside_a_message():
    document: dict = {"a": {}}
    for _ in range(31):
        document = {"a": document}
    request = ApplyRequest.FromString(ApplyRequest(object=struct_of(document)).SerializeToString())
    assert document_of(request.object) == document
    with pytest.raises(InvalidError, match="deeper"):
        struct_of({"a": document})
