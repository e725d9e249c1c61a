"""What a call may do and how it may end, on both fronts."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest

from libs.errors import (
    ConflictError,
    DeadlineError,
    DeniedError,
    ExhaustedError,
    InternalError,
    InvalidError,
    MeshError,
    NotFoundError,
    UnavailableError,
    UnimplementedError,
)


class LeaseLostError(ConflictError):
    """A service's own."""

    reason = "TEST_LEASE_LOST"


def unary(channel, name):
    return channel.unary_unary(f"/test.Echo/{name}")


async def soon(semaphore):
    async with asyncio.timeout(5):
        await semaphore.acquire()


async def each(*messages):
    for message in messages:
        yield message


async def test_one_message_for_one(channel):
    assert await unary(channel, "Say")(b"hello") == b"hello"
    assert await unary(channel, "Say")(b"") == b""


async def test_many_messages_for_one(channel):
    count = channel.unary_stream("/test.Echo/Count")
    assert [number async for number in count(b"3")] == [b"0", b"1", b"2"]
    assert [number async for number in count(b"0")] == []


async def test_one_message_for_many(channel):
    add = channel.stream_unary("/test.Echo/Sum")
    assert await add(each(b"1", b"2", b"39")) == b"42"
    assert await add(each()) == b"0"


async def test_many_messages_for_many(channel):
    chat = channel.stream_stream("/test.Echo/Chat")
    assert [answer async for answer in chat(each(b"a", b"", b"c"))] == [b"a", b"", b"c"]


async def test_a_conversation_takes_turns(channel):
    call = channel.stream_stream("/test.Echo/Chat")()
    for word in (b"one", b"two"):
        await call.write(word)
        assert await call.read() == word
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_many_calls_at_once_do_not_mix(channel):
    words = [b"%d" % number for number in range(200)]
    assert await asyncio.gather(*(unary(channel, "Say")(word) for word in words)) == words


async def test_a_deadline_ends_the_call_and_its_handler(channel, echo):
    with pytest.raises(DeadlineError):
        await unary(channel, "Wait")(b"", timeout=0.3)
    await soon(echo.cancelled)


async def test_a_call_with_too_little_time_does_not_begin(channel, echo):
    with pytest.raises(DeadlineError):
        await unary(channel, "Say")(b"", timeout=0.0005)
    assert not echo.calls


async def test_a_call_without_a_deadline_gets_the_default(mesh, served):
    async with mesh.dial_as("user", served, timeout=7.0) as channel:
        _, _, left = eval(await unary(channel, "Meta")(b""))
        assert 5 < left <= 7


async def test_metadata_arrives(channel):
    sent = (("x-text", "a b"), ("x-raw-bin", b"\0\xff"))
    name, metadata, _ = eval(await unary(channel, "Meta")(b"", metadata=sent))
    assert name == "someone"
    assert metadata["x-text"] == "a b"
    assert metadata["x-raw-bin"] == b"\0\xff"


async def test_a_caller_that_leaves_a_unary_call_cancels_its_handler(channel, echo):
    call = asyncio.ensure_future(unary(channel, "Wait")(b""))
    await soon(echo.parked)
    call.cancel()
    await soon(echo.cancelled)
    await soon(echo.undelivered)


async def test_a_caller_that_leaves_a_stream_cancels_its_handler(channel, echo):
    call = channel.unary_stream("/test.Echo/Watch")(b"x")
    assert await call.read() == b"x"
    call.cancel()
    await soon(echo.cancelled)


async def test_a_caller_that_leaves_a_conversation_cancels_its_handler(channel, echo):
    call = channel.stream_stream("/test.Echo/Chat")()
    await call.write(b"park")
    await soon(echo.parked)
    call.cancel()
    await soon(echo.cancelled)


async def test_a_delivered_answer_is_not_undone(channel, echo):
    call = asyncio.ensure_future(unary(channel, "Wait")(b"x"))
    await soon(echo.parked)
    echo.released.set()
    assert await call == b"x"
    await unary(channel, "Say")(b"")
    assert echo.undelivered.locked()


