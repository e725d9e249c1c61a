"""A world that reviews ask, and the service in front of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from agentctl.admission.v1 import admission_service_pb2 as pb
from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceStub
from libs.cluster.kinds import kind_of
from libs.documents import struct_of
from libs.errors import MeshError, NotFoundError
from libs.mesh import ADMISSION
from libs.rpc.client import dial
from libs.testing.mesh import Mesh
from services.admission.admitting import admitting
from services.admission.settings import Settings


class World:
    """What a review asks of a cluster. It answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.objects: dict[Any, Any] = {}
        self.denied: set[tuple[str, str]] = set()  # verb, resource
        self.asked: list[Any] = []
        self.authors: list[Any] = []
        self.down: dict[str, MeshError] = {}  # by the name that is looked up
        self.silent: set[str] = set()
        self.voice = asyncio.Event()  # gives the silent their answer
        self.underway = self.most = 0
        self._moved = asyncio.Event()

    def put(self, *things: Any) -> None:
        for thing in things:
            metadata = thing["metadata"]
            self.objects[
                kind_of(thing["apiVersion"], thing["kind"]), metadata["namespace"], metadata["name"]
            ] = thing

    async def get(self, kind: Any, namespace: str, name: str) -> Any:
        await self._answer(name)
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise NotFoundError(f'{kind.resource} "{name}" not found') from None

    async def review_access(self, bearer: Any, access: Any) -> bool:
        self.authors.append(bearer)
        await self._answer(access.name)
        return (access.verb, access.resource) not in self.denied

    async def version(self) -> str:
        await self._answer("version")
        return "world"

    async def reached(self, underway: int) -> None:
        """Until so many lookups are under way."""
        while self.underway < underway:
            self._moved.clear()
            await self._moved.wait()

    async def _answer(self, name: str) -> None:
        self.asked.append(name)
        self.underway += 1
        self.most = max(self.most, self.underway)
        self._moved.set()
        try:
            await asyncio.sleep(0)
            if name in self.silent:
                await self.voice.wait()
            if name in self.down:
                raise self.down[name]
        finally:
            self.underway -= 1


@dataclass
class Service:
    """The service, and its callers."""

    mesh: Mesh
    address: str
    edge: str
    http: aiohttp.ClientSession
    tls: ssl.SSLContext
    stack: AsyncExitStack
    stubs: dict[tuple[str, str], Any] = field(default_factory=dict)

    async def stub(self, role: str = "administrator/agentctl-system.root", namespace: str = "demo") -> Any:
        if (role, namespace) not in self.stubs:
            channel = await self.stack.enter_async_context(
                dial(ADMISSION, self.address, self.mesh.identity(role, namespace))
            )
            self.stubs[role, namespace] = AdmissionServiceStub(channel)
        return self.stubs[role, namespace]

    async def by_grpc(
        self, thing: Any, old: Any = None, role: str = "administrator/agentctl-system.root"
    ) -> Any:
        old = struct_of(old) if old is not None else None
        return await (await self.stub(role)).Review(pb.ReviewRequest(object=struct_of(thing), old_object=old))

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        how = {"json": body} if isinstance(body, dict) else {"data": body}
        url = f"https://{self.edge}{path}"
        async with self.http.post(url, ssl=self.tls, **how, **options) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def by_webhook(
        self, thing: Any, old: Any = None, path: str = "/validate?timeout=5s", **said: Any
    ) -> Any:
        status, answer = await self.post(path, asked(thing, old, **said))
        assert (status, answer["apiVersion"], answer["kind"]) == (
            200,
            "admission.k8s.io/v1",
            "AdmissionReview",
        )
        assert answer["response"]["uid"] == "u-1"
        return answer["response"]


def asked(thing: Any, old: Any = None, **said: Any) -> dict[str, Any]:
    """An AdmissionReview, as an API server posts it."""
    request = {
        "uid": "u-1",
        "kind": {"group": "agentctl.dev", "version": "v1alpha1", "kind": "Agent"},
        "resource": {"group": "agentctl.dev", "version": "v1alpha1", "resource": "agents"},
        "name": "scout",
        "namespace": "demo",
        "operation": "CREATE" if old is None else "UPDATE",
        "userInfo": {"username": "jane", "groups": ["dev", "system:authenticated"], "extra": {"a": ["b"]}},
        "object": thing,
        "oldObject": old,
        "dryRun": False,
        "options": None,
        **said,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@asynccontextmanager
async def serving_in(folder: Path, world: World, **options: Any) -> AsyncIterator[Service]:
    """The whole service, as its settings make it, in front of that world."""
    mesh = Mesh(folder)
    identity = mesh.identity("cp/admission")
    settings = Settings(tls_dir=identity.folder, port=0, edge_port=0, **options)
    cluster: Any = world
    tls = ssl.create_default_context(cafile=str(identity.root))
    tls.check_hostname = False  # loopback has no name of ours
    async with (
        AsyncExitStack() as stack,
        admitting(settings, cluster) as up,
        aiohttp.ClientSession() as http,
    ):
        yield Service(mesh, up.address, up.edge, http, tls, stack)
