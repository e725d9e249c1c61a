"""Tests do not fail for what gRPC still has to say to the loop of an earlier one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from libs.testing.loop import Loop


def errors(*mains: Callable[[], Coroutine[Any, Any, None]]) -> list[dict[str, Any]]:
    """What the loops, one after the other, had to complain about."""
    seen: list[dict[str, Any]] = []
    for main in mains:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: seen.append(context))
            runner.run(main())
    return seen


def test_a_call_that_outlives_its_loop_troubles_no_later_one():
    with socket.create_server(("127.0.0.1", 0)) as nobody_accepts:
        address = f"127.0.0.1:{nobody_accepts.getsockname()[1]}"
        kept = []

        def calling(channel: Any, seconds: float) -> Any:
            return channel.unary_unary("/a/b")(b"", timeout=seconds)

        async def begins() -> None:
            kept.append(calling(grpc.aio.insecure_channel(address), 0.2))
            await asyncio.sleep(0.05)  # it is under way

        async def outlives() -> None:
            async with grpc.aio.insecure_channel(address) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                    await calling(channel, 0.5)

        assert errors(begins, outlives) == []


def test_others_may_not_call_a_closed_loop():
    loop = Loop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(print)
