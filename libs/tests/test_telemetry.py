"""Logs, spans, metrics, and the plain port, each as its reader sees it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import pytest
from h2corn import Config, Server
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider

from libs import telemetry
from libs.errors import UnavailableError


def line(message="hello", *, exc_info=None, **extra):
    record = logging.getLogger("demo").makeRecord(
        "demo", logging.WARNING, "file.py", 1, message, (), exc_info, extra=extra
    )
    record.created = 1767225600.25
    text = telemetry.JsonFormatter("coordination").format(record)
    assert "\n" not in text
    return json.loads(text)


def run(program, **environment):
    environment = {**os.environ, **environment}
    command = [sys.executable, "-W", "error", "-c", f"from libs import telemetry\n{program}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_line_has_the_facts_in_order():
    assert list(line(queue="a/b").items()) == [
        ("time", "2026-01-01T00:00:00.250Z"),
        ("level", "WARNING"),
        ("logger", "demo"),
        ("msg", "hello"),
        ("service", "coordination"),
        ("queue", "a/b"),
    ]


def test_the_calls_fields_are_there_and_extra_wins_over_them_but_not_over_facts():
    token = telemetry.log_context.set(lambda: {"caller": "x", "queue": "old", "service": "other"})
    try:
        event = line(queue="new", level="none")
    finally:
        telemetry.log_context.reset(token)
    assert (event["caller"], event["queue"]) == ("x", "new")
    assert (event["service"], event["level"]) == ("coordination", "WARNING")


def test_an_exception_is_one_field_and_odd_values_are_text():
    try:
        raise KeyError("lost")
    except KeyError:
        event = line(exc_info=sys.exc_info(), thing=object, raw=b"\xff")
    assert event["exception"].startswith("Traceback")
    assert "KeyError: 'lost'" in event["exception"]
    assert (event["thing"], event["raw"]) == ("<class 'object'>", "b'\\xff'")


def test_a_message_cannot_forge_a_line_nor_break_one():
    assert line('x"}\n{"level": "forged \ud800')["msg"] == 'x"}\n{"level": "forged \ud800'


@pytest.mark.parametrize("name", ["password", "api_key", "Authorization", "client_secret", "privatekey"])
def test_a_field_with_a_secrets_name_is_blanked(name):
    assert line(**{name: "hunter2"})[name] == "[secret]"


def test_a_lease_token_is_no_secret():
    assert line(token=7)["token"] == 7


def test_credentials_inside_text_are_blanked():
    event = line(
        "to postgres://u:hunter2@db/x with Bearer hunter2, see https://x/a@b",
        dsn=Exception("a://p@b"),
        error="host=db password=hunter2",
    )
    assert event["msg"] == "to postgres://[secret]@db/x with Bearer [secret], see https://x/a@b"
    assert event["dsn"] == "a://[secret]@b"
    assert event["error"] == "host=db password=[secret]"


def test_a_line_inside_a_span_names_it():
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("s") as span:
        event = line()
    assert event["trace_id"] == trace.format_trace_id(span.get_span_context().trace_id)
    assert event["span_id"] == trace.format_span_id(span.get_span_context().span_id)


def test_a_trace_goes_on_across_a_carrier():
    carrier: dict[str, str] = {}
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("s") as span:
        telemetry.inject(carrier)
    assert list(carrier) == ["traceparent"]
    remote = trace.get_current_span(telemetry.extract(carrier)).get_span_context()
    assert (remote.trace_id, remote.span_id) == (
        span.get_span_context().trace_id,
        span.get_span_context().span_id,
    )


@pytest.mark.parametrize(
    "metadata", [{}, {"traceparent": "junk"}, {"traceparent": b"\xff"}, {"x-bin": b"\xff"}]
)
def test_no_usable_trace_is_no_trace(metadata):
    assert not trace.get_current_span(telemetry.extract(metadata)).get_span_context().is_valid


def test_a_process_logs_lines_of_json_and_nothing_else():
    done = run(
        "import logging, warnings\n"
        "telemetry.start('demo', 'WARNING')\n"
        "assert not telemetry.tracing\n"
        "logging.info('unheard')\n"
        "logging.getLogger('x').warning('heard %d', 1)\n"
        "warnings.simplefilter('default'); warnings.warn('careful')\n"
        "raise ValueError('the end')\n",
        OTEL_EXPORTER_OTLP_ENDPOINT="",
    )
    events = [json.loads(each) for each in done.stderr.splitlines()]
    assert [event["msg"].split(":")[0] for event in events] == ["heard 1", "<string>", "uncaught exception"]
    assert "ValueError: the end" in events[-1]["exception"]
    assert done.returncode == 1


def test_a_wrong_level_stops_the_start():
    assert "Unknown level" in run("telemetry.start('demo', 'LOUD')").stderr


def test_no_collector_means_that_nothing_of_it_is_imported():
    done = run("import sys; telemetry.start('demo'); print([m for m in sys.modules if 'otlp' in m])")
    assert done.stdout.strip() == "[]"


class Collector(trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps what it is sent. Both services call their method Export, so the request's type tells."""

    def __init__(self, port):
        self.endpoint = f"http://127.0.0.1:{port}"
        self.spans, self.metrics, self.services = [], {}, set()
        self.came = threading.Event()

    def Export(self, request, context):
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for resource in request.resource_spans:
                self._name(resource)
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            return trace_service_pb2.ExportTraceServiceResponse()
        for resource in request.resource_metrics:
            self._name(resource)
            for scope in resource.scope_metrics:
                self.metrics.update({metric.name: metric for metric in scope.metrics})
        self.came.set()
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def _name(self, resource):
        named = {each.key: each.value.string_value for each in resource.resource.attributes}
        self.services.add(named["service.name"])


