"""Inflating what callers send, and no more of it than is allowed."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from libs.errors import ExhaustedError, InternalError, UnimplementedError
from libs.rpc.compression import inflate

BOMB = zlib.compress(bytes(64 * 1024 * 1024))


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
@pytest.mark.parametrize("plain", [b"", b"hello", bytes(1000)])
def test_a_message_comes_back_as_it_was(encoding, compress, plain):
    assert inflate(encoding, compress(plain), 1000) == plain


def test_one_byte_above_the_cap_is_too_much():
    with pytest.raises(ExhaustedError):
        inflate(b"deflate", zlib.compress(bytes(1001)), 1000)


def test_a_bomb_is_not_inflated_beyond_the_cap():
    tracemalloc.start()
    try:
        with pytest.raises(ExhaustedError):
            inflate(b"deflate", BOMB, 1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


@pytest.mark.parametrize(
    "message",
    [b"", b"junk", gzip.compress(b"hello")[:-1], gzip.compress(b"hello") + b"x"],
    ids=["nothing", "junk", "cut", "more"],  # gzip writes the time, and workers must agree on names
)
def test_what_is_not_of_the_encoding_is_an_error(message):
    with pytest.raises(InternalError, match="Decompression failed"):
        inflate(b"gzip", message, 1000)


def test_an_encoding_that_we_do_not_know_is_named_with_those_that_we_do():
    with pytest.raises(UnimplementedError, match="gzip"):
        inflate(b"br", b"", 1000)


@pytest.mark.parametrize("encoding", [None, b"identity"])
def test_compressed_by_nothing_is_an_error(encoding):
    with pytest.raises(InternalError, match="no encoding"):
        inflate(encoding, b"", 1000)
