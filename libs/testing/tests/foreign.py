"""The other ends of an agent in a test: an authority, a scripted model, a tool server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

WAIT = 20.0  # far more than anything here takes


class Authority:
    """A root that signs leaves for 127.0.0.1, each in a folder of its own: tls.crt, tls.key, ca.crt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"throw-away {id(self)}")])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self._root = self._sign(self._name, self._key, constraints)
        self.file = folder / "ca.crt"
        self.file.write_bytes(self._root.public_bytes(serialization.Encoding.PEM))

    def leaf(self, name: str) -> Path:
        """Its folder."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        pem = serialization.Encoding.PEM
        (folder / "tls.crt").write_bytes(self._sign(subject, key, address).public_bytes(pem))
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / "tls.key").write_bytes(secret)
        return folder

    def _sign(self, subject: x509.Name, key: Any, extension: x509.ExtensionType) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )


def says(text: str) -> dict[str, Any]:
    """A chat completion that is a final answer of 90 tokens in and 10 out."""
    return _completion({"role": "assistant", "content": text}, "stop")


def calls(tool: str, **arguments: Any) -> dict[str, Any]:
    """A chat completion that calls a tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"id": "call-1", "type": "function", "function": function}
    return _completion({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")


def _completion(message: dict[str, Any], reason: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 90, "completion_tokens": 10}
    return {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}


@dataclass
class Model:
    """Answers from a script, the last line again and again; holds while `going` is not set."""

    url: str = ""
    script: list[Any] = field(default_factory=lambda: [says("done")])
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    going: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self.headers.append(request.headers)
        line = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.arrived.release()
        await self.going.wait()
        return web.Response(status=line) if isinstance(line, int) else web.json_response(line)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m-1"}, {"id": "m-2"}]})

    async def is_asked(self) -> None:
        """Waits for one more call."""
        await asyncio.wait_for(self.arrived.acquire(), WAIT)


@dataclass
class ToolServer:
    """Speaks the older protocol only; offers the tool `notes.add` and the resource `notes://today`."""

    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    content: str = "first"
    pushes: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.seen]

    async def post(self, request: web.Request) -> web.Response:
        message = await request.json()
        self.seen.append(message)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "resources": {"subscribe": True}},
                "serverInfo": {"name": "notes", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "notes.add", "inputSchema": {"type": "object"}}]},
            "resources/list": {"resources": [{"uri": "notes://today", "name": "today"}]},
            "tools/call": {"content": [{"type": "text", "text": "added"}]},
            "resources/read": {"contents": [{"uri": "notes://today", "text": self.content}]},
            "resources/subscribe": {},
            "resources/unsubscribe": {},
        }
        if "id" not in message:
            return web.Response(status=202)
        envelope = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] not in results:
            return web.json_response(envelope | {"error": {"code": -32601, "message": "unknown"}})
        headers = {"Mcp-Session-Id": "s1"} if message["method"] == "initialize" else {}
        return web.json_response(envelope | {"result": results[message["method"]]}, headers=headers)

    async def get(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while uri := await self.pushes.get():
            event = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        return response


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
