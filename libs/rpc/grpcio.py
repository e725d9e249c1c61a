"""The second front: grpc.aio. The same doorway and the same answers, at about three times the CPU.

What it cannot do: refuse TLS 1.2, cap connections, or say whether the caller was still there when the
answer to a unary call was handed over.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any, cast

import grpc

from libs.errors import InvalidError, UnavailableError
from libs.identity import Identity

from .boundary import NO_MESSAGE, TOO_MANY_MESSAGES, Doorway, Limits, Method, Visit

_log = logging.getLogger(__name__)

_MAX_AGE_MS = 3_600_000
_BURST = 16_384  # calls; from 1,000 on, core would cancel some of them


class GrpcioFront:
    """Serves a doorway by a grpc.aio server, whose certificate is looked up for each handshake."""

    def __init__(self, doorway: Doorway, identity: Identity, limits: Limits) -> None:
        self._doorway = doorway
        self._identity = identity
        self._limits = limits
        self._server: grpc.aio.Server | None = None
        self._next: grpc.ServerCertificateConfiguration | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens and serves; the port."""
        _log.warning("this front takes TLS 1.2 too; the default front refuses it")
        self._server = grpc.aio.server(
            handlers=(_Handlers(self._doorway),),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", self._limits.max_message),
                ("grpc.max_concurrent_streams", self._limits.max_streams),
                ("grpc.server.max_pending_requests", _BURST),
                ("grpc.server.max_pending_requests_hard_limit", 2 * _BURST),
                ("grpc.server_handshake_timeout_ms", 5_000),
                ("grpc.max_connection_age_ms", _MAX_AGE_MS),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(self._identity),
            cast("Any", self._take_next),
            require_client_authentication=self._doorway.certified,
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bound: int = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return bound

    async def rotate(self) -> None:
        """Serves new connections with the certificate that is in our files now."""
        self._next = _configuration(self._identity)

    async def stop(self, seconds: float) -> None:
        """Accepts nothing more; interrupts after so many seconds what is not done by then."""
        if self._server is None:
            return
        stopping = asyncio.ensure_future(self._server.stop(seconds + 2))
        await asyncio.wait({stopping}, timeout=seconds)
        self._doorway.interrupt(UnavailableError("the server is going away"))
        await stopping

    def _take_next(self) -> grpc.ServerCertificateConfiguration | None:
        taken, self._next = self._next, None
        return taken


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, doorway: Doorway) -> None:
        self._handlers = {name: _through(doorway, method) for name, method in doorway.methods.items()}
        self._unknown = _through(doorway, doorway.unknown)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(details.method, self._unknown)


def _through(doorway: Doorway, method: Method) -> Any:
    async def serve(requests: Any, context: Any) -> bytes | None:
        exchange = Exchange(method, requests, context)
        status = await doorway.enter(exchange)
        if status.code is not grpc.StatusCode.OK:
            details = (("grpc-status-details-bin", status.details),) if status.details else ()
            await context.abort(status.code, status.message, details)
        return exchange.answer

    # Every request is read as a stream. For the other kinds, grpc.aio leaves a call that has no message
    # unanswered for ever, and does not look whether there is a second one.
    answers = "stream" if method.answers_many else "unary"
    return getattr(grpc, f"stream_{answers}_rpc_method_handler")(serve)  # bytes in, bytes out


class Exchange(Visit):
    """One call as grpc.aio shows it."""

    __slots__ = ("_context", "_requests", "answer")

    def __init__(self, method: Method, requests: AsyncIterator[bytes], context: Any) -> None:
        super().__init__(method, dict(context.invocation_metadata() or ()))
        self._requests = requests
        self._context = context
        self.answer: bytes | None = None

    def leaf(self) -> bytes | None:
        certificates = self._context.auth_context().get("x509_pem_cert")
        return _der(certificates[0]) if certificates else None

    def timeout(self) -> float:
        seconds = self._context.time_remaining()
        return float("inf") if seconds is None else float(seconds)

    def origin(self) -> str:
        return str(self._context.peer())

    async def read(self) -> bytes | None:
        return await anext(self._requests, None)

    async def ask(self) -> bytes:
        message = await self.read()
        if message is None:
            raise InvalidError(NO_MESSAGE)
        if await self.read() is not None:
            raise InvalidError(TOO_MANY_MESSAGES)
        return message

    async def write(self, message: bytes) -> None:
        await self._context.write(message)

    async def reply(self, message: bytes) -> None:
        self.answer = message


@lru_cache(maxsize=4096)
def _der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    pair = (identity.key.read_bytes(), identity.certificate.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=identity.root.read_bytes())
