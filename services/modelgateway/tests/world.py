"""A provider on loopback, a cluster with pools and agents, gateways over real TLS, and who calls them."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2

from agentctl.modelgateway.v1 import modelgateway_service_pb2_grpc as pb_grpc
from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, MODEL_POOL, Kind
from libs.cluster.local import LocalCluster
from libs.identity import Identity
from libs.mesh import MODEL_GATEWAY
from libs.rpc.client import dial
from libs.testing import ca
from libs.testing.mesh import NAMESPACE, Mesh

from ..serving import ModelServing, model_serving
from ..settings import Settings
from ..store import Store
from ..store.memory import MemoryStore

KEY = "sk-the-secret-of-the-pool-0123456789"
MODEL = "small-1"
MUTE = {"mode": "once", "instruction": "Work.", "image": "example.com/mute:1"}
"""An Agent that asks no model."""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is nine?"}]}


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    reader: asyncio.StreamReader = field(repr=False, compare=False)

    async def gone(self) -> None:
        """Raises ConnectionError once the other side has closed the connection."""
        await self.reader.read(1)
        raise ConnectionError

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Respond = Callable[[Seen, Any], Awaitable[None]]


def whole(body: bytes, status: int = 200, **headers: str) -> Respond:
    """Answers with this body."""
    lines = {"content-type": "application/json", "content-length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}

    async def respond(_: Seen, writer: Any) -> None:
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body)

    return respond


def streamed(*pieces: bytes, dies: bool = False) -> Respond:
    """Answers with these pieces, each in a chunk of its own; with `dies` the connection is cut then."""

    async def respond(_: Seen, writer: Any) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        if dies:
            writer.transport.abort()
        else:
            writer.write(b"0\r\n\r\n")

    return respond


@dataclass
class WithoutEnd:
    """A writer of chunks to whose answer more will be added."""

    writer: asyncio.StreamWriter

    def write(self, data: bytes) -> None:
        if data != b"0\r\n\r\n":
            self.writer.write(data)

    async def drain(self) -> None:
        await self.writer.drain()

    async def chunk(self, piece: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await self.writer.drain()


def event(**fields: Any) -> bytes:
    return b"data: %s\n\n" % json.dumps(fields).encode()


def chunk(text: str, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    return event(id="c1", object="chat.completion.chunk", created=1, model=MODEL, choices=choices, **more)


USAGE_CHUNK = event(
    id="c1",
    object="chat.completion.chunk",
    created=1,
    model=MODEL,
    choices=[],
    usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
)
DONE = b"data: [DONE]\n\n"
STREAM = (chunk("ni"), chunk("ne"), chunk("."), USAGE_CHUNK, DONE)


def completion(text: str | None = "nine", **more: Any) -> bytes:
    message = {"role": "assistant", "content": text, **more}
    return json.dumps(
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
    ).encode()


async def _usual(seen: Seen, writer: Any) -> None:
    respond = streamed(*STREAM) if seen.json.get("stream") else whole(completion())
    await respond(seen, writer)


@dataclass
class StubProvider:
    """Does what `respond` says, and remembers what it was asked."""

    port: int = 0
    respond: Respond = _usual
    seen: list[Seen] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """A connection was closed by the other side while it was answered."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @classmethod
    @asynccontextmanager
    async def serve(cls, tls: ssl.SSLContext | None = None) -> AsyncIterator[StubProvider]:
        provider = cls()
        server = await asyncio.start_server(provider._connection, "127.0.0.1", 0, ssl=tls)
        provider.port = server.sockets[0].getsockname()[1]
        tasks = provider._tasks
        try:
            yield provider
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")
                headers = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                seen = Seen(first.split(" ")[1], headers, body, reader)
                self.seen.append(seen)
                await self.respond(seen, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


def thing(kind: Kind, name: str, spec: dict[str, Any], namespace: str = NAMESPACE) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}


