"""The service as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentctl.management.v1 import management_service_pb2 as pb
from agentctl.management.v1 import management_service_pb2_grpc as pb_grpc
from libs.errors import NotFoundError, UnavailableError
from libs.mesh import APISERVER
from libs.rpc.client import dial
from libs.settings import SettingsError, load
from libs.testing.mesh import NAMESPACE
from services.apiserver.managing import Readiness, managing
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


async def test_it_is_ready_while_the_cluster_answers_and_asks_it_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    now, asked = [0.0], []

    async def version() -> str:
        asked.append(now[0])
        if len(asked) > 1:
            raise UnavailableError("no API server")
        return "test"

    monkeypatch.setattr(world.cluster, "version", version)
    readiness = Readiness(world.cluster, world.mesh.identity("cp/apiserver"), lambda: now[0])
    await readiness.check()
    now[0] = 4.0
    await readiness.check()
    assert asked == [0.0]
    now[0] = 6.0
    with pytest.raises(UnavailableError, match="no API server"):
        await readiness.check()


async def test_it_is_not_ready_without_a_certificate(world: World, tmp_path: Path):
    identity = replace(world.mesh.identity("cp/apiserver"), folder=tmp_path / "none")
    with pytest.raises(UnavailableError, match="certificate"):
        await Readiness(world.cluster, identity).check()
