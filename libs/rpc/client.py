"""Dialling a component: mTLS, a deadline, retries, traces, and errors that arrive as what they were."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import grpc
from grpc.aio import AioRpcError

from libs import pki, telemetry
from libs.identity import Identity, Principal
from libs.mesh import Component

from .rotation import Files, follow, pace
from .status import error_of

_log = logging.getLogger(__name__)

_MAX_MESSAGE = 4 * 1024 * 1024
_ANSWER_SECONDS = 2.0
_LINGER_SECONDS = 300.0  # well below the third of its life that a certificate has left when it is renewed
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_DRAINS = [
    {"service": "agentctl.agent.v1.AgentService", "method": "Drain"},
    {"service": "agentctl.management.v1.ManagementService", "method": "Drain"},
]
_OPTIONS: tuple[tuple[str, Any], ...] = (
    # every RPC of ours may be repeated, since mutations are answered with their first verdict, but a drain:
    # the process that it ends is followed by another
    (
        "grpc.service_config",
        json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": _RETRY}, {"name": _DRAINS}]}),
    ),
    ("grpc.enable_http_proxy", 0),  # the mesh is called directly, whatever the environment says
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
)


@asynccontextmanager
async def dial(
    component: Component,
    address: str,
    identity: Identity,
    *,
    server: Principal | None = None,
    timeout: float = 30.0,  # noqa: ASYNC109  (of the calls, not of this)
    own_connection: bool = False,
    check_seconds: float | None = None,
) -> AsyncIterator[Channel]:
    """A channel to a component, for generated stubs. Nobody but that component is believed at the address;
    of an agent nobody but `server`, the one pod that the caller means. ValueError if that is not said, or
    cannot be.

    Calls fail with the classes of `libs.errors`, subclasses included. A call that is answered by one message
    gets `timeout` if it names none; a stream runs until it ends or is cancelled. UNAVAILABLE is tried again
    a few times before it is raised. When our certificate changes, new calls use a new connection; it is
    looked for each `check_seconds`, by default at our `pace`. Channels of one process share connections
    unless `own_connection`.
    """
    files = Files(identity)
    name = _server_name(component, identity, server)
    channel = Channel(name, address, identity, timeout, own_connection)
    keeper = asyncio.create_task(follow(files, check_seconds or pace(identity), channel.renew))
    try:
        yield channel
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
        await channel.close()


def _server_name(component: Component, identity: Identity, server: Principal | None) -> str:
    if server is None:
        if component.role != f"cp/{component.name}":
            raise ValueError(f"there are many of {component.name}: say which one is meant")
        server = Principal.parse(f"spiffe://{pki.own(identity).domain}/{component.role}")
    if server.role != component.role:
        raise ValueError(f"{server.id} does not serve as {component.name}")
    return server.dns_name


class Channel(grpc.aio.Channel):
    """What generated stubs call through; `dial` makes and closes it."""

    def __init__(
        self, server_name: str, address: str, identity: Identity, timeout: float, own_connection: bool
    ) -> None:
        self._address = address
        self._identity = identity
        self._options = [
            *_OPTIONS,
            ("grpc.ssl_target_name_override", server_name),
            ("grpc.use_local_subchannel_pool", int(own_connection)),
        ]
        self._retired: set[Connection] = set()
        self.timeout = timeout
        self.connection = self._connect()

    async def renew(self) -> bool:
        """New calls use a new connection, with the certificate that is in our files now; False if it does not
        answer yet. One that was born in the instant in which its server goes away never does: gRPC's core
        takes it for good, and tries each call on it again and again until its deadline."""
        fresh, answers = self._connect(), False
        try:
            answers = await fresh.answers()
        finally:
            if not answers:
                await fresh.close()
        if not answers:
            return False
        last, self.connection = self.connection, fresh
        self._retired.add(last)
        last.retire(self._retired.discard)
        return True

    def _connect(self) -> Connection:
        identity = self._identity
        credentials = grpc.ssl_channel_credentials(
            identity.root.read_bytes(), identity.key.read_bytes(), identity.certificate.read_bytes()
        )
        return Connection(grpc.aio.secure_channel(self._address, credentials, self._options))

    def unary_unary(self, method: str, *serdes: Any, **kwargs: Any) -> Any:
        return _ForOne(self, "unary_unary", method, *serdes, **kwargs)

    def stream_unary(self, method: str, *serdes: Any, **kwargs: Any) -> Any:
        return _ForOne(self, "stream_unary", method, *serdes, **kwargs)

    def unary_stream(self, method: str, *serdes: Any, **kwargs: Any) -> Any:
        return _ForMany(self, "unary_stream", method, *serdes, **kwargs)

    def stream_stream(self, method: str, *serdes: Any, **kwargs: Any) -> Any:
        return _ForMany(self, "stream_stream", method, *serdes, **kwargs)

    async def close(self, grace: float | None = None) -> None:
        for connection in [self.connection, *self._retired]:
            await connection.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.connection.channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.connection.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.connection.channel.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()


class Connection:
    """A grpc.aio channel that, once retired, closes when its last call ends, or after five minutes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._calls = 0
        self._retired = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    async def answers(self) -> bool:
        """Whether the other side says anything to a question that everybody may ask."""
        check: Any = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            await check(b"", timeout=_ANSWER_SECONDS)
        except AioRpcError as error:
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return True

    def begin(self) -> None:
        """A call begins."""
        self._calls += 1

    def end(self, _: object = None) -> None:
        """A call has ended."""
        self._calls -= 1
        if self._calls == 0 and self._closing is not None:
            self._retired.set()

    def retire(self, closed: Callable[[Connection], None]) -> None:
        """No more calls will begin."""
        if self._calls == 0:
            self._retired.set()
        self._closing = asyncio.create_task(self._close_in_time())
        self._closing.add_done_callback(lambda _: closed(self))

    async def close(self) -> None:
        """Now, whatever is going on."""
        if self._closing is not None:
            self._closing.cancel()
        await self.channel.close()

    async def _close_in_time(self) -> None:
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._retired.wait()
        except TimeoutError:
            _log.info("closing a connection with %d calls, since our certificate was renewed", self._calls)
        await self.channel.close()


