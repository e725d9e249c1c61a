"""Just enough HTTP/2 to say what no proper client says. It does not parse answers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct

from libs.identity import Identity

_END_STREAM, _END_HEADERS = 1, 4
_SILENCE_SECONDS = 0.5
_DATA, _HEADERS, _RST_STREAM, _SETTINGS = 0, 1, 3, 4

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
"""The client's greeting and empty settings."""


async def say(
    port: int, identity: Identity, words: bytes, maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> None:
    """Connects with this certificate, trusting whoever is there, says it, and hears the answer out."""
    await asyncio.to_thread(_say, port, identity, words, maximum)


def _say(port: int, identity: Identity, words: bytes, maximum: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = maximum
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(identity.certificate, identity.key)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(words)
        _hear_out(connection)


def headers(path: str, stream: int = 1) -> bytes:
    """A gRPC request's header block, as literals without indexing."""
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": "test",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return _frame(_HEADERS, _END_HEADERS, stream, block)


def data(body: bytes, stream: int = 1) -> bytes:
    """The request's body, whole."""
    return _frame(_DATA, _END_STREAM, stream, body)


def reset(stream: int) -> bytes:
    """The caller leaves."""
    return _frame(_RST_STREAM, 0, stream, struct.pack(">I", 8))


def message(body: bytes) -> bytes:
    """A gRPC message in its frame."""
    return struct.pack(">BI", 0, len(body)) + body


def _hear_out(connection: ssl.SSLSocket) -> None:
    """Reads until the server ends a stream, closes the connection, or falls silent."""
    connection.settimeout(_SILENCE_SECONDS)
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
            while len(received) >= 9 and len(received) >= 9 + (size := int.from_bytes(received[:3])):
                kind, flags = received[3], received[4]
                received = received[9 + size :]
                if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                    return
    except OSError:
        return


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
