"""The doorway: the one place where a call enters our code, whatever transport carries it.

It believes or refuses the caller, times and logs the call, and turns whatever a handler raises into a
status. Fronts subclass `Visit` and put the `Status` that `Doorway.enter` returns on their wire.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass
from types import coroutine
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.trace import SpanKind, StatusCode

from libs import mesh, pki, telemetry
from libs.errors import (
    DeadlineError,
    DeniedError,
    InvalidError,
    MeshError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from libs.identity import Identity

from .call import Call
from .callers import Believed
from .status import Status, status_of

_log = logging.getLogger(__name__)

_LEAST_SECONDS = 0.002  # with less left, an answer would come too late
_WHEN_DRAINING = "/grpc.health.v1.Health/"
_BEHAVIOURS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a front lets in. Sizes are in bytes."""

    max_message: int = 4 * 1024 * 1024
    max_connections: int = 4096
    max_streams: int = 256  # of one connection
    max_underway: int = 256 * 1024 * 1024  # of all messages on their way
    drain_seconds: float = 10.0


NO_MESSAGE = "the request has no message"
TOO_MANY_MESSAGES = "the request has more than one message"

_OK = Status(grpc.StatusCode.OK)
_LEFT = Status(grpc.StatusCode.CANCELLED, "the caller left")
_BUG = Status(grpc.StatusCode.INTERNAL, "internal error")
_OUR_FAULT = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_LATE = DeadlineError("out of time")


class LeftError(MeshError):
    """The caller is gone; nobody hears the answer."""

    code = grpc.StatusCode.CANCELLED
    reason = "LEFT"


class Method:
    """A method as the doorway knows it: its handler, who may call it, and where its times are counted."""

    __slots__ = (
        "answers_many",
        "asks_many",
        "behaviour",
        "name",
        "ok_seconds",
        "parse",
        "roles",
        "serialise",
    )

    def __init__(self, name: str, handler: grpc.RpcMethodHandler[Any, Any], roles: frozenset[str]) -> None:
        self.name = name
        self.asks_many = handler.request_streaming
        self.answers_many = handler.response_streaming
        self.parse: Any = handler.request_deserializer
        self.serialise: Any = handler.response_serializer
        self.behaviour: Any = next(filter(None, (getattr(handler, kind) for kind in _BEHAVIOURS)))
        self.roles = roles
        self.ok_seconds = telemetry.RPC_SECONDS.labels(name, grpc.StatusCode.OK.name)


class Visit(Call, abc.ABC):
    """One call on its way through the doorway. A front says how to read it and how to answer it."""

    __slots__ = ("_id", "error", "method", "peer", "task", "timer")

    def __init__(self, method: Method, metadata: Mapping[str, str | bytes]) -> None:
        super().__init__(metadata)
        self.method = method
        self.peer: pki.Peer | None = None
        self.error: MeshError | None = None
        self.task: asyncio.Task[Any] | None = None  # while the call waits for something
        self.timer: asyncio.TimerHandle | None = None
        self._id = ""

    @abc.abstractmethod
    def leaf(self) -> bytes | None:
        """The caller's certificate, DER; None if it showed none."""

    @abc.abstractmethod
    def timeout(self) -> float:
        """Seconds that the caller gives us; infinity if it set no deadline."""

    @abc.abstractmethod
    def origin(self) -> str:
        """The caller's network address: host:port, or gRPC's spelling of it."""

    @abc.abstractmethod
    async def read(self) -> bytes | None:
        """The next message of the request; None after the last."""

    @abc.abstractmethod
    async def ask(self) -> bytes:
        """The only message of a request. InvalidError if it has none, or more."""

    @abc.abstractmethod
    async def write(self, message: bytes) -> None:
        """Hands one of the messages of the answer to the transport."""

    @abc.abstractmethod
    async def reply(self, message: bytes) -> None:
        """Hands the only message of the answer to the transport, and with it that all went well."""

    def watch(self) -> None:
        """The handler waits for something: interrupt the call from now on if the caller leaves."""

    def fields(self) -> dict[str, object]:
        """What every log line of this call says of it."""
        if not self._id:
            self._id = _request_id(self.metadata)
        fields: dict[str, object] = {"method": self.method.name, "request_id": self._id}
        if self.peer is not None:
            fields["caller"] = self.peer.principal.id
        else:
            fields["peer"] = self.origin()
        return fields

    def interrupt(self, error: MeshError) -> None:
        """Cancels the handler; the call ends with this error. Nothing happens if it has ended."""
        if self.task is not None and self.error is None:
            self.error = error
            self.task.cancel()