async def test_a_request_above_the_cap_is_refused_and_the_server_lives(channel):
    with pytest.raises(ExhaustedError):
        await unary(channel, "Size")(bytes(4 * 1024 * 1024 + 1))
    with pytest.raises(ExhaustedError):
        await channel.stream_unary("/test.Echo/Sum")(each(b"1", bytes(5_000_000)))
    assert await unary(channel, "Size")(bytes(4 * 1024 * 1024)) == b"4194304"


async def test_a_large_answer_arrives(channel):
    assert len(await unary(channel, "Make")(b"3145728")) == 3 * 1024 * 1024


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("no queue 'demo/ä'"),
        DeniedError("no"),
        UnimplementedError("later"),
        LeaseLostError("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_arrives_as_what_it_was(channel, echo, error):
    echo.error = error
    with pytest.raises(MeshError) as raised:
        await unary(channel, "Fail")(b"")
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)


async def test_field_violations_arrive(channel, echo):
    echo.error = InvalidError("refused", {"items[0].id": "a UUID", "queue": "ns/näme"})
    with pytest.raises(InvalidError, match="refused") as raised:
        await unary(channel, "Fail")(b"")
    assert raised.value.violations == {"items[0].id": "a UUID", "queue": "ns/näme"}


async def test_an_error_of_any_size_arrives(channel, echo):
    echo.error = InvalidError("ä%\n" * 3000, {f"items[{number}].payload": "ß" * 999 for number in range(999)})
    with pytest.raises(InvalidError) as raised:
        await unary(channel, "Fail")(b"")
    assert raised.value.violations["items[0].payload"].startswith("ßß")


async def test_unavailable_is_tried_again(channel, echo):
    echo.first_errors = [UnavailableError("busy"), UnavailableError("busy")]
    echo.error = NotFoundError("at the third try")
    with pytest.raises(NotFoundError, match="at the third try"):
        await unary(channel, "Fail")(b"")


async def test_a_bug_is_internal_and_says_nothing(channel, caplog):
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError) as raised:
        await unary(channel, "Fail")(b"")
    assert str(raised.value) == "internal error"
    assert "swordfish" in caplog.text


async def test_a_bug_in_a_stream_is_internal_too(channel):
    with pytest.raises(InternalError, match="internal error"):
        await channel.unary_stream("/test.Echo/Count")(b"not a number").read()


async def test_an_unknown_method_is_unimplemented(channel):
    with pytest.raises(UnimplementedError):
        await unary(channel, "Nothing")(b"")
    with pytest.raises(UnimplementedError):
        await channel.unary_unary("/no.Service/Say")(b"")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read(channel, compression):
    assert await unary(channel, "Size")(bytes(10_000), compression=compression) == b"10000"
    add = channel.stream_unary("/test.Echo/Sum")
    assert await add(each(b"1" * 200, b"2" * 200), compression=compression) == b"3" * 200


async def test_what_inflates_above_the_cap_is_refused_and_the_server_lives(channel):
    with pytest.raises(ExhaustedError, match="larger than max"):
        await unary(channel, "Size")(bytes(50_000_000), compression=grpc.Compression.Gzip)
    whole = bytes(4 * 1024 * 1024)
    assert await unary(channel, "Size")(whole, compression=grpc.Compression.Gzip) == b"4194304"


async def test_a_request_of_one_message_has_exactly_one(channel):
    say = channel.stream_unary("/test.Echo/Say")
    with pytest.raises(InvalidError, match="no message"):
        await say(each(), timeout=5)
    with pytest.raises(InvalidError, match="more than one message"):
        await say(each(b"one", b"two"), timeout=5)


async def test_failures_are_logged_with_caller_and_reason(channel, echo, caplog):
    echo.error = NotFoundError("no such queue")
    with caplog.at_level(logging.INFO), pytest.raises(NotFoundError):
        await unary(channel, "Fail")(b"")
    assert "NOT_FOUND: no such queue" in caplog.text
