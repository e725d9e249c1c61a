"""The key of the environment is where a pool names it, and nowhere when the plane has gone."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from libs.cluster.kinds import NAMESPACE, SECRET
from libs.cluster.local import LocalCluster, open_local
from libs.settings import SettingsError

from ..key import KEY, NAME, handed_out, key_of

CREDENTIAL = {"secretRef": {"name": NAME, "key": KEY}}


def pool(name: str, namespace: str, credential: dict[str, Any] | None = CREDENTIAL) -> dict[str, Any]:
    endpoint = {"name": "first", "url": "https://models.example"}
    return {
        "apiVersion": "agentctl.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "models": ["m"],
            "endpoints": [endpoint | ({"credential": credential} if credential else {})],
        },
    }


async def namespaces(cluster: LocalCluster, *names: str) -> None:
    for name in names:
        await cluster.create({"apiVersion": "v1", "kind": NAMESPACE.name, "metadata": {"name": name}})


async def secrets(cluster: LocalCluster) -> dict[str, str]:
    """The key in each namespace."""
    return {
        each["metadata"]["namespace"]: base64.b64decode(each["data"][KEY]).decode()
        for each in (await cluster.list(SECRET)).items
    }


async def until_there(cluster: LocalCluster, expected: dict[str, str]) -> None:
    async with asyncio.timeout(10):
        while True:
            if await secrets(cluster) == expected:
                return
            await asyncio.sleep(0.01)


async def test_a_pool_that_names_it_gets_it_and_other_namespaces_do_not(tmp_path):
    async with open_local(tmp_path / "objects") as cluster:
        await namespaces(cluster, "a", "b", "c")
        await cluster.apply(pool("before", "a"), "ann")
        await cluster.apply(pool("plain", "b", None), "ann")
        async with handed_out(cluster, "sk-1"):
            await until_there(cluster, {"a": "sk-1"})
            await cluster.apply(pool("later", "c"), "ann")
            await until_there(cluster, {"a": "sk-1", "c": "sk-1"})
        assert await secrets(cluster) == {}


async def test_what_a_killed_plane_left_is_replaced_or_taken_away(tmp_path):
    async with open_local(tmp_path / "objects") as cluster:
        await namespaces(cluster, "a")
        await cluster.apply(pool("one", "a"), "ann")
        left = {"apiVersion": "v1", "kind": SECRET.name, "stringData": {KEY: "sk-old"}}
        labels = {"agentctl.dev/environment": "OPENAI_API_KEY"}
        await cluster.create({**left, "metadata": {"name": NAME, "namespace": "a", "labels": labels}})
        async with handed_out(cluster, "sk-new"):
            await until_there(cluster, {"a": "sk-new"})
        await cluster.create({**left, "metadata": {"name": NAME, "namespace": "a", "labels": labels}})
        async with handed_out(cluster, ""):
            assert await secrets(cluster) == {}


async def test_a_secret_that_somebody_has_made_stays_as_it_is(tmp_path):
    async with open_local(tmp_path / "objects") as cluster:
        await namespaces(cluster, "a", "b")
        theirs = {"apiVersion": "v1", "kind": SECRET.name, "stringData": {KEY: "sk-theirs"}}
        await cluster.create({**theirs, "metadata": {"name": NAME, "namespace": "a"}})
        await cluster.apply(pool("one", "a"), "ann")
        await cluster.apply(pool("two", "b"), "ann")
        async with handed_out(cluster, "sk-ours"):
            await until_there(cluster, {"a": "sk-theirs", "b": "sk-ours"})
        assert await secrets(cluster) == {"a": "sk-theirs"}


def test_the_key_is_a_variable_or_in_a_file(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text("sk-2\n")
    assert key_of({}) == ""
    assert key_of({"OPENAI_API_KEY": "sk-1"}) == "sk-1"
    assert key_of({"OPENAI_API_KEY_FILE": str(file)}) == "sk-2"
    with pytest.raises(SettingsError, match=r"OPENAI_API_KEY_FILE: .*none cannot be read"):
        key_of({"OPENAI_API_KEY_FILE": str(tmp_path / "none")})