class Doorway:
    """Lets calls in, and knows which are inside.

    `add_…Servicer_to_server` takes it for a server, so registering a servicer opens the doorway for it.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        callers: Mapping[str, frozenset[str]] = mesh.METHODS,
        clock: Callable[[], float] = time.time,
        certified: bool = True,
    ) -> None:
        self.certified = certified  # whether callers show a certificate
        self.methods: dict[str, Method] = {}
        self.unknown = Method("unknown", grpc.stream_unary_rpc_method_handler(_unknown), frozenset({"*"}))
        self.draining = False
        self._live: set[Visit] = set()
        self._believed = Believed(identity, clock)
        self._callers = callers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Registers a service. Methods that the mesh table does not know are refused to everybody."""
        for method, handler in handlers.items():
            name = f"/{service}/{method}"
            self.methods[name] = Method(name, handler, self._callers.get(name, frozenset()))

    def add_generic_rpc_handlers(self, handlers: Iterable[object]) -> None:
        """Nothing: generated code registers the same methods by name too."""

    def enter(self, visit: Visit) -> Coroutine[Any, Any, Status]:
        """Runs a call from its request to the last message of its answer, and says how it ended.

        Raises nothing but the cancellation of the task it runs in.
        """
        return self._traced(visit) if telemetry.tracing else self._through(visit)

    async def _traced(self, visit: Visit) -> Status:
        service, _, method = visit.method.name[1:].partition("/")
        with telemetry.tracer().start_as_current_span(
            visit.method.name[1:],
            context=telemetry.extract(visit.metadata),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
        ) as span:
            status = await self._through(visit)
            span.set_attribute("rpc.grpc.status_code", status.code.value[0])
            if status.code in _OUR_FAULT:
                span.set_status(StatusCode.ERROR, status.message)
            return status

    async def _through(self, visit: Visit) -> Status:
        begun = time.perf_counter()
        telemetry.log_context.set(visit.fields)
        status = _LEFT
        try:
            self._admit(visit)
            await _noticing(_answer(visit), self._stays, visit)
            status = _OK
        except MeshError as error:
            status = status_of(error)
        except TimeoutError:
            status = status_of(_LATE)
        except asyncio.CancelledError:
            if visit.error is not None:
                status = status_of(visit.error)
            elif visit.task is None or visit.task.cancelling():
                raise
            else:
                _log.exception("a handler was cancelled by itself")
                status = _BUG
        except Exception:  # noqa: BLE001  (the doorway: the one place for it)
            _log.exception("a handler failed")
            status = _BUG
        finally:
            if visit.task is not None:
                self._leaves(visit)
            if status is not _OK:
                visit.undeliverable()
            _report(visit.method, status, time.perf_counter() - begun)
        return status

    def _admit(self, visit: Visit) -> None:
        timeout = visit.timeout()
        leaf = visit.leaf()
        if self.certified:
            self._recognise(visit, leaf)
        elif mesh.ANONYMOUS not in visit.method.roles:
            raise DeniedError(f"nobody may call {visit.method.name} without a certificate")
        if self.draining and not visit.method.name.startswith(_WHEN_DRAINING):
            raise UnavailableError("draining")
        if timeout < _LEAST_SECONDS:
            raise DeadlineError("too little time left to begin")
        visit.deadline = time.monotonic() + timeout

    def _recognise(self, visit: Visit, leaf: bytes | None) -> None:
        visit.peer = peer = self._believed.recognise(leaf)
        visit.caller = caller = peer.principal
        if not mesh.lets_in(visit.method.roles, caller.role):
            raise DeniedError(f"{caller.id} may not call {visit.method.name}")

    def _stays(self, visit: Visit) -> None:
        """The call waits for something, so its time may run out meanwhile, or we may."""
        loop = asyncio.get_running_loop()
        visit.task = asyncio.current_task(loop)
        self._live.add(visit)
        if visit.deadline != float("inf"):
            visit.timer = loop.call_later(visit.deadline - time.monotonic(), visit.interrupt, _LATE)

    def _leaves(self, visit: Visit) -> None:
        if visit.error is not None and visit.task is not None:
            visit.task.uncancel()
        visit.task = None
        self._live.discard(visit)
        if visit.timer is not None:
            visit.timer.cancel()
            visit.timer = None  # it knows the visit: no cycles, so that nothing has to be looked for

    def sweep(self) -> None:
        """Ends the calls of callers whose certificate has expired or who are denied by now."""
        self._believed.reload()
        for visit in self._live:
            if visit.peer is None:
                continue
            try:
                self._believed.check(visit.peer)
            except UnauthenticatedError as error:
                visit.interrupt(error)

    def interrupt(self, error: MeshError, which: Callable[[Visit], bool] = lambda _: True) -> None:
        """Ends the calls that are inside with this error."""
        for visit in filter(which, list(self._live)):
            visit.interrupt(error)


