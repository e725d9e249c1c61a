"""Objects as `google.protobuf.Struct`: JSON inside a message, so that grpcurl takes and shows manifests."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value

from libs.errors import InvalidError

_EXACT = 2**53  # a Struct's numbers are doubles
_DEEPEST = 32  # protobuf reads messages inside messages to 100, of which an object in an object takes three


def struct_of(document: dict[str, Any]) -> Struct:
    """The document as a message. InvalidError names the path of what is no JSON, or not in a Struct."""
    struct = Struct()
    _fill(struct, document, "", 1)
    return struct


def document_of(struct: Struct) -> dict[str, Any]:
    """What the message says. Whole numbers are ints; InvalidError beyond what doubles hold exactly."""
    return {name: _plain(value) for name, value in struct.fields.items()}


def _fill(struct: Struct, document: dict[str, Any], path: str, depth: int) -> None:
    for name, thing in document.items():
        if not isinstance(name, str):
            raise InvalidError(violations={path or str(name): f"the key {name!r} is no text"})
        _set(struct.fields[name], thing, f"{path}.{name}" if path else name, depth)


def _set(value: Value, thing: Any, path: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise InvalidError(violations={path: f"is nested deeper than {_DEEPEST} levels"})
    match thing:
        case None:
            value.null_value = NULL_VALUE
        case bool():
            value.bool_value = thing
        case int() | float():
            if wrong := _no_number(thing):
                raise InvalidError(violations={path: wrong})
            value.number_value = thing
        case str():
            try:
                value.string_value = thing
            except UnicodeEncodeError:
                raise InvalidError(violations={path: "is no Unicode text"}) from None
        case dict():
            value.struct_value.SetInParent()  # an empty one is one, too
            _fill(value.struct_value, thing, path, depth + 1)
        case list() | tuple():
            value.list_value.SetInParent()
            for index, each in enumerate(thing):
                _set(value.list_value.values.add(), each, f"{path}[{index}]", depth + 1)
        case _:
            raise InvalidError(violations={path: f"{type(thing).__name__} is nothing that JSON has"})


def _no_number(number: float) -> str:
    """Why it cannot be a number of a Struct; "" if it can."""
    if isinstance(number, float) and not math.isfinite(number):
        return f"{number} is no JSON number"
    if abs(number) > _EXACT and int(number) == number:
        return f"{int(number)} is beyond the whole numbers that JSON numbers hold exactly"
    return ""


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            if wrong := _no_number(number):
                raise InvalidError(wrong)
            return int(number) if number.is_integer() else number
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
