"""What every client asks of every front, as one table."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue

_MIB = 1024 * 1024
_LARGE = 3_900_000


class Ends(Enum):
    """Who ends the call, and how the harness helps."""

    BY_ITSELF = "by itself"
    CANCELLED = "the client leaves once the handler runs"
    DEADLINE = "the handler runs until the deadline"
    DRAINED = "the server is stopped once the handler runs"


@dataclass(frozen=True)
class Part:
    """A message: its first bytes and so many zeros. Large ones need not be carried around."""

    head: bytes
    zeros: int = 0

    def whole(self) -> bytes:
        """The message."""
        return self.head + bytes(self.zeros)


@dataclass(frozen=True)
class Case:
    """One call. `kind` is how the client sees the method: cardinalities are the server's to enforce.

    `own_words`: the client itself makes up the text. `body`: what only a raw speaker can send, with `extra`
    headers. `differs` is why the two fronts do not answer alike.
    """

    name: str
    method: str
    requests: Sequence[Part] = ()
    kind: str = "unary_unary"
    ends: Ends = Ends.BY_ITSELF
    seconds: float = 20.0
    metadata: Sequence[tuple[str, str | bytes]] = ()
    compression: str = ""
    certificate: bool = True
    before_the_server: bool = False
    keepalive: bool = False
    own_words: bool = False
    body: bytes | None = None
    extra: Sequence[tuple[str, str]] = ()
    differs: str = ""

    @property
    def path(self) -> str:
        """The method's full name."""
        return self.method if "/" in self.method else f"/test.Probe/{self.method}"


def _part(message: Message) -> Part:
    return Part(message.SerializeToString())


def _numbers(*numbers: int) -> list[Part]:
    return [_part(Int64Value(value=number)) for number in numbers]


def _bytes(*values: bytes) -> list[Part]:
    return [_part(BytesValue(value=value)) for value in values]


def _text(text: str) -> list[Part]:
    return [_part(StringValue(value=text))]


def _zeros(size: int) -> list[Part]:
    """A BytesValue that has this size on the wire."""
    for length in (1, 2, 3, 4, 5):
        value = size - 1 - length
        head = b"\x0a" + _varint(value)
        if len(head) == 1 + length:
            return [Part(head, value)]
    raise ValueError(f"no BytesValue has {size} bytes")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


_HELLO = _part(BytesValue(value=b"hello")).head
_ZIPPED = gzip.compress(_HELLO)
_GZIP = [("grpc-encoding", "gzip")]
_METADATA: Sequence[tuple[str, str | bytes]] = (
    ("x-text", "a b,c%20"),
    ("x-raw-bin", b"\0\xff\x80,"),
    ("x-empty-bin", b""),
    ("x-twice", "1"),
    ("x-twice", "2"),
)

_CORE_SPEAKS = "grpcio: gRPC's core answers before our code, so there is no ErrorInfo"
_CORE_PARSES = "grpcio: gRPC's core calls a header that it cannot read INTERNAL"
_CORE_CUTS = "grpcio: gRPC's core shows the half message as no message"