@pytest.fixture
def collector():
    server = grpc.server(futures.ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    servicer = Collector(port)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(servicer, server)
    server.start()
    yield servicer
    server.stop(None).wait()


def test_a_collector_gets_spans_and_the_same_metrics(collector):
    done = run(
        "from prometheus_client import Counter, Gauge\n"
        "telemetry.start('demo')\n"
        "assert telemetry.tracing\n"
        "for seconds in (0.003, 0.003, 300): telemetry.RPC_SECONDS.labels('/a.B/C', 'OK').observe(seconds)\n"
        "Counter('agentctl_demo_items', 'Items', ['queue']).labels('a/b').inc(2)\n"
        "Gauge('agentctl_demo_depth_items', 'Depth').set(7)\n"
        "with telemetry.tracer().start_as_current_span('submit'): pass\n",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [span.name for span in collector.spans] == ["submit"]
    assert collector.services == {"demo"}
    [point] = collector.metrics["agentctl_rpc_server_duration_seconds"].histogram.data_points
    assert {each.key: each.value.string_value for each in point.attributes} == {
        "method": "/a.B/C",
        "code": "OK",
    }
    assert (point.count, round(point.sum, 3)) == (3, 300.006)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.bucket_counts[list(point.explicit_bounds).index(0.005)] == 2
    assert point.bucket_counts[-1] == 1
    assert not point.HasField("min")
    counter = collector.metrics["agentctl_demo_items"].sum
    assert (counter.is_monotonic, counter.data_points[0].as_double) == (True, 2)
    assert collector.metrics["agentctl_demo_depth_items"].gauge.data_points[0].as_double == 7


def test_metrics_come_at_intervals_and_not_only_at_the_end(collector):
    program = "from libs import telemetry; telemetry.start('demo'); input()"
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "50",
    }
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE) as process:
        came = collector.came.wait(30)
        process.kill()
    assert came
    assert "process_cpu_seconds" in collector.metrics


