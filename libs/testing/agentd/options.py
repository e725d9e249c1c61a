"""What the stand-in was told: flags over environment over defaults, all checked before any side effect."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from .clock import Cron, seconds
from .flags import Reader, UsageError, reader

MODES = ("once", "loop", "reactive", "schedule", "workflow")
TAGS = ("untrusted_input", "sensitive", "egress")


@dataclass(frozen=True)
class McpServer:
    """A tool server of `--mcp name=URL`, with the tags of `--mcp-tags`."""

    name: str
    endpoint: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """One start of the program. Durations are seconds."""

    version: str
    stream_close: float
    probe: str | None
    instruction: str
    endpoints: tuple[str, ...]
    tokens: tuple[str | None, ...]
    model: str
    model_swap: str
    mode: str
    servers: tuple[McpServer, ...]
    allow_trifecta: bool
    tls_ca: Path | None
    serve: str | None
    serve_cert: Path | None
    serve_key: Path | None
    serve_client_ca: Path | None
    metrics_addr: str | None
    subscribe: tuple[str, ...]
    interval: float | None
    cron: Cron | None
    max_steps: int
    max_tokens: int
    deadline: float
    max_depth: int
    run_id: str
    traceparent: str | None
    drain_timeout: float
    report_file: Path | None
    events_ring: int
    log_level: str
    log_content: bool
    budget_exit_code: int | None
    instance: str | None
    uid: str | None
    namespace: str | None
    node: str | None

    @property
    def is_newer(self) -> bool:
        """Whether it behaves as 1.4.0."""
        return self.version == "1.4.0"

    @property
    def agent_version(self) -> str:
        """The version it tells, with the word that it is a stand-in."""
        return f"{self.version}-standin"


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Raises UsageError for whatever agentd refuses at its start, and for what the stand-in has not."""
    read = reader(argv, environ)
    _check_shard(read.text("shard", "AGENT_SHARD"))
    try:
        return _options(read)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def is_loopback(host: str | None) -> bool:
    """Whether a host of a URL is this machine, by its name or address."""
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _options(read: Reader) -> Options:
    newer = read.is_newer
    instruction = read.text("instruction", "INSTRUCTION", *(("AGENT_INSTRUCTION",) if newer else ()))
    if instruction is None and (file := read.text("instruction_file")):
        instruction = Path(file).read_text()
    urls = read.text("intelligence", "AGENT_INTELLIGENCE", *(("INTELLIGENCE",) if newer else ())) or ""
    endpoints = tuple(url.strip() for url in urls.split(",") if url.strip())
    serve = read.text("serve_mcp", "AGENT_SERVE_MCP")
    cron = read.text("cron")
    interval = read.text("interval")
    mode = read.text("mode", "AGENT_MODE") or "once"
    probe = next((name for name in ("capabilities", "version", "validate_config") if read.flags[name]), None)
    options = Options(
        version=read.flags["standin_version"],
        stream_close=seconds(read.flags["standin_stream_close"]),
        probe=probe,
        instruction=instruction or "",
        endpoints=endpoints,
        tokens=_tokens(read, len(endpoints)),
        model=read.text("model", "AGENT_MODEL") or "",
        model_swap=read.flags["model_swap"],
        mode=mode,
        servers=_servers(read.flags["mcp"], read.flags["mcp_tags"]),
        allow_trifecta=read.flags["allow_trifecta"],
        tls_ca=_file(read.text("tls_ca", "AGENT_TLS_CA")),
        serve=serve,
        serve_cert=_file(read.text("serve_cert")),
        serve_key=_file(read.text("serve_key")),
        serve_client_ca=_file(read.text("serve_client_ca")),
        metrics_addr=read.text("metrics_addr", "AGENT_METRICS_ADDR"),
        subscribe=tuple(read.flags["subscribe"]),
        interval=None if interval is None else seconds(interval),
        cron=None if cron is None else Cron(cron),
        max_steps=read.flags["max_steps"],
        max_tokens=read.flags["max_tokens"],
        deadline=seconds(read.flags["deadline"]),
        max_depth=read.flags["max_depth"],
        run_id=read.text("run_id", "AGENT_RUN_ID") or uuid.uuid4().hex,
        traceparent=read.text("traceparent"),
        drain_timeout=seconds(read.text("drain_timeout", "AGENT_DRAIN_TIMEOUT") or "25s"),
        report_file=Path(path) if (path := read.text("report_file")) else None,
        events_ring=read.flags["events_ring"],
        log_level=read.flags["log_level"],
        log_content=read.flags["log_content"],
        budget_exit_code=read.flags["budget_exit_code"],
        instance=read.text(None, "AGENT_POD_NAME"),
        uid=read.text(None, "AGENT_POD_UID"),
        namespace=read.text(None, "AGENT_POD_NAMESPACE"),
        node=read.text(None, "AGENT_NODE_NAME"),
    )
    _check(options)
    return options