CASES: Sequence[Case] = (
    Case("unary", "Say", _bytes(b"hello")),
    Case("unary, empty message", "Say", _bytes(b"")),
    Case("server streaming", "Count", _numbers(3), "unary_stream"),
    Case("server streaming, no message", "Count", _numbers(0), "unary_stream"),
    Case("server streaming, 4 MiB", "Pour", _numbers(64), "unary_stream"),
    Case("client streaming", "Sum", _numbers(1, 2, 39), "stream_unary"),
    Case("client streaming, no message", "Sum", (), "stream_unary"),
    Case("bidirectional", "Chat", _bytes(b"a", b"", b"c"), "stream_stream"),
    Case("metadata, binary and repeated too", "Meta", _text(""), metadata=_METADATA),
    Case("3.9 MB there and back", "Say", _zeros(_LARGE)),
    Case("the largest request, 4 MiB", "Size", _zeros(4 * _MIB)),
    Case("one byte too large", "Size", _zeros(4 * _MIB + 1), differs=_CORE_SPEAKS),
    Case("8 MiB", "Size", _zeros(8 * _MIB), differs=_CORE_SPEAKS),
    Case(
        "too large, in a stream",
        "Chat",
        [*_bytes(b"a"), *_zeros(4 * _MIB + 1)],
        "stream_stream",
        differs=_CORE_SPEAKS,
    ),
    Case("answer above the client's cap", "Make", _numbers(5_000_000), own_words=True),
    Case("gzip", "Size", _zeros(100_000), compression="gzip"),
    Case("deflate", "Size", _zeros(100_000), compression="deflate"),
    Case("gzip, in streams", "Chat", _bytes(b"a" * 999, b"b" * 999), "stream_stream", compression="gzip"),
    Case("gzip, 5 MiB of zeros", "Size", _zeros(5 * _MIB), compression="gzip", differs=_CORE_SPEAKS),
    Case("gzip, 64 MiB of zeros", "Size", _zeros(64 * _MIB), compression="gzip", differs=_CORE_SPEAKS),
    Case(
        "unknown compression",
        "Say",
        _bytes(b"hello"),
        compression="made-up",
        differs=_CORE_PARSES,
    ),
    Case("deadline", "Wait", _bytes(b""), ends=Ends.DEADLINE, seconds=0.3, own_words=True),
    Case("deadline of a stream", "Hold", _bytes(b""), "unary_stream", Ends.DEADLINE, 0.3, own_words=True),
    Case("client cancels", "Wait", _bytes(b""), ends=Ends.CANCELLED, own_words=True),
    Case("client cancels a stream", "Hold", _bytes(b""), "unary_stream", Ends.CANCELLED, own_words=True),
    Case("error", "Fail", _text("not found")),
    Case("error with field violations", "Fail", _text("violations")),
    Case("error of a service's own", "Fail", _text("own reason")),
    Case("error above any header limit", "Fail", _text("long")),
    Case("error in a stream", "Stumble", _text("not found"), "unary_stream"),
    Case("bug", "Fail", _text("no such error")),
    Case("bytes that are no message", "Say", [Part(b"\x0a\xff")]),
    Case("unknown method", "Missing", _bytes(b"")),
    Case("unknown service", "/test.Absent/Say", _bytes(b"")),
    Case("method for nobody", "Secret", _bytes(b"")),
    Case("two messages for one", "Say", _bytes(b"a", b"b"), "stream_unary"),
    Case("no message for one", "Say", (), "stream_unary"),
    Case("headers that end the request", "Say", body=b""),
    Case("two messages for one, at once", "Say", body=2 * _framed(_HELLO)),
    Case("half a message", "Say", body=_framed(_HELLO)[:-2], differs=_CORE_CUTS),
    Case("half a frame", "Say", body=_framed(_HELLO)[:3], differs=_CORE_CUTS),
    Case("half a message, in a stream", "Sum", body=_framed(_HELLO)[:-2], differs=_CORE_CUTS),
    Case("gzip that is none", "Say", body=_framed(b"junk", 1), extra=_GZIP, differs=_CORE_SPEAKS),
    Case("gzip cut short", "Say", body=_framed(_ZIPPED[:-9], 1), extra=_GZIP, differs=_CORE_SPEAKS),
    Case("compressed, without saying how", "Say", body=_framed(_ZIPPED, 1), differs=_CORE_SPEAKS),
    Case("plain, in a compressed call", "Say", body=_framed(_HELLO), extra=_GZIP),
    Case(
        "no timeout that gRPC knows",
        "Say",
        body=_framed(_HELLO),
        extra=[("grpc-timeout", "soon")],
        differs=_CORE_PARSES,
    ),
    Case(
        "no certificate",
        "Say",
        _bytes(b"hello"),
        certificate=False,
        own_words=True,
        differs="grpcio: the handshake fails; h2corn: the doorway refuses, with a code and a log line",
    ),
    Case("call before the server is there", "Say", _bytes(b"hello"), before_the_server=True),
    Case("server drains during the call", "Wait", _bytes(b"hello"), ends=Ends.DRAINED),
)

LONG: Sequence[Case] = (
    Case(
        "keepalive every 10 s, for 35 s",
        "Wait",
        _bytes(b""),
        ends=Ends.DEADLINE,
        seconds=35,
        keepalive=True,
        own_words=True,
    ),
)
"""What takes its time."""
