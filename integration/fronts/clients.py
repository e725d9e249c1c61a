"""The clients of the interop table. Each makes a call of `cases` and says what it saw."""

from __future__ import annotations

import abc
import asyncio
import json
import shutil
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
import hpack
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame

from libs.identity import Identity
from libs.testing import h2

from .cases import Case
from .probe import KINDS

_HERE = Path(__file__).parent
_PROTOS = Path(error_details_pb2.__file__).parents[2]  # grpcurl prints what it finds there
_GRPCURL = Path(sys.executable).with_name("grpcurl")
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_COMPRESSIONS = {
    "": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}


@dataclass(frozen=True)
class Where:
    """A server, and who calls."""

    port: int
    identity: Identity
    name: str  # in the server's certificate

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Answer:
    """How a call ended, and the messages that came before."""

    code: str
    message: str = ""
    details: bytes = b""
    messages: Sequence[bytes] = ()


class Client(abc.ABC):
    """One way to make a call."""

    name: str

    @abc.abstractmethod
    def can(self, case: Case) -> bool:
        """Whether this client is able to do that."""

    @abc.abstractmethod
    async def ask(self, case: Case, where: Where, leave: asyncio.Event) -> Answer:
        """Makes the call; cancels it at `leave`."""


class Grpcio(Client):
    """grpcio, blocking."""

    name = "grpcio"

    def can(self, case: Case) -> bool:
        return case.body is None and case.compression in _COMPRESSIONS

    async def ask(self, case: Case, where: Where, leave: asyncio.Event) -> Answer:
        calls: list[Any] = []
        leaving = asyncio.create_task(_at(leave, lambda: calls[0].cancel()))
        try:
            return await asyncio.to_thread(self._ask, case, where, calls.append)
        finally:
            leaving.cancel()

    def _ask(self, case: Case, where: Where, begun: Callable[[Any], None]) -> Answer:
        messages: list[bytes] = []
        with grpc.secure_channel(where.address, _credentials(case, where), _options(case, where)) as channel:
            stub = getattr(channel, case.kind)(case.path)
            many = case.kind.endswith("stream")
            call = (stub if many else stub.future)(_request(case), **_how(case))
            begun(call)
            with suppress(grpc.RpcError, grpc.FutureCancelledError):
                if many:
                    messages.extend(call)
                else:
                    messages.append(call.result())
            return _answer(call.code(), call.details(), call.trailing_metadata(), messages)


class GrpcAio(Client):
    """grpc.aio."""

    name = "grpc.aio"

    def can(self, case: Case) -> bool:
        return case.body is None and case.compression in _COMPRESSIONS

    async def ask(self, case: Case, where: Where, leave: asyncio.Event) -> Answer:
        messages: list[bytes] = []
        credentials, options = _credentials(case, where), _options(case, where)
        async with grpc.aio.secure_channel(where.address, credentials, options) as channel:
            call = getattr(channel, case.kind)(case.path)(_request(case), **_how(case))
            leaving = asyncio.create_task(_at(leave, call.cancel))
            with suppress(grpc.RpcError, asyncio.CancelledError):
                if case.kind.endswith("stream"):
                    async for message in call:
                        messages.append(message)  # noqa: PERF401  (those before an error count too)
                else:
                    messages.append(await call)
            leaving.cancel()
            return _answer(await call.code(), await call.details(), await call.trailing_metadata(), messages)


