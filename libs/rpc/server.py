"""Serving a component's gRPC: mTLS, health, reflection, rotation of certificates, drain."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as reflection

from libs import mesh, pki
from libs.identity import Identity
from libs.mesh import Component

from .boundary import Doorway, Limits
from .health import Health
from .rotation import Files, beat, pace

_log = logging.getLogger(__name__)

_REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

FrontName = Literal["h2corn", "grpcio"]


class Front(Protocol):
    """What carries calls to a doorway."""

    async def start(self, host: str, port: int) -> int:
        """Listens and serves; the port."""

    async def rotate(self) -> None:
        """Serves new connections with the certificate that is in our files now."""

    async def stop(self, seconds: float) -> None:
        """Accepts nothing more; interrupts after so many seconds what is not done by then."""


@dataclass(frozen=True)
class Serving:
    """A server that is up. It says SERVING until the block ends, unless `set_ready` says otherwise."""

    address: str
    port: int
    set_ready: Callable[[bool], None]


@asynccontextmanager
async def serving(
    component: Component,
    identity: Identity,
    register: Callable[[Any], None],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    front: FrontName = "h2corn",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    on_drain: Sequence[Callable[[], None]] = (),
    callers: Mapping[str, frozenset[str]] = mesh.METHODS,
    clock: Callable[[], float] = time.time,
    check_seconds: float | None = None,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[Serving]:
    """Serves what `register` adds, to those whom `callers` lets in, while the block runs.

    Every `check_seconds`, by default at its `pace`, it looks for a new certificate and for callers that may
    not stay. Whoever wants to know how it is makes it ask `ready`, which raises UnavailableError, naming the
    reason, while the component cannot do its job: NOT_SERVING.

    A component whose callers are not `certified` asks none for a certificate, and serves its methods for
    ANONYMOUS and nothing else.

    When the block ends: NOT_SERVING, then nothing more is accepted, then each of `on_drain` is called so that
    parked calls can be answered, and what is not done within `limits.drain_seconds` ends as UNAVAILABLE.
    """
    own = pki.own(identity)
    if own.role != component.role:
        raise ValueError(f"{own.id} cannot serve as {component.name}")
    doorway = Doorway(identity, callers=callers, clock=clock, certified=component.certified)
    health = Health(ready)
    register(doorway)
    _add_health(doorway, health)
    if component.certified:
        _add_reflection(doorway)
    files = Files(identity)
    carrier = _front(front, doorway, identity, limits)
    bound = await carrier.start(host, port)
    keeper = asyncio.create_task(_keep(doorway, carrier, files, check_seconds or pace(identity)))
    health.set_ready(True)
    address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
    _log.info("%s serves at %s by %s", component.name, address, front)
    try:
        yield Serving(address, bound, health.set_ready)
    finally:
        health.stop()
        doorway.draining = True
        for hook in on_drain:
            hook()
        keeper.cancel()
        await carrier.stop(limits.drain_seconds)
        await asyncio.wait({keeper})
        _log.info("%s is drained", component.name)


async def stopped() -> None:
    """Returns at SIGTERM or SIGINT. A second one kills."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, signalled.set)
    try:
        await signalled.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _front(name: FrontName, doorway: Doorway, identity: Identity, limits: Limits) -> Front:
    if name == "grpcio":
        from .grpcio import GrpcioFront

        return GrpcioFront(doorway, identity, limits)
    from .h2corn import H2cornFront

    return H2cornFront(doorway, identity, limits)


async def _keep(doorway: Doorway, front: Front, files: Files, seconds: float) -> None:
    stale = False
    while True:
        await beat(seconds)
        try:
            doorway.sweep()
            stale = files.changed() or stale
            if stale:
                files.check()
                await front.rotate()
                stale = False
                _log.info("serving with a new certificate")
        except (OSError, ValueError) as error:
            _log.warning("cannot read our certificate or the deny list, trying again: %s", error)


def _add_health(doorway: Doorway, health: Health) -> None:
    health_pb2_grpc.add_HealthServicer_to_server(health, cast("grpc.aio.Server", doorway))
    health.know(method.name.split("/")[1] for method in doorway.methods.values())


def _add_reflection(doorway: Doorway) -> None:
    services = {method.name.split("/")[1] for method in doorway.methods.values()}
    # Only the package's name differs between the two versions; grpcio ships stubs of the older one.
    servicer = reflection.ReflectionServicer(sorted(services.union(_REFLECTION)))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for service in _REFLECTION:
        doorway.add_registered_method_handlers(service, {"ServerReflectionInfo": handler})
