"""The listener of `--serve-mcp`: one request a connection, TLS, client certificates by one authority."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from .exits import Json
from .management import Management
from .options import Options, is_loopback
from .rpc import PARSE_ERROR, Request, RpcError, failure

_BODY_LIMIT = 8 * 1024 * 1024
_SHUTDOWN = 1.0


class Listener:
    """Listens from `start` to `stop`; new connections get the certificate that is on disk now."""

    def __init__(self, options: Options, management: Management) -> None:
        self._management = management
        self._keep_alive = options.stream_close
        self._files = tuple(
            path for path in (options.serve_cert, options.serve_key, options.serve_client_ca) if path
        )
        self._options = options
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_route("*", "/mcp", self._handle)
        app.on_response_prepare.append(_close_after)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN)
        self._socket: socket.socket | None = None
        self._site: web.SockSite | None = None
        self._seen: object = None

    async def start(self) -> None:
        """Raises OSError: the address is taken, or a file is no certificate."""
        url = urlsplit(self._options.serve or "")
        family = socket.AF_INET6 if ":" in (url.hostname or "") else socket.AF_INET
        self._socket = socket.create_server((url.hostname or "", url.port or 0), family=family)
        await self._runner.setup()
        await self._bind()
        port = self._socket.getsockname()[1]
        self._management.supervisor.journal.emit("info", "mcp.serving", addr=f"{url.hostname}:{port}")

    async def refresh(self) -> None:
        """Takes up files that were replaced; while they do not fit each other, the old ones stay."""
        if self._socket is None or self._stamp() == self._seen:
            return
        try:
            await self._bind()
        except (OSError, ssl.SSLError):
            self._management.supervisor.journal.emit("warn", "config.loaded", tls="unreadable")

    async def stop(self) -> None:
        """Answers in progress have a second."""
        await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()

    async def _bind(self) -> None:
        """The listening socket outlives its servers, so no connection is refused between them."""
        assert self._socket is not None
        stamp = self._stamp()
        context = _server_context(self._options)
        before, self._site = self._site, web.SockSite(self._runner, self._socket.dup(), ssl_context=context)
        await self._site.start()
        self._seen = stamp
        if before is not None:
            await before.stop()

    def _stamp(self) -> object:
        return [_identity_of(path) for path in self._files]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and not is_loopback(urlsplit(origin).hostname):
            return web.Response(status=403, text="foreign origin\n")
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        transport = request.transport
        if transport is None or not transport.get_extra_info("peercert"):
            return web.Response(status=403, text="a client certificate is needed\n")
        try:
            body = json.loads(await request.read())
        except ValueError:
            return web.json_response(failure(None, RpcError(PARSE_ERROR, "not JSON")))
        return await self._answer(request, body)

    async def _answer(self, request: web.Request, body: object) -> web.StreamResponse:
        ident = body.get("id") if isinstance(body, dict) else None
        try:
            call = Request.of(body)
            if call.is_notification:
                return web.Response(status=202)
            frames = self._management.stream(call)
            if frames is not None:
                return await self._stream(request, frames)
            result = await self._management.call(call)
        except RpcError as error:
            return web.json_response(failure(ident, error))
        opened = {"Mcp-Session-Id": self._management.session_id} if call.method == "initialize" else {}
        return web.json_response(call.answer(result), headers=opened)

    async def _stream(self, request: web.Request, frames: AsyncIterator[Json]) -> web.StreamResponse:
        """Closed only when the next keep-alive is due: up to 15 s after the last frame."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        told = asyncio.Event()
        keeper = asyncio.create_task(self._keep(response, told))
        try:
            async for frame in frames:
                await response.write(f"data: {json.dumps(frame)}\n\n".encode())
            told.set()
            await keeper
        except ConnectionError:
            pass  # the peer is gone; the run goes on
        finally:
            keeper.cancel()
        return response

    async def _keep(self, response: web.StreamResponse, told: asyncio.Event) -> None:
        exiting = self._management.supervisor.exiting
        while not told.is_set() and not exiting.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(exiting.wait(), self._keep_alive)
            if not told.is_set():
                with suppress(ConnectionError):
                    await response.write(b": keep-alive\n\n")


def _server_context(options: Options) -> ssl.SSLContext | None:
    if options.serve_cert is None or options.serve_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.serve_cert, options.serve_key)
    if options.serve_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(options.serve_client_ca)
    return context


async def _close_after(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"


def _identity_of(path: Path) -> object:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