class _Method:
    """A method of a stub. It looks up the connection anew for each call."""

    def __init__(self, channel: Channel, kind: str, method: str, *serdes: Any, **kwargs: Any) -> None:
        self._channel = channel
        self._make: Callable[[Any], Any] = lambda inner: getattr(inner, kind)(method, *serdes, **kwargs)
        self._connection: Connection | None = None
        self._inner: Any = None

    def _on_connection(self) -> tuple[Connection, Any]:
        connection = self._channel.connection
        if connection is not self._connection:
            self._connection, self._inner = connection, self._make(connection.channel)
        return connection, self._inner


class _ForOne(_Method):
    """A method that is answered by one message."""

    async def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (what generated stubs are called with)
        metadata: Any = None,
        **kwargs: Any,
    ) -> Any:
        connection, inner = self._on_connection()
        connection.begin()
        try:
            return await inner(
                request,
                timeout=self._channel.timeout if timeout is None else timeout,
                metadata=_traced(metadata),
                **kwargs,
            )
        except AioRpcError as error:
            raise error_of(error) from error
        finally:
            connection.end()


class _ForMany(_Method):
    """A method that is answered by a stream."""

    def __call__(self, *args: Any, metadata: Any = None, **kwargs: Any) -> Stream:
        connection, inner = self._on_connection()
        connection.begin()
        call = inner(*args, metadata=_traced(metadata), **kwargs)
        call.add_done_callback(connection.end)
        return Stream(call)


class Stream:
    """A streaming call. Iterate over it, or `read` until `grpc.aio.EOF`; leave early by `cancel`."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        try:
            while (response := await self.read()) is not grpc.aio.EOF:
                yield response
        finally:
            self.cancel()  # for who leaves the loop early; nothing if the call has ended

    async def read(self) -> Any:
        """The next message of the answer, or EOF."""
        return await self._raising(self._call.read())

    async def write(self, request: Any) -> None:
        """Sends a message of the request."""
        await self._raising(self._call.write(request))

    async def done_writing(self) -> None:
        """Ends the request."""
        await self._raising(self._call.done_writing())

    def cancel(self) -> bool:
        """Ends the call; False if it had ended."""
        return bool(self._call.cancel())

    async def _raising(self, result: Any) -> Any:
        try:
            return await result
        except AioRpcError as error:
            raise error_of(error) from error


def _traced(metadata: Any) -> Sequence[tuple[str, str | bytes]] | None:
    if not telemetry.tracing:
        return metadata  # type: ignore[no-any-return]
    carrier: dict[str, str] = {}
    telemetry.inject(carrier)
    return (*(metadata or ()), *carrier.items())
