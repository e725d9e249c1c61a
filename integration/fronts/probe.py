"""A service of all four kinds, of well-known types so that any client can call it: see probe.proto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue

from libs.errors import ConflictError, InvalidError, MeshError, NotFoundError
from libs.rpc.call import Call

SERVICE = "test.Probe"
KINDS: Mapping[str, tuple[str, type[Message], type[Message]]] = {
    "Say": ("unary_unary", BytesValue, BytesValue),
    "Size": ("unary_unary", BytesValue, Int64Value),
    "Make": ("unary_unary", Int64Value, BytesValue),
    "Meta": ("unary_unary", StringValue, StringValue),
    "Fail": ("unary_unary", StringValue, StringValue),
    "Wait": ("unary_unary", BytesValue, BytesValue),
    "Secret": ("unary_unary", BytesValue, BytesValue),
    "Count": ("unary_stream", Int64Value, Int64Value),
    "Pour": ("unary_stream", Int64Value, BytesValue),
    "Hold": ("unary_stream", BytesValue, BytesValue),
    "Stumble": ("unary_stream", StringValue, StringValue),
    "Sum": ("stream_unary", Int64Value, Int64Value),
    "Chat": ("stream_stream", BytesValue, BytesValue),
}
"""Method → its kind, what it takes, what it answers."""

_OPEN = frozenset({"*"})
CALLERS: Mapping[str, frozenset[str]] = {
    **{f"/{SERVICE}/{name}": frozenset({"user"}) for name in KINDS if name != "Secret"},
    "/grpc.health.v1.Health/Check": _OPEN,
    "/grpc.health.v1.Health/Watch": _OPEN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _OPEN,
}
_POURED = BytesValue(value=bytes(64 * 1024))


class LeaseLostError(ConflictError):
    """Stands for a service's own error."""

    reason = "TEST_LEASE_LOST"


def _error(name: str) -> MeshError:
    match name:
        case "not found":
            return NotFoundError("no queue 'demo/ä'")
        case "violations":
            return InvalidError("refused", {"items[0].id": "a UUID", "queue": "ns/näme"})
        case "own reason":
            return LeaseLostError("gone: 100 %\nsecond line")
        case "long":
            violations = {f"items[{number}].payload": "ß" * 999 for number in range(999)}
            return InvalidError("ä%\n" * 3000, violations)
    raise KeyError(name)


class Probe:
    """Its semaphores say what happened to the handlers that park."""

    def __init__(self) -> None:
        self.parked = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.released = asyncio.Event()

    def register(self, server: Any) -> None:
        """What `serving` takes."""
        handlers = {
            name: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(self, name),
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (kind, request, _) in KINDS.items()
        }
        server.add_registered_method_handlers(SERVICE, handlers)

    async def Say(self, request: BytesValue, context: object) -> BytesValue:
        """The request."""
        return request

    async def Secret(self, request: BytesValue, context: object) -> BytesValue:
        """Nobody may."""
        return request

    async def Size(self, request: BytesValue, context: object) -> Int64Value:
        """How many bytes the request holds."""
        return Int64Value(value=len(request.value))

    async def Make(self, request: Int64Value, context: object) -> BytesValue:
        """So many bytes."""
        return BytesValue(value=bytes(request.value))

    async def Meta(self, request: StringValue, context: object) -> StringValue:
        """The metadata whose keys begin with x-."""
        metadata = {key: str(value) for key, value in Call.of(context).metadata.items() if key[:2] == "x-"}
        return StringValue(value=json.dumps(metadata, sort_keys=True))

    async def Fail(self, request: StringValue, context: object) -> StringValue:
        """Raises the error of that name; a bug if there is none."""
        raise _error(request.value)

    async def Wait(self, request: BytesValue, context: object) -> BytesValue:
        """The request, once released."""
        await self._park()
        return request

    async def Count(self, request: Int64Value, context: object) -> AsyncIterator[Int64Value]:
        """The numbers below."""
        for number in range(request.value):
            yield Int64Value(value=number)

    async def Pour(self, request: Int64Value, context: object) -> AsyncIterator[BytesValue]:
        """So many messages of 64 KiB."""
        for _ in range(request.value):
            yield _POURED

    async def Hold(self, request: BytesValue, context: object) -> AsyncIterator[BytesValue]:
        """The request at once, and again when released."""
        yield request
        await self._park()
        yield request

    async def Stumble(self, request: StringValue, context: object) -> AsyncIterator[StringValue]:
        """The request twice, then the error of that name."""
        yield request
        yield request
        raise _error(request.value)

    async def Sum(self, requests: AsyncIterator[Int64Value], context: object) -> Int64Value:
        """The sum."""
        return Int64Value(value=sum([request.value async for request in requests]))

    async def Chat(self, requests: AsyncIterator[BytesValue], context: object) -> AsyncIterator[BytesValue]:
        """Each request."""
        async for request in requests:
            yield request

    async def _park(self) -> None:
        self.parked.release()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
