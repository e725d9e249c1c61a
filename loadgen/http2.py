"""As much of HTTP/2 as the lean client speaks: frames and header fields, as bytes."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW, MAX_FRAME = 1, 2, 4, 5
CANCEL = 8
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A whole one."""
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"), payload)


def field(name_and_value: tuple[str, str]) -> bytes:
    """A header field that says itself: neither compressed nor to be remembered."""
    return b"\0" + b"".join(map(_text, name_and_value))


def unpadded(flags: int, payload: bytes) -> bytes:
    """What a frame carries."""
    return payload[1 : len(payload) - payload[0]] if flags & PADDED else payload


def _text(value: str) -> bytes:
    data = value.encode()
    if len(data) > 126:
        raise ValueError(f"too long for a header of this client: {value!r}")
    return bytes([len(data)]) + data
