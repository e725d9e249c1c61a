"""The whole service by its settings, in front of the local home."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from libs.cluster.local import open_local
from libs.errors import UnavailableError
from libs.settings import SettingsError, load
from libs.testing.mesh import Mesh
from services.admission.admitting import admitting
from services.admission.gathering import Gatherer
from services.admission.reading import OVERRIDE
from services.admission.settings import Settings

from .declared import agent, pods, pool, server, server_set
from .served import serving_in

SECRET = {"env": [{"name": "W", "valueFrom": {"secretKeyRef": {"name": "word", "key": "a"}}}]}


async def test_in_the_local_home_a_user_may_name_what_is_in_its_own_namespace(tmp_path):
    async with open_local(tmp_path / "home") as cluster:
        await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
        await cluster.create(pool())
        await cluster.create(server_set("web", server("get", "egress", "untrusted_input")))
        home: Any = cluster
        async with serving_in(tmp_path, home) as service:
            of_both = agent(podTemplate=pods(SECRET, serviceAccountName="robot"))
            user, administrator = "user/demo.ci", "administrator/agentctl-system.administrator"
            assert (await service.by_grpc(of_both, role=user)).allowed
            stranger = await service.by_grpc(of_both, role="user/other.ci")  # of demo, by an account of other
            assert {each.rule for each in stranger.denials} == {"secret-not-yours", "account-not-yours"}
            lethal = agent(
                metadata={"annotations": {OVERRIDE: "why"}}, podTemplate=pods(SECRET), mcpServers=["web"]
            )
            assert [each.rule for each in (await service.by_grpc(lethal, role=user)).denials] == ["trifecta"]
            assert (await service.by_grpc(lethal, role=administrator)).allowed


async def test_without_an_edge_there_is_grpc_only(world, tmp_path):
    identity = Mesh(tmp_path).identity("cp/admission")
    async with admitting(Settings(tls_dir=identity.folder, port=0, edge_port=None), world) as up:
        assert up.edge == ""
        world.down["version"] = UnavailableError("it is down")
        with pytest.raises(UnavailableError, match="it is down"):
            await up.check()
        world.down.clear()
        await up.check()


async def test_who_fills_the_webhooks_leaves_grpc_as_it_is(world, tmp_path, monkeypatch):
    monkeypatch.setattr("services.admission.admitting.Gatherer", partial(Gatherer, seconds=60, at_once=1))
    world.put(pool())
    world.silent.add("silent")
    async with serving_in(tmp_path, world) as service:
        asking = service.by_webhook(agent(model={"pool": "silent"}), path="/validate?timeout=30s")
        full = asyncio.create_task(asking)
        await world.reached(1)
        assert (await service.by_grpc(agent())).allowed
        world.voice.set()
        assert (await full)["status"]["code"] == 422  # it was heard out: nobody waited for its time to be up


def test_settings_say_what_is_wrong_with_them():
    given = {
        "AGENTCTL_TLS_DIR": "t",
        "ADMISSION_EDGE_PORT": "",
        "ADMISSION_ALLOWED_IMAGES": "ghcr.io/acme/**, python",
    }
    settings = load(Settings, "ADMISSION_", given)
    assert (settings.tls_dir, settings.edge_port) == (Path("t"), None)
    assert settings.allowed_images == ("ghcr.io/acme/**", "python")
    with pytest.raises(SettingsError, match="a b"):
        load(Settings, "ADMISSION_", {**given, "ADMISSION_ALLOWED_IMAGES": "a b"})
