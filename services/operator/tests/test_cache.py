"""What the cache knows between a write and the watch that tells of it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from libs.cluster import Listing, Object, controller_of
from libs.cluster.kinds import (
    AGENT,
    AGENT_FLEET,
    CONFIG_MAP,
    DEPLOYMENT,
    MODEL_POOL,
    POD,
    SCALED_OBJECT,
    SECRET,
    Kind,
)
from services.operator.cache import Cache
from services.operator.key import Key

from .world import Through, World


@asynccontextmanager
async def following(world: World, now=lambda: 0.0) -> AsyncIterator[tuple[Cache, list[Key]]]:
    woken: list[Key] = []
    cache = Cache(world.cluster, "", woken.append, clock=now)
    async with anyio.create_task_group() as group:
        group.start_soon(cache.run)
        await cache.synced()
        yield cache, woken
        group.cancel_scope.cancel()


def _ahead(thing: Object) -> Object:
    """The object as an answer would have it that the watch has not told of."""
    newer = copy.deepcopy(thing)
    newer["metadata"]["resourceVersion"] = str(int(thing["metadata"]["resourceVersion"]) + 1_000_000)
    newer["spec"]["instruction"] = "newer"
    return newer


def _wrote(cache: Cache, made: Object) -> None:
    cache.begin(Key(AGENT, "demo", "x"))
    cache.end(Key(AGENT, "demo", "x"), made)


async def test_what_we_wrote_counts_at_once_and_only_for_a_time(local: World):
    clock = [0.0]
    await local.apply(local.agent("x"))
    async with following(local, lambda: clock[0]) as (cache, _):
        heard = cache.get(AGENT, "demo", "x")
        assert heard is not None
        _wrote(cache, _ahead(heard))
        assert (cache.get(AGENT, "demo", "x") or {})["spec"]["instruction"] == "newer"
        clock[0] = 31.0
        assert (cache.get(AGENT, "demo", "x") or {})["spec"]["instruction"] == "look"


async def test_what_is_deleted_is_gone_whatever_we_wrote(local: World):
    await local.apply(local.agent("x"))
    async with following(local) as (cache, woken):
        heard = cache.get(AGENT, "demo", "x")
        assert heard is not None
        _wrote(cache, _ahead(heard))
        woken.clear()
        await local.cluster.delete(AGENT, "demo", "x")
        await local.until(lambda: Key(AGENT, "demo", "x") in woken)
        assert cache.get(AGENT, "demo", "x") is None
        _wrote(cache, _ahead(heard))  # the answer comes late
        assert cache.get(AGENT, "demo", "x") is None


async def test_the_echo_of_our_own_write_wakes_nobody(local: World):
    await local.apply(local.agent("x"))
    async with following(local) as (cache, woken):
        woken.clear()
        thing = {**local.agent("x"), "spec": {"instruction": "ours"}}
        _wrote(cache, await local.cluster.apply(thing, "agentctl-operator"))
        await local.apply(local.agent("y"))  # a mark: what was told before it has been told
        await local.until(lambda: Key(AGENT, "demo", "y") in woken)
        assert Key(AGENT, "demo", "x") not in woken


async def test_a_reference_wakes_who_names_it(local: World):
    async with following(local) as (cache, woken):
        spec = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
        template = {"spec": {"containers": [{"name": "agent", **spec}]}}
        await local.apply(local.agent("x", model={"pool": "p"}, podTemplate=template))
        await local.until(lambda: cache.users(Key(MODEL_POOL, "demo", "p")))
        woken.clear()
        pool = local.thing(MODEL_POOL, "p", {"endpoint": "https://m.test/v1", "models": ["m"]})
        await local.apply(pool)
        await local.until(lambda: Key(AGENT, "demo", "x") in woken)
        woken.clear()
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s", "namespace": "demo"},
            "data": {"k": "c2VjcmV0"},
        }
        await local.cluster.create(secret)
        await local.until(lambda: Key(AGENT, "demo", "x") in woken)
        assert cache.hashes(SECRET, "demo", "s")
        assert not cache.hashes(CONFIG_MAP, "demo", "s")


async def test_what_is_heard_while_we_write_waits_for_the_answer(local: World):
    await local.apply(local.agent("x"))
    key, mark = Key(AGENT, "demo", "x"), Key(AGENT, "demo", "y")
    async with following(local) as (cache, woken):
        woken.clear()
        cache.begin(key)
        thing = {**local.agent("x"), "spec": {"instruction": "ours"}}
        made = await local.cluster.apply(thing, "agentctl-operator")
        await local.apply(local.agent("y"))
        await local.until(lambda: mark in woken)
        cache.end(key, made)  # it was only our own
        assert key not in woken
        cache.begin(key)
        made = await local.cluster.apply({**thing, "spec": {"instruction": "new"}}, "agentctl-operator")
        await local.apply(local.agent("x"))  # and this is somebody else's
        await local.apply(local.agent("y", instruction="another mark"))
        await local.until(lambda: woken.count(mark) == 2)
        assert key not in woken
        cache.end(key, made)
        assert key in woken


async def test_what_keda_says_every_half_minute_wakes_nobody(local: World):
    fleet = await local.apply(local.fleet("f"))
    uid = fleet["metadata"]["uid"]
    named = {"apiVersion": fleet["apiVersion"], "kind": fleet["kind"], "name": "f"}
    scaled = local.thing(SCALED_OBJECT, "f", {"scaleTargetRef": {"name": "f"}})
    scaled["metadata"] |= {
        "labels": {"app.kubernetes.io/managed-by": "agentctl"},
        "ownerReferences": [{**named, "uid": uid, "controller": True}],
    }
    scaled = await local.cluster.create(scaled)
    key, mark = Key(AGENT_FLEET, "demo", "f"), Key(AGENT, "demo", "x")
    async with following(local) as (cache, woken):
        assert cache.children(key) == [cache.get(SCALED_OBJECT, "demo", "f")]
        woken.clear()
        await local.report(scaled, {"lastActiveTime": "2026-01-01T00:00:00Z"})
        await local.apply(local.agent("x"))
        await local.until(lambda: mark in woken)
        revision = scaled["metadata"]["resourceVersion"]

        def heard() -> bool:
            there = cache.get(SCALED_OBJECT, "demo", "f")
            return there is not None and there["metadata"]["resourceVersion"] != revision

        await local.until(heard)
        assert key not in woken
        await local.report(scaled, {"conditions": [{"type": "Ready", "status": "False"}]})
        await local.until(lambda: key in woken)


IDLE = {"name": "agent", "image": "registry.test/x"}
NONSENSE = [
    {"metadata": {"ownerReferences": [{"controller": True, "kind": [], "name": {}, "uid": 1}]}},
    {"metadata": {"ownerReferences": [{"controller": True, "kind": "Agent", "name": ["x"], "uid": {}}]}},
    {"metadata": {"ownerReferences": ["Agent", None, 3]}},
    {"metadata": {"ownerReferences": None, "labels": None}},
    {"metadata": {"labels": {"agentctl.dev/agent": ["x"], "agentctl.dev/fleet": {}}}},
    {"metadata": {"labels": {"agentctl.dev/agent": "x", "agentctl.dev/fleet": ["y"]}}},
    {"metadata": {"labels": ["agentctl.dev/agent"]}},
    {"binaryData": ["a"], "data": "b"},
    {"data": {"key": ["no", "text"]}},
    {"spec": ["no", "spec"]},
    {"spec": None},
]


class Foreign(Through):
    """Has an object of every kind that no schema has seen."""

    nonsense: Object

    async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
        listing = await super().list(kind, namespace, labels, name=name)
        metadata = {"name": "odd", "namespace": "demo", "uid": "odd", "resourceVersion": "1"}
        named = {"apiVersion": kind.api_version, "kind": kind.name, **self.nonsense}
        odd = {**named, "metadata": {**metadata, **self.nonsense.get("metadata", {})}}
        return Listing([*listing.items, odd], listing.revision)


@pytest.mark.parametrize("nonsense", NONSENSE, ids=str)
async def test_an_object_that_makes_no_sense_stops_nobody(
    local: World, nonsense: Object, caplog: pytest.LogCaptureFixture
):
    foreign = Foreign(local.cluster)
    foreign.nonsense = copy.deepcopy(nonsense)
    world = World(foreign, local.namespace, local.folder)
    async with following(world) as (cache, woken):
        await local.apply(local.agent("x"))
        await local.until(lambda: Key(AGENT, "demo", "x") in woken)
        assert cache.children(Key(AGENT, "demo", "x")) == []
    assert not [record for record in caplog.records if record.exc_info], "nor is it a bug of ours"


def test_a_malformed_controller_is_none():
    right = {"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": True}
    assert controller_of({"metadata": {"ownerReferences": [right]}}) == right
    for key in right:
        assert controller_of({"metadata": {"ownerReferences": [right | {key: ["x"]}]}}) is None


async def test_a_pod_whose_labels_change_is_of_the_other_agent(local: World):
    await local.apply(local.agent("x"))
    deployment = await local.cluster.create({
        "apiVersion": "apps/v1", "kind": DEPLOYMENT.name, "metadata": {"name": "x", "namespace": "demo"},
        "spec": {
            "selector": {"matchLabels": {"agentctl.dev/agent": "x"}},
            "template": {"metadata": {"labels": {"agentctl.dev/agent": "x"}}, "spec": {"containers": [IDLE]}},
        },
    })  # fmt: skip
    pod = await local.pod(deployment, "x")
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
    async with following(local) as (cache, woken):
        assert cache.pods("demo", frozenset({"x"}))
        woken.clear()
        changed = {
            **pod["metadata"],
            "labels": {**labels, "agentctl.dev/agent": "y", "agentctl.dev/fleet": "y"},
        }
        pod = await local.cluster.replace({**await local.get(POD, name), "metadata": {**changed}})
        await local.until(lambda: woken)
        assert set(woken) == {Key(AGENT, "demo", "x"), Key(AGENT_FLEET, "demo", "y")}
        assert not cache.pods("demo", frozenset({"x"}))
        assert cache.pods("demo", frozenset({"y"}))
        woken.clear()
        bare = {key: value for key, value in labels.items() if key != "agentctl.dev/agent"}
        await local.cluster.replace({**pod, "metadata": {**pod["metadata"], "labels": bare}})
        await local.until(lambda: woken)
        assert not cache.pods("demo", frozenset({"y"}))