def _check(options: Options) -> None:
    if options.mode not in MODES:
        raise UsageError(f"mode: {options.mode!r} is none of {', '.join(MODES)}")
    if options.mode == "workflow":
        raise UsageError("mode: the stand-in has no workflows")
    for url in (*options.endpoints, *(server.endpoint for server in options.servers)):
        _check_url(url)
    for bound in (options.max_steps, options.max_tokens, options.max_depth, options.events_ring):
        if bound < 1:
            raise UsageError("limits are at least 1")
    _check_serving(options)
    if options.metrics_addr:
        host_and_port(options.metrics_addr)
    tags = {tag for server in options.servers for tag in server.tags or TAGS[:1]}
    if tags.issuperset(TAGS) and not options.allow_trifecta:
        raise UsageError("mcp: untrusted input, sensitive data and egress together need --allow-trifecta")
    if options.probe in ("capabilities", "version"):
        return
    if not options.instruction:
        raise UsageError("instruction: required (--instruction, --instruction-file or INSTRUCTION)")
    if not options.endpoints:
        raise UsageError("intelligence: required (--intelligence or AGENT_INTELLIGENCE)")
    if options.mode == "reactive" and not options.subscribe:
        raise UsageError("mode: reactive needs at least one --subscribe")
    if options.mode == "schedule" and options.cron is None and options.interval is None:
        raise UsageError("mode: schedule needs --cron or --interval")


def _check_serving(options: Options) -> None:
    if options.serve is None:
        return
    _check_url(options.serve)
    url = urlsplit(options.serve)
    if url.port is None:
        raise UsageError(f"serve-mcp: {options.serve!r} has no port")
    if url.scheme == "https" and (options.serve_cert is None or options.serve_key is None):
        raise UsageError("serve-mcp: https needs --serve-cert and --serve-key")
    if not is_loopback(url.hostname) and options.serve_client_ca is None:
        raise UsageError("serve-mcp: an address that is not loopback needs --serve-client-ca")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not an https URL")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UsageError(f"{url!r}: http is for loopback only")


def host_and_port(address: str) -> tuple[str, int]:
    """`:9090` is every IPv4 address. ValueError without a port."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"{address!r} is not host:port")
    return host or "0.0.0.0", int(port)


def _check_shard(shard: str | None) -> None:
    if shard is None:
        return
    index, _, count = shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UsageError(f"shard: {shard!r} is not K/N with K < N")
    if int(count) > 1:
        raise UsageError(f"shard: {shard!r}: the stand-in has no shards")


def _servers(entries: Sequence[str], tag_entries: Sequence[str]) -> tuple[McpServer, ...]:
    tags: dict[str, tuple[str, ...]] = {}
    for entry in tag_entries:
        name, _, words = entry.partition("=")
        tags[name] = tuple(words.split(","))
        if not set(tags[name]) <= set(TAGS):
            raise UsageError(f"mcp-tags: {entry!r}: the tags are {', '.join(TAGS)}")
    servers = []
    for entry in entries:
        name, equals, endpoint = entry.partition("=")
        if not name or not equals:
            raise UsageError(f"mcp: {entry!r} is not name=URL")
        servers.append(McpServer(name, endpoint, tags.get(name, ())))
    if unknown := set(tags) - {server.name for server in servers}:
        raise UsageError(f"mcp-tags: no server {', '.join(sorted(unknown))}")
    return tuple(servers)


def _tokens(read: Reader, count: int) -> tuple[str | None, ...]:
    """One a endpoint: `_N` (from 0) before the one for all."""
    name = "AGENT_INTELLIGENCE_TOKEN"
    common = read.secret(name, read.text("intelligence_token"), read.text("intelligence_token_file"))
    return tuple(read.secret(f"{name}_{index}", None, None) or common for index in range(count))


def _file(path: str | None) -> Path | None:
    if path is None:
        return None
    if not Path(path).is_file():
        raise UsageError(f"no file {path}")
    return Path(path)