class Grpcurl(Client):
    """grpcurl, which is grpc-go of 2021, with JSON on both sides."""

    name = "grpcurl"

    def can(self, case: Case) -> bool:
        plain = case.body is None and not case.compression and not case.keepalive
        kind = KINDS.get(case.method, KINDS["Say"])[0]
        return plain and not case.before_the_server and case.kind == kind and _json(case) is not None

    async def ask(self, case: Case, where: Where, leave: asyncio.Event) -> Answer:
        words = [
            "-format-error",
            "-import-path",
            str(_HERE),
            "-import-path",
            str(_PROTOS),
            "-proto",
            "probe.proto",
            "-d",
            "@",
        ]
        words += ["-cacert", str(where.identity.root), "-servername", where.name]
        words += ["-connect-timeout", "5", "-max-time", str(case.seconds)]
        if case.certificate:
            words += ["-cert", str(where.identity.certificate), "-key", str(where.identity.key)]
        for key, value in _metadata(case, _base64):
            words += ["-H", f"{key}: {value}"]
        process = await asyncio.create_subprocess_exec(
            _GRPCURL, *words, where.address, case.path[1:],
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        leaving = asyncio.create_task(_at(leave, lambda: process.send_signal(signal.SIGTERM)))
        out, errors = await process.communicate((_json(case) or "").encode())
        leaving.cancel()
        if process.returncode == -signal.SIGTERM:
            return Answer(grpc.StatusCode.CANCELLED.name)
        answer = KINDS.get(case.method, KINDS["Say"])[2]
        messages = [
            # It says null for an empty BytesValue.
            b"" if each is None else json_format.Parse(json.dumps(each), answer()).SerializeToString()
            for each in _each(out.decode())
        ]
        if process.returncode == 0:
            return Answer(grpc.StatusCode.OK.name, messages=messages)
        text = errors.decode()
        if "{" not in text:
            return Answer(grpc.StatusCode.UNAVAILABLE.name, text)
        status = json_format.Parse(text[text.index("{") :], status_pb2.Status())
        details = status.SerializeToString() if status.details else b""
        return Answer(_CODES[status.code].name, status.message, details, messages)


class Go(Client):
    """grpc-go, by the program in ../goclient."""

    name = "grpc-go"

    def __init__(self, program: Path) -> None:
        self._program = program

    @classmethod
    def build(cls, folder: Path) -> Go | str:
        """The client, compiled into this folder; or why there is none."""
        if (go := shutil.which("go")) is None:
            return "Go is not installed"
        program = folder / "goclient"
        built = subprocess.run(
            [go, "build", "-o", program, "."],
            cwd=_HERE.parent / "goclient",
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return cls(program) if built.returncode == 0 else f"go build: {built.stderr[-300:]}"

    def can(self, case: Case) -> bool:
        return case.body is None and case.compression != "deflate"

    async def ask(self, case: Case, where: Where, leave: asyncio.Event) -> Answer:
        order = {
            "Address": where.address,
            "Name": where.name,
            "Root": str(where.identity.root),
            "Certificate": str(where.identity.certificate) if case.certificate else "",
            "Key": str(where.identity.key),
            "Method": case.path,
            "Requests": [{"head": _base64(part.head), "zeros": part.zeros} for part in case.requests],
            "Many": case.kind.startswith("stream"),
            "AnswersMany": case.kind.endswith("stream"),
            "Seconds": case.seconds,
            "Metadata": _metadata(case, bytes.hex),
            "Compression": case.compression,
            "Wait": case.before_the_server,
            "Keepalive": case.keepalive,
        }
        process = await asyncio.create_subprocess_exec(
            self._program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        leaving = asyncio.create_task(_at(leave, process.stdin.close))
        told = json.loads(await process.stdout.read())
        leaving.cancel()
        process.stdin.close()
        await process.wait()
        details, messages = told["details"] or "", told["messages"] or []
        return Answer(
            _CODES[told["code"]].name,
            told["message"],
            _bytes(details),
            [_bytes(each or "") for each in messages],
        )


class Raw(Client):
    """HTTP/2 frames by hand: what no gRPC library would send."""

    name = "raw"

    def can(self, case: Case) -> bool:
        return case.body is not None

    async def ask(self, case: Case, where: Where, leave: asyncio.Event) -> Answer:
        return await asyncio.to_thread(self._ask, case, where)

    def _ask(self, case: Case, where: Where) -> Answer:
        fields: dict[str, str] = {}
        body = b""
        decoder = hpack.Decoder()
        with h2.Connection(where.port, where.identity) as connection:
            request = h2.headers(case.path, end=not case.body, extra=case.extra)
            connection.say(h2.PREFACE + request + (h2.data(case.body) if case.body else b""))
            for frame in connection.hear(5.0):
                if isinstance(frame, HeadersFrame):
                    fields |= {str(key): str(value) for key, value in decoder.decode(frame.data)}
                elif isinstance(frame, DataFrame):
                    body += frame.data
                if isinstance(frame, RstStreamFrame) or "END_STREAM" in frame.flags:
                    break
        if "grpc-status" not in fields:
            return Answer(f"no status, {connection.closed or 'reset'}")
        message = unquote(fields.get("grpc-message", ""))
        details = _bytes(fields.get("grpc-status-details-bin", ""))
        return Answer(_CODES[int(fields["grpc-status"])].name, message, details, [body] if body else [])


def _credentials(case: Case, where: Where) -> grpc.ChannelCredentials:
    root = where.identity.root.read_bytes()
    if not case.certificate:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(
        root, where.identity.key.read_bytes(), where.identity.certificate.read_bytes()
    )


def _options(case: Case, where: Where) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.ssl_target_name_override", where.name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
    ]
    return [*options, ("grpc.keepalive_time_ms", 10_000)] if case.keepalive else options


def _request(case: Case) -> Any:
    messages = [part.whole() for part in case.requests]
    return iter(messages) if case.kind.startswith("stream") else messages[0]


def _how(case: Case) -> dict[str, Any]:
    return {
        "timeout": case.seconds,
        "metadata": list(case.metadata),
        "compression": _COMPRESSIONS[case.compression],
        "wait_for_ready": case.before_the_server,
    }


def _answer(
    code: grpc.StatusCode, text: str | None, trailers: Sequence[tuple[str, Any]] | None, messages: list[bytes]
) -> Answer:
    details = dict(trailers or ()).get("grpc-status-details-bin", b"")
    return Answer(code.name, text or "", details, messages)


async def _at(event: asyncio.Event, act: Callable[[], object]) -> None:
    await event.wait()
    act()


def _metadata(case: Case, encode: Callable[[bytes], str]) -> list[tuple[str, str]]:
    return [(key, value if isinstance(value, str) else encode(value)) for key, value in case.metadata]


def _json(case: Case) -> str | None:
    """The request as grpcurl reads it; None if it has no such form."""
    request = KINDS.get(case.method, KINDS["Say"])[1]
    try:
        messages = [request.FromString(part.whole()) for part in case.requests]
    except DecodeError:
        return None
    return "\n".join(json_format.MessageToJson(message) for message in messages)


def _each(text: str) -> list[Any]:
    decoder, at, found = json.JSONDecoder(), 0, []
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def _base64(plain: bytes) -> str:
    return b64encode(plain).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4))
