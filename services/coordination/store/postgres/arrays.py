"""Arrays as PostgreSQL reads them on the wire, made in one piece: the driver's own way costs more than
a microsecond an element.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format

T = TypeVar("T")

_NULL = b"\xff\xff\xff\xff"
_head = struct.Struct(">iiIii").pack
_length = struct.Struct(">i").pack
_int2 = struct.Struct(">ih").pack
_int4 = struct.Struct(">ii").pack
_int8 = struct.Struct(">iq").pack


class Array(bytes):
    """The binary form of an array; each element type has its own class, since the driver picks by class."""


class Uuids(Array):
    """uuid[]"""


class Int2s(Array):
    """int2[]"""


class Int4s(Array):
    """int4[]"""


class Int8s(Array):
    """int8[]"""


class Texts(Array):
    """text[]"""


class Blobs(Array):
    """bytea[]"""


class Bools(Array):
    """bool[]"""


_OIDS: dict[type[Array], tuple[int, int]] = {  # the array's, its element's
    Uuids: (2951, 2950),
    Int2s: (1005, 21),
    Int4s: (1007, 23),
    Int8s: (1016, 20),
    Texts: (1009, 25),
    Blobs: (1001, 17),
    Bools: (1000, 16),
}


def register(connection: AsyncConnection[Any]) -> None:
    """Teach a connection to send these."""
    for array, (oid_, _) in _OIDS.items():

        class Raw(Dumper):
            format = Format.BINARY
            oid = oid_

            def dump(self, obj: Any) -> bytes:
                return bytes(obj)

        connection.adapters.register_dumper(array, Raw)


def _array(kind: type[T], body: bytes, count: int) -> T:
    element = _OIDS[kind][1]  # type: ignore[index]
    return kind(_head(1, 0, element, count, 1) + body if count else _head(0, 0, element, 0, 0)[:12])  # type: ignore[call-arg]


def _packed(values: Sequence[Any], one: Callable[[Any], bytes]) -> bytes:
    count = len(values)
    if count > 1 and values.count(values[0]) == count:
        return one(values[0]) * count
    return b"".join([one(value) for value in values])


def uuids(ids: Sequence[str]) -> Uuids:
    """Of UUIDs in their canonical text."""
    hexadecimal = "00000010" + "00000010".join(ids).replace("-", "") if ids else ""
    return _array(Uuids, bytes.fromhex(hexadecimal), len(ids))


def int2s(values: Sequence[int]) -> Int2s:
    return _array(Int2s, _packed(values, lambda v: _int2(2, v)), len(values))


def int4s(values: Sequence[int]) -> Int4s:
    return _array(Int4s, _packed(values, lambda v: _int4(4, v)), len(values))


def int8s(values: Sequence[int | None]) -> Int8s:
    return _array(Int8s, _packed(values, lambda v: _NULL if v is None else _int8(8, v)), len(values))


def texts(values: Sequence[str | None]) -> Texts:
    return _array(Texts, _packed(values, _text), len(values))


def blobs(values: Sequence[bytes]) -> Blobs:
    return _array(Blobs, _packed(values, lambda v: _length(len(v)) + v), len(values))


def bools(values: Sequence[bool]) -> Bools:
    return _array(Bools, _packed(values, lambda v: b"\0\0\0\1\1" if v else b"\0\0\0\1\0"), len(values))


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    data = value.encode()
    return _length(len(data)) + data


def given(values: Sequence[str | None]) -> Texts | None:
    """As `texts`; None, which is cheaper, where all are None."""
    return None if values.count(None) == len(values) else texts(values)
