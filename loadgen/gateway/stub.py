"""A stub of a provider, a process of its own: the same bytes to each request, at once. It is no model.

python -m loadgen.gateway.stub PORT
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

MODEL = "stub-1"
ENDS = b"[DONE]"
_TEXT = "This is a stub and no model: it has not read what was asked."
_USAGE = {"prompt_tokens": 12, "completion_tokens": 16, "total_tokens": 28}
_ABOUT = {"id": "chatcmpl-stub", "created": 1, "model": MODEL}


def _whole() -> bytes:
    message = {"role": "assistant", "content": _TEXT}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    body = json.dumps({**_ABOUT, "object": "chat.completion", "choices": choices, "usage": _USAGE}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _events() -> list[bytes]:
    about = {**_ABOUT, "object": "chat.completion.chunk"}
    deltas = [{"role": "assistant", "content": ""}, *({"content": f"{word} "} for word in _TEXT.split())]
    told = [
        {**about, "choices": [{"index": 0, "delta": each, "finish_reason": None}], "usage": None}
        for each in deltas
    ]
    told.append({**about, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None})
    told.append({**about, "choices": [], "usage": _USAGE})
    events = [b"data: %s\n\n" % json.dumps(each).encode() for each in told] + [b"data: %s\n\n" % ENDS]
    return [b"%x\r\n%s\r\n" % (len(event), event) for event in events]


_WHOLE, _EVENTS = _whole(), _events()
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_REST = b"".join(_EVENTS[1:]) + b"0\r\n\r\n"


class Stub(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Answers once the whole of a request with a Content-Length is there."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        _, _, length = head.lower().partition(b"content-length:")
        if len(body) < int(length.partition(b"\r\n")[0] or 0):
            return
        self._received = b""
        if b'"stream":true' not in body.replace(b" ", b""):
            self._transport.write(_WHOLE)
            return
        self._transport.write(_STREAM_HEAD + _EVENTS[0])
        self._transport.write(_REST)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