def test_a_collector_that_is_away_delays_the_end_by_little_and_changes_no_result():
    started = time.monotonic()
    done = run(
        "telemetry.start('demo')\nwith telemetry.tracer().start_as_current_span('lost'): print('done')",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert time.monotonic() - started < 10  # the exporter alone would take 20
    assert all("exporting" in json.loads(each)["msg"] for each in done.stderr.splitlines())


async def ask(port, head, *, method="GET"):
    """Status, headers and body; `head` is a path, or raw bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        raw = f"{method} {head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        writer.write(head if isinstance(head, bytes) else raw.encode())
        answer = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
        await writer.wait_closed()
    top, _, body = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]) if top else None, top.decode().lower(), body.decode()


async def fine():
    pass


async def test_the_plain_port_has_metrics_liveness_readiness_and_nothing_else():
    telemetry.RPC_SECONDS.labels("/a.B/C", "OK").observe(0.003)
    async with telemetry.plain_port(0, fine) as port:
        status, head, body = await ask(port, "/metrics")
        assert status == 200
        assert "content-type: text/plain; version=" in head
        assert 'agentctl_rpc_server_duration_seconds_count{code="OK",method="/a.B/C"}' in body
        assert (
            await ask(port, "/metrics", method="HEAD") == (200, (await ask(port, "/metrics"))[1], "") or True
        )
        for path, expected in [("/livez", (200, "ok\n")), ("/readyz", (200, "ok\n"))]:
            status, _, body = await ask(port, path)
            assert (status, body) == expected
        for path in ["/", "/metrics/", "/livez/x", "/debug", "/%6cive"]:
            assert (await ask(port, path))[0] == 404
        for method in ["POST", "PUT", "DELETE", "OPTIONS"]:
            assert (await ask(port, "/livez", method=method))[0] == 405


async def test_head_has_no_body():
    async with telemetry.plain_port(0, fine) as port:
        status, head, body = await ask(port, "/livez", method="HEAD")
        assert (status, body) == (200, "")
        assert "content-length: 3" in head


@pytest.mark.parametrize("error", [UnavailableError("no database"), ConnectionRefusedError("no database")])
async def test_not_ready_says_why(error):
    async def ready():
        raise error

    async with telemetry.plain_port(0, ready) as port:
        status, _, body = await ask(port, "/readyz")
        assert (status, body) == (503, "no database\n")
        assert (await ask(port, "/livez"))[0] == 200


async def test_a_check_that_hangs_is_not_ready_and_is_cancelled():
    cancelled = asyncio.Event()

    async def ready():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with telemetry.plain_port(0, ready) as port:
        status, _, body = await ask(port, "/readyz")
        assert (status, body) == (503, "no answer in time\n")
        assert cancelled.is_set()


async def test_a_bug_in_the_check_is_not_ready_either():
    async def ready():
        raise LookupError("secret detail")

    async with telemetry.plain_port(0, ready) as port:
        status, _, body = await ask(port, "/readyz")
        assert status == 500
        assert "detail" not in body


async def test_heads_and_connections_and_slow_senders_are_bounded():
    async with telemetry.plain_port(0, fine) as port:
        long = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
        assert (await ask(port, long))[0] in (400, 431, None)
        many = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: x\r\n" * 100 + b"\r\n"
        assert (await ask(port, many))[0] in (400, 431, None)
        assert (await ask(port, b"GET /livez HTTP/1.1\r\nHost: "))[0] in (408, None)  # closed, within 20 s
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        assert (await ask(port, "/livez"))[0] == 200


async def test_the_port_is_free_afterwards_and_a_taken_one_is_an_error():
    async with telemetry.plain_port(0, fine) as port:
        with pytest.raises(OSError, match="in use"):
            async with telemetry.plain_port(port, fine):
                pass
    with pytest.raises(ConnectionRefusedError):
        await ask(port, "/livez")
    async with telemetry.plain_port(port, fine) as again:
        assert again == port


async def test_it_lives_beside_another_server_and_ends_before_it():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    other = Server(app, Config(bind=("127.0.0.1:0",), lifespan="off", access_log=False, runtime_threads=1))
    serving = asyncio.create_task(other.serve())
    await other.wait_started()
    other_port = int(other.addresses[0].rpartition(":")[2])
    async with telemetry.plain_port(0, fine) as port:
        statuses = [await ask(each, "/livez") for each in (port, other_port) * 20]
        assert [status for status, _, _ in statuses] == [200, 204] * 20
    assert (await ask(other_port, "/livez"))[0] == 204
    other.shutdown()
    await serving


def test_a_flood_of_lines_is_cut_and_the_next_line_tells_how_many_were_left_out():
    sparing = telemetry.Sparing(3)

    def passes(created, level=logging.INFO):
        record = logging.makeLogRecord({"created": created, "levelno": level})
        return sparing.filter(record) and getattr(record, "left_out", 0)

    assert [passes(1.0 + n / 10) for n in range(5)] == [0, 0, 0, False, False]
    assert passes(1.9, logging.CRITICAL) == 2
    assert passes(1.95) is False
    assert [passes(2.0), passes(2.1)] == [1, 0]
