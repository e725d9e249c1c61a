"""Objects as `google.protobuf.Struct`: JSON inside a message, so that grpcurl takes and shows manifests."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.struct_pb2 import ListValue, Struct, Value

from libs.errors import InvalidError

_EXACT = 2**53  # a Struct's numbers are doubles


def struct_of(document: dict[str, Any]) -> Struct:
    """The document as a message."""
    struct = Struct()
    struct.update(document)
    return struct


def document_of(struct: Struct) -> dict[str, Any]:
    """What the message says. Whole numbers are ints; InvalidError beyond what doubles hold exactly."""
    return {name: _plain(value) for name, value in struct.fields.items()}


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            if not math.isfinite(number):
                raise InvalidError(f"{number} is no JSON number")
            if not number.is_integer():
                return number
            if abs(number) > _EXACT:
                raise InvalidError(f"{number:.0f} is beyond the whole numbers that JSON numbers hold exactly")
            return int(number)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return document_of(value.struct_value)
        case "list_value":
            return _list(value.list_value)
        case _:
            return None


def _list(values: ListValue) -> list[Any]:
    return [_plain(value) for value in values.values]