async def _unknown(requests: object, call: object) -> bytes:
    """What is behind every method that nobody registered, for callers that we know."""
    raise UnimplementedError("no such method here")


@coroutine
def _noticing(
    work: Coroutine[Any, Any, Any], notice: Callable[..., None], *args: object
) -> Generator[Any, Any, Any]:
    """Awaits `work`, and calls `notice` the first time that it has to wait. Most calls never have to, and
    are spared what only those need.
    """
    try:
        waiting = work.send(None)
        notice(*args)
        while True:
            try:
                sent = yield waiting
            except BaseException as thrown:  # noqa: BLE001  (handed on)
                waiting = work.throw(thrown)
            else:
                waiting = work.send(sent)
    except StopIteration as done:
        return done.value


async def _answer(visit: Visit) -> None:
    method = visit.method
    if method.asks_many:
        visit.watch()
        answer = method.behaviour(_requests(visit), visit)
    else:
        answer = method.behaviour(_parse(method, await visit.ask()), visit)
    if method.answers_many:
        visit.watch()
        async for response in answer:
            await visit.write(method.serialise(response))
    else:
        await visit.reply(method.serialise(await _noticing(answer, visit.watch)))


async def _requests(visit: Visit) -> AsyncIterator[Any]:
    while (message := await visit.read()) is not None:
        yield _parse(visit.method, message)


def _parse(method: Method, message: bytes) -> Any:
    try:
        return method.parse(message)
    except DecodeError as error:
        raise InvalidError(f"the request is not of this method's type: {error}") from error


def _report(method: Method, status: Status, seconds: float) -> None:
    if status is _OK:
        method.ok_seconds.observe(seconds)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("served", extra={"code": "OK", "seconds": round(seconds, 6)})
        return
    telemetry.RPC_SECONDS.labels(method.name, status.code.name).observe(seconds)
    refused = status.code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    _log.log(
        logging.WARNING if refused else logging.INFO,
        "%s: %s",
        status.code.name,
        status.message,
        extra={"code": status.code.name, "seconds": round(seconds, 6)},
    )


def _request_id(metadata: Mapping[str, str | bytes]) -> str:
    if (parent := metadata.get("traceparent")) is not None:
        return str(parent)[3:35]  # the trace's id, so that one id finds the lines of all processes
    return f"{random.getrandbits(64):016x}"
