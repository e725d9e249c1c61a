"""The service as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentctl.management.v1 import management_service_pb2 as pb
from agentctl.management.v1 import management_service_pb2_grpc as pb_grpc
from libs.cluster.kinds import CONFIG_MAP, Kind
from libs.errors import NotFoundError, UnavailableError
from libs.mesh import APISERVER
from libs.rpc.client import dial
from libs.settings import SettingsError, load
from libs.testing.mesh import NAMESPACE
from services.apiserver.managing import managing
from services.apiserver.settings import Settings

from .world import USER, World


def environment(folder: Path) -> dict[str, str]:
    return {"AGENTCTL_TLS_DIR": str(folder), "APISERVER_PORT": "0", "APISERVER_EDGE_PORT": ""}


async def test_it_serves_grpc_and_no_edge_where_none_is_wanted(world: World):
    settings = load(Settings, "APISERVER_", environment(world.mesh.identity("cp/apiserver").folder))
    assert settings.edge_port is None
    async with managing(settings, world.cluster) as service:
        await service.check()
        assert service.edge == ""
        async with dial(APISERVER, service.address, world.mesh.identity(USER)) as channel:
            stub = pb_grpc.ManagementServiceStub(channel)
            with pytest.raises(NotFoundError, match="nobody"):
                await stub.Drain(pb.DrainRequest(target=pb.Target(namespace=NAMESPACE, agent="nobody")))


def test_an_edge_is_served_unless_its_port_is_empty(tmp_path: Path):
    said = environment(tmp_path)
    del said["APISERVER_EDGE_PORT"]
    assert load(Settings, "APISERVER_", said).edge_port == 6443
    with pytest.raises(SettingsError, match="APISERVER_EDGE_PRT"):
        load(Settings, "APISERVER_", {**said, "APISERVER_EDGE_PRT": "1"})


async def test_where_an_edge_is_served_it_is_ready_once_it_knows_whom_to_believe_there(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    listed, may_be_read = world.cluster.list, asyncio.Event()

    async def listing(kind: Kind, *rest: Any, **options: Any) -> Any:
        if kind == CONFIG_MAP:
            await may_be_read.wait()
        return await listed(kind, *rest, **options)

    monkeypatch.setattr(world.cluster, "list", listing)
    said = {**environment(world.mesh.identity("cp/apiserver").folder), "APISERVER_EDGE_PORT": "0"}
    async with managing(load(Settings, "APISERVER_", said), world.cluster) as service:
        with pytest.raises(UnavailableError, match="extension-apiserver-authentication"):
            await service.check()
        may_be_read.set()
        async with asyncio.timeout(20):
            while True:
                try:
                    return await service.check()
                except UnavailableError:
                    await asyncio.sleep(0.01)
