"""HTTP/2 as no proper client speaks it: frames are made by hyperframe and sent as they come."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, RstStreamFrame, SettingsFrame

from libs.identity import Identity

_SILENCE_SECONDS = 0.5
_CANCEL = 8

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
"""The client's greeting and empty settings."""


class Connection:
    """A TLS connection to a server on loopback, trusting whoever is there.

    OSError (ssl.SSLError is one) while it opens if the handshake fails; in TLS 1.3 a refused certificate
    shows only at the first reading.
    """

    def __init__(
        self,
        port: int,
        identity: Identity | None,
        *,
        maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        receive_buffer: int = 0,
        patience: float = 10.0,
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = maximum
        context.set_alpn_protocols(["h2"])
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        self.closed = ""  # how the server ended it, once it has
        plain = socket.socket()
        try:
            plain.settimeout(patience)
            if receive_buffer:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            plain.connect(("127.0.0.1", port))
            self._socket = context.wrap_socket(plain)
        except OSError:
            plain.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def say(self, words: bytes, seconds: float = 10.0) -> int:
        """Sends it piece by piece; how much went out before the server closed or took nothing for so long."""
        self._socket.settimeout(seconds)
        sent = 0
        try:
            while sent < len(words):
                sent += self._socket.send(words[sent : sent + 65536])
        except OSError as error:
            self.closed = self.closed or type(error).__name__
        return sent

    def hear(self, silence: float = _SILENCE_SECONDS) -> Iterator[Frame]:
        """What the server sends, until it closes the connection or says nothing for so long."""
        self._socket.settimeout(silence)
        received = b""
        try:
            while chunk := self._socket.recv(65536):
                received += chunk
                while len(received) >= 9:
                    frame, size = Frame.parse_frame_header(memoryview(received)[:9])
                    if len(received) < 9 + size:
                        break
                    frame.parse_body(memoryview(received[9 : 9 + size]))
                    received = received[9 + size :]
                    yield frame
            self.closed = self.closed or "closed"
        except TimeoutError:
            return
        except OSError as error:
            self.closed = getattr(error, "reason", None) or type(error).__name__


async def say(
    port: int, identity: Identity, words: bytes, maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> None:
    """Connects with this certificate, says it, and hears the answer out: until the server ends a stream,
    closes the connection, or falls silent."""

    def speak() -> None:
        with suppress(OSError), Connection(port, identity, maximum=maximum) as connection:
            connection.say(words)
            for frame in connection.hear():
                if isinstance(frame, RstStreamFrame) or "END_STREAM" in frame.flags:
                    return

    await asyncio.to_thread(speak)


def headers(path: str, stream: int = 1, *, end: bool = False, extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """A gRPC request's header block, as literals that leave the peer's table as it is."""
    fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *extra,
    ]
    frame = HeadersFrame(stream, Encoder().encode([(*field, True) for field in fields]))
    frame.flags.add("END_HEADERS")
    if end:
        frame.flags.add("END_STREAM")
    return frame.serialize()


def data(body: bytes, stream: int = 1, *, end: bool = True) -> bytes:
    """A piece of the request's body; the last one unless told otherwise."""
    frame = DataFrame(stream, body)
    if end:
        frame.flags.add("END_STREAM")
    return frame.serialize()


def reset(stream: int) -> bytes:
    """The caller leaves."""
    return RstStreamFrame(stream, error_code=_CANCEL).serialize()


def message(body: bytes) -> bytes:
    """A gRPC message in its frame."""
    return struct.pack(">BI", 0, len(body)) + body
