"""Both worlds have one face: the same questions get the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentctl.resource.v1 import resource_service_pb2 as pb
from agentctl.resource.v1 import resource_service_pb2_grpc as pb_grpc
from libs.cluster.kinds import CONFIG_MAP, POD, SERVICE_ACCOUNT
from libs.cluster.local import LocalCluster, open_local
from libs.documents import struct_of
from libs.errors import NotFoundError
from libs.mesh import PLANE
from libs.rpc.client import dial
from libs.rpc.server import serving
from libs.testing.ca import authority, identity
from services.plane.server import Resources
from services.plane.usage import Usage

from ..world import Kubernetes, Plane, World


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with open_local(tmp_path / "objects") as opened:
        yield opened


@pytest.fixture(params=["plane", "kubernetes"])
async def world(
    request: pytest.FixtureRequest, cluster: LocalCluster, tmp_path: Path
) -> AsyncIterator[World]:
    if request.param == "kubernetes":  # any home of the port will do
        yield Kubernetes(cluster, "a cluster")
        return
    servicer = Resources(cluster, Usage(cluster))
    person = identity(authority(), tmp_path, "/user/ann")
    async with (
        serving(
            PLANE,
            identity(authority(), tmp_path, "/cp/plane"),
            lambda server: pb_grpc.add_ResourceServiceServicer_to_server(servicer, server),
        ) as up,
        dial(PLANE, up.address, person) as channel,
    ):
        yield Plane(pb_grpc.ResourceServiceStub(channel))


def config(name: str = "c", **data: str) -> dict:
    metadata = {"name": name, "namespace": "default", "labels": {"of": "test"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def test_apply_says_what_became_of_it(world):
    assert (await world.apply(config(a="1"), dry_run=True))[1] == "created"
    verbs = [(await world.apply(config(a=value)))[1] for value in ("1", "1", "2")]
    assert verbs == ["created", "unchanged", "configured"]
    assert (await world.get(CONFIG_MAP, "default", "c"))["data"] == {"a": "2"}


async def test_more_than_a_page_is_listed_whole(world, cluster):
    for number in range(501):
        await cluster.create(config(f"c{number:03}"))
    found, revision = await world.list(CONFIG_MAP, "default", "of=test")
    assert [each["metadata"]["name"] for each in found] == [f"c{number:03}" for number in range(501)]
    assert revision


async def test_a_watch_goes_on_where_the_list_ended(world):
    await world.apply(config("old"))
    _, revision = await world.list(CONFIG_MAP, "default")
    await world.apply(config("new", a="1"))
    await world.apply(config("new", a="2"))
    await world.delete(CONFIG_MAP, "default", "new")
    seen = []
    async with asyncio.timeout(10):
        async for verb, thing in world.watch(CONFIG_MAP, "default", "of=test", revision):
            seen.append((verb, thing["metadata"]["name"]))
            if verb == "DELETED":
                break
    assert seen == [("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new")]


async def test_what_is_not_there_is_not_found(world):
    with pytest.raises(NotFoundError):
        await world.get(CONFIG_MAP, "default", "c")
    with pytest.raises(NotFoundError):
        await world.delete(CONFIG_MAP, "default", "c")
    with pytest.raises(NotFoundError):
        await world.token("default", "nobody", "somebody")
    with pytest.raises(NotFoundError):
        async for _ in world.logs("default", "nosuch", follow=False, tail=None, previous=False):
            pass


async def test_a_token_is_of_the_account_for_the_audience(world, cluster):
    metadata = {"name": "ci", "namespace": "default"}
    await cluster.create({"apiVersion": "v1", "kind": SERVICE_ACCOUNT.name, "metadata": metadata})
    token = await world.token("default", "ci", "somebody")
    assert (await cluster.review_token(token, "somebody")).service_account == ("default", "ci")


async def test_logs_come_whole(world, cluster, tmp_path):
    spec = {"containers": [{"name": "agent", "image": "i"}]}
    metadata = {"name": "p", "namespace": "default"}
    pod = await cluster.create({"apiVersion": "v1", "kind": POD.name, "metadata": metadata, "spec": spec})
    folder = tmp_path / "objects" / "pods" / pod["metadata"]["uid"]
    folder.mkdir(parents=True)
    text = b"".join(b"%06d\n" % number for number in range(50_000))
    (folder / "agent.log").write_bytes(text)

    async def read(tail: int | None) -> bytes:
        pieces = world.logs("default", "p", follow=False, tail=tail, previous=False)
        return b"".join([piece async for piece in pieces])

    assert await read(None) == text
    assert await read(2) == b"049998\n049999\n"


async def test_what_admission_warns_of_is_on_stderr(capsys):
    class Warned:
        async def Apply(self, _: pb.ApplyRequest) -> pb.ApplyResponse:
            return pb.ApplyResponse(
                object=struct_of(config()), warnings=["data.a: it is old; mend it (a-rule)"]
            )

    stub: Any = Warned()
    await Plane(stub).apply(config(a="1"))
    assert capsys.readouterr().err == "Warning: data.a: it is old; mend it (a-rule)\n"
