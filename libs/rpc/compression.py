"""Compressed messages, for the front whose transport leaves them to us. Answers are not compressed.

Texts are those of gRPC's core, so that both fronts say the same.
"""

from __future__ import annotations

import zlib

from libs.errors import ExhaustedError, InternalError, UnimplementedError

ACCEPTED = b"identity,deflate,gzip"
"""For `grpc-accept-encoding`."""

_WINDOWS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


def inflate(encoding: bytes | None, message: bytes, most: int) -> bytes:
    """The message as it was. It stops at `most` bytes, however many there would be: ExhaustedError.

    UnimplementedError if we do not know the encoding, InternalError if the message is not of it.
    """
    if encoding is None or encoding == b"identity":
        raise InternalError("Compression bit set but no encoding configured")
    if (window := _WINDOWS.get(encoding)) is None:
        raise UnimplementedError(f"grpc-encoding is none of {ACCEPTED.decode()}")
    inflater = zlib.decompressobj(window)
    try:
        plain = inflater.decompress(message, most + 1)
    except zlib.error as error:
        raise InternalError("Decompression failed due to zlib error") from error
    if len(plain) > most:
        raise ExhaustedError("Decompressed message larger than max")
    if not inflater.eof or inflater.unused_data:
        raise InternalError("Decompression failed due to data error")
    return plain
