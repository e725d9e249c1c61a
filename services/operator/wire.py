"""Objects as google.protobuf.Struct and back."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format, struct_pb2

from libs.cluster import Object
from libs.errors import InvalidError


def struct_of(thing: Object) -> struct_pb2.Struct:
    """The object as a Struct, in which every number is a double."""
    struct = struct_pb2.Struct()
    struct.update(thing)
    return struct


def object_of(struct: struct_pb2.Struct) -> Object:
    """The object in a Struct, with whole numbers as ints again: Kubernetes has no use for 3.0.
    InvalidError if it holds a number that JSON cannot say."""
    try:
        document = json_format.MessageToDict(struct)
    except ValueError:
        raise InvalidError(violations={"object": "has a number that is not finite"}) from None
    found: Object = _whole(document)
    return found


def _whole(value: Any) -> Any:
    match value:
        case dict():
            return {name: _whole(inner) for name, inner in value.items()}
        case list():
            return [_whole(inner) for inner in value]
        case float() if value.is_integer():
            return int(value)
    return value
