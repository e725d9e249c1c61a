"""A service of all four kinds whose messages are plain bytes, for tests of what carries them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from libs.rpc.call import Call

SERVICE = "test.Echo"
_KINDS = {
    "Say": "unary_unary",
    "Size": "unary_unary",
    "Make": "unary_unary",
    "Meta": "unary_unary",
    "Fail": "unary_unary",
    "Wait": "unary_unary",
    "Count": "unary_stream",
    "Watch": "unary_stream",
    "Sum": "stream_unary",
    "Chat": "stream_stream",
}

CALLERS: Mapping[str, frozenset[str]] = {
    **{f"/{SERVICE}/{name}": frozenset({"user", "cp/gateway"}) for name in _KINDS},
    **dict.fromkeys(
        [
            "/grpc.health.v1.Health/Check",
            "/grpc.health.v1.Health/Watch",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ],
        frozenset({"*"}),
    ),
}
"""Users and the gateway may call everything; nobody may call Secret."""


class Echo:
    """Its events say what happened to the handlers that park."""

    def __init__(self) -> None:
        self.error: Exception = RuntimeError("the password is swordfish")
        self.first_errors: list[Exception] = []
        self.calls: list[Call] = []
        self.parked = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.undelivered = asyncio.Semaphore(0)
        self.released = asyncio.Event()

    def register(self, server: Any) -> None:
        """What `serving` takes."""
        handlers = {name: self._handler(name, kind) for name, kind in _KINDS.items()}
        handlers["Secret"] = self._handler("Say", "unary_unary")
        server.add_registered_method_handlers(SERVICE, handlers)

    def _handler(self, name: str, kind: str) -> Any:
        return getattr(grpc, f"{kind}_rpc_method_handler")(
            getattr(self, name), request_deserializer=bytes, response_serializer=bytes
        )

    async def Say(self, request: bytes, context: object) -> bytes:
        """The request."""
        self.calls.append(Call.of(context))
        return request

    async def Size(self, request: bytes, context: object) -> bytes:
        """The request's size."""
        return b"%d" % len(request)

    async def Make(self, request: bytes, context: object) -> bytes:
        """So many bytes."""
        return bytes(int(request))

    async def Meta(self, request: bytes, context: object) -> bytes:
        """The caller's name, its metadata, and the time that is left."""
        call = Call.of(context)
        return repr((call.caller.name, dict(call.metadata), call.time_remaining())).encode()

    async def Fail(self, request: bytes, context: object) -> bytes:
        """Raises each of `first_errors` once, then `error` for ever."""
        raise self.first_errors.pop(0) if self.first_errors else self.error

    async def Wait(self, request: bytes, context: object) -> bytes:
        """The request, once released."""
        Call.of(context).on_undelivered(self.undelivered.release)
        await self._park()
        return request

    async def Count(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        """The numbers below."""
        for number in range(int(request)):
            yield b"%d" % number

    async def Watch(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        """The request at once, and again when released."""
        yield request
        await self._park()
        yield request

    async def Sum(self, requests: AsyncIterator[bytes], context: object) -> bytes:
        """The sum."""
        return b"%d" % sum([int(request) async for request in requests])

    async def Chat(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        """Each request; `park` waits until released."""
        async for request in requests:
            yield request
            if request == b"park":
                await self._park()

    async def _park(self) -> None:
        self.parked.release()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
