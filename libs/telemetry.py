"""What a process tells of itself: JSON logs, spans, metrics, and the plain port that probes look at.

Log lines never hold secrets: fields with a secret's name and credentials inside URLs are blanked, as a
second line of defence behind not logging them. Metrics are `prometheus_client`'s, in its default registry,
named agentctl_<component>_<noun>_<unit>; collectors are read from another thread when OTLP is on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from types import TracebackType
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CONTENT_TYPE_LATEST, Histogram, disable_created_metrics, generate_latest

from libs.audit import LOGGER as _AUDIT
from libs.errors import MeshError

# A second series for each counter and histogram, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

RPC_SECONDS = Histogram(
    "agentctl_rpc_server_duration_seconds",
    "How long calls took, by full method name and status code",
    ["method", "code"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

log_context: ContextVar[Callable[[], Mapping[str, object]]] = ContextVar("log_context", default=dict)
"""Gives the fields that every log line of this call gets. Set by the doorway only."""

tracing = False
"""Whether spans go anywhere. Set by `start`; without it, spare yourself making them."""

_PROPAGATOR = TraceContextTextMapPropagator()
_SECRET_NAME = re.compile(r"(authorization|password|secret|cookie|credentials?|(api|private)_?key)$", re.I)
_SECRET_TEXT = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=Bearer )[\w.~+/=-]+|(?<=password=)\S+")
_READY_SECONDS = 2.0
_LINES_PER_SECOND = 200  # some refuse thousands of calls a second while they are attacked


def start(service: str, level: str = "INFO") -> None:
    """Log as `service` from now on: JSON, one line an event, on stderr. Export spans and metrics where
    OTEL_EXPORTER_OTLP_ENDPOINT says; if it says nothing, there are no spans. Once per process."""
    global tracing
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    handler.addFilter(Sparing(_LINES_PER_SECOND))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback
    )
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        from libs import otlp  # costly

        otlp.start(service)
        tracing = True


@cache
def tracer() -> trace.Tracer:
    """Where spans begin. Spans are recorded only if `tracing`."""
    return trace.get_tracer("agentctl")


def extract(metadata: Mapping[str, Any]) -> Context:
    """The caller's trace, out of call metadata or a work item's carrier (W3C traceparent, tracestate)."""
    carrier = {name: value for name in _PROPAGATOR.fields if isinstance(value := metadata.get(name), str)}
    return _PROPAGATOR.extract(carrier, context=Context())


def inject(carrier: dict[str, str]) -> None:
    """Puts the active span, if there is one, into a carrier for `extract` on the other side."""
    _PROPAGATOR.inject(carrier)


class Sparing(logging.Filter):
    """Lets so many lines a second pass. The first one after a gap says how many were `left_out`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._second = 0
        self._passed = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if self._second != (second := int(record.created)):
            self._second, self._passed = second, 0
        if self._passed >= self._most and record.levelno < logging.CRITICAL and record.name != _AUDIT:
            self._left_out += 1
            return False
        self._passed += 1
        if self._left_out:
            record.left_out = self._left_out
            self._left_out = 0
        return True


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON. The record's own facts win over `extra`, that over `log_context`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "msg": _blank(record.getMessage()),
            "service": self._service,
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            event["trace_id"] = trace.format_trace_id(span.trace_id)
            event["span_id"] = trace.format_span_id(span.span_id)
        if record.exc_info:
            event["exception"] = _blank(self.formatException(record.exc_info))
        if record.stack_info:
            event["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES}
        for name, value in {**log_context.get()(), **extra}.items():
            if name not in event:
                event[name] = "[secret]" if _SECRET_NAME.search(name) else _blank(value)
        return json.dumps(event, default=lambda value: _blank(str(value)))


_RECORD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def _blank(value: object) -> object:
    return _SECRET_TEXT.sub("[secret]", value) if isinstance(value, str) else value


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        logging.critical("uncaught exception", exc_info=(kind, error, traceback))


@asynccontextmanager
async def plain_port(
    port: int,
    ready: Callable[[], Awaitable[None]],
    host: str = "127.0.0.1",
    refresh: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[int]:
    """Serves /metrics, /livez and /readyz in plain HTTP while the block runs; yields the port (0 picks one).

    /livez answers while the loop turns. /readyz answers 200 if `ready()` returns within two seconds, and 503
    with the reason if it raises a MeshError or an OSError. `refresh` sets gauges before each scrape and
    raises nothing. Nobody is authenticated here, so nothing else is served, and heads,
    connections and slow senders are bounded.
    """
    from h2corn import Config, Server  # only processes that serve

    config = Config(
        bind=(f"{host}:{port}",),
        lifespan="off",
        access_log=False,
        log_format="json",
        runtime_threads=1,
        limit_connections=64,
        limit_request_head_size=16384,
        limit_request_fields=64,
        limit_request_field_size=8192,
        h2_max_header_list_size=16384,
        max_concurrent_streams=16,
        max_request_body_size=1024,
        timeout_request_header=5,
        timeout_request_body_idle=5,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    server = Server(_plain(ready, refresh), config)
    serving = asyncio.create_task(server.serve())
    try:
        await server.wait_started()
        yield int(server.addresses[0].rpartition(":")[2])
    finally:
        server.shutdown()
        await serving


def _plain(
    ready: Callable[[], Awaitable[None]], refresh: Callable[[], Awaitable[None]] | None
) -> Callable[..., Awaitable[None]]:
    async def readyz() -> tuple[int, str]:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await ready()
        except TimeoutError:
            return 503, "no answer in time"
        except (MeshError, OSError) as error:
            return 503, str(error)
        return 200, "ok"

    async def answer(method: str, path: str) -> tuple[int, str, bytes]:
        if method not in ("GET", "HEAD"):
            status, text = 405, "only GET and HEAD"
        elif path == "/metrics":
            if refresh is not None:
                await refresh()
            return 200, CONTENT_TYPE_LATEST, generate_latest()
        elif path == "/livez":
            status, text = 200, "ok"
        elif path == "/readyz":
            status, text = await readyz()
        else:
            status, text = 404, "not found"
        return status, "text/plain; charset=utf-8", f"{text}\n".encode()

    async def app(
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        status, kind, body = await answer(scope["method"], scope["path"])
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app