def secret(name: str = "key", value: str = KEY, namespace: str = NAMESPACE) -> Object:
    data = {"token": base64.b64encode(value.encode()).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def endpoint(name: str, url: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "url": url, "credential": {"secretRef": {"name": "key", "key": "token"}}, **more}


@dataclass
class World:
    """What a test plays with."""

    cluster: LocalCluster
    mesh: Mesh
    stack: AsyncExitStack
    provider: StubProvider
    store: Store = field(default_factory=MemoryStore)

    async def populate(self) -> None:
        await self.cluster.create(secret())
        await self.pool("main")
        template = {"instruction": "Work.", "model": {"pool": "main"}}
        await self.put(AGENT, "writer", {**template, "mode": "once"})
        await self.put(AGENT_FLEET, "crew", {"template": template, "coordinator": {"template": template}})

    async def put(self, kind: Kind, name: str, spec: dict[str, Any], namespace: str = NAMESPACE) -> None:
        """Writes an object, or writes it anew."""
        await self.cluster.apply(thing(kind, name, spec, namespace), "test")

    async def pool(self, name: str = "main", *, namespace: str = NAMESPACE, **spec: Any) -> None:
        """A pool of our provider, unless `spec` says otherwise."""
        usual: dict[str, Any] = {"models": [MODEL, "large-1"]}
        if "endpoint" not in spec:
            usual["endpoints"] = [endpoint("first", self.provider.url)]
        await self.put(MODEL_POOL, name, {**usual, **spec}, namespace)

    async def gateway(self, store: Store | None = None, **settings: Any) -> Reached:
        """One that serves, and knows the objects."""
        reached = await self.stack.enter_async_context(self.opened(store, **settings))
        return reached

    @asynccontextmanager
    async def opened(self, store: Store | None = None, **settings: Any) -> AsyncIterator[Reached]:
        identity = ca.identity(
            self.mesh.authority, self.mesh.folder, "/cp/modelgateway", dns_names=["localhost"]
        )
        chosen = Settings(
            **{
                "tls_dir": identity.folder,
                "store": "memory",
                "port": 0,
                "edge_port": 0,
                "drain": timedelta(seconds=2),
                **settings,
            }
        )
        used = store or self.store

        @asynccontextmanager
        async def opener(_: Settings) -> AsyncIterator[Store]:
            yield used

        async with model_serving(chosen, self.cluster, opener) as serves, AsyncExitStack() as stack:
            reached = Reached(self, serves, used, identity, stack)
            await reached.ready()
            yield reached


@dataclass
class Reached:
    """A gateway, and clients of it."""

    world: World
    serves: ModelServing
    store: Store
    identity: Identity
    stack: AsyncExitStack

    @property
    def url(self) -> str:
        return f"https://localhost:{self.serves.edge.rpartition(':')[2]}/v1"

    async def ready(self) -> None:
        async with asyncio.timeout(10), self.http(None) as client:
            while (await client.get(f"{self.url.removesuffix('/v1')}/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def context(self, role: str | None = "agent/writer", namespace: str = NAMESPACE) -> ssl.SSLContext:
        """TLS of a caller; None shows no certificate."""
        context = ssl.create_default_context(cafile=self.identity.root)
        if role is not None:
            identity = self.world.mesh.identity(role, namespace)
            context.load_cert_chain(identity.certificate, identity.key)
        return context

    def http(
        self, role: str | None = "agent/writer", namespace: str = NAMESPACE, **options: Any
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            verify=self.context(role, namespace), base_url=f"{self.url}/", timeout=20, **options
        )

    async def post(
        self,
        body: Any = CHAT,
        role: str | None = "agent/writer",
        *,
        path: str = "chat/completions",
        namespace: str = NAMESPACE,
        **headers: str,
    ) -> httpx2.Response:
        """One request; names of headers with _ for -."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http(role, namespace) as client:
            return await client.post(path, content=content, headers=told)

    async def stub(self, role: str = "agent/writer", namespace: str = NAMESPACE) -> Any:
        """Of the gRPC service."""
        identity = self.world.mesh.identity(role, namespace)
        channel = await self.stack.enter_async_context(dial(MODEL_GATEWAY, self.serves.address, identity))
        return pb_grpc.ModelGatewayServiceStub(channel)

    async def records(self, count: int = 1, namespace: str = NAMESPACE) -> list[Any]:
        """Of calls, oldest first, once there are so many: they are booked after the answer."""
        async with asyncio.timeout(10):
            while len(found := (await self.store.calls(namespace)).records) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found[::-1]

    async def levels(self, namespace: str = NAMESPACE) -> dict[tuple[str, str], tuple[int, int]]:
        """Used and reserved, by scope and name."""
        return {
            (each.key.scope.name.lower(), each.key.name): (each.used, each.reserved)
            for each in await self.store.usage(namespace)
        }
