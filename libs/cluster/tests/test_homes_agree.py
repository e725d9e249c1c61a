"""The same random history in both homes ends in the same objects, step by step."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from libs.cluster import key_of
from libs.cluster.kinds import AGENT, CONFIG_MAP, DEPLOYMENT, NAMESPACE
from libs.cluster.kubernetes import connect
from libs.cluster.local import open_local
from libs.errors import ConflictError, MeshError, NotFoundError

pytestmark = pytest.mark.cluster


@pytest.fixture
async def homes(tmp_path):
    path = os.environ.get("AGENTCTL_TEST_KUBECONFIG")
    if not path:
        pytest.skip("AGENTCTL_TEST_KUBECONFIG names no cluster")
    async with open_local(tmp_path / "home") as local, connect(Path(path)) as kubernetes:
        yield local, kubernetes


@pytest.fixture
async def namespace(homes):
    thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "conf-"}}
    local, kubernetes = homes
    made = await kubernetes.create(thing)
    name = made["metadata"]["name"]
    await local.create({**thing, "metadata": {"name": name}})
    yield name
    await kubernetes.delete(NAMESPACE, "", name)


def some(chance, *names):
    """Random values for a random part of these names."""
    return {name: chance.choice(["1", "2"]) for name in names if chance.random() < 0.5}


def config_map(chance):
    return {"data": some(chance, "a", "b", "c")}


def deployment(chance):
    def container(name):
        said = {
            "env": [{"name": key, "value": value} for key, value in some(chance, "A", "B", "C").items()],
            "ports": [{"containerPort": int(port)} for port in some(chance, "80", "81")],
            "args": chance.choice([[], ["x"], ["y", "z"]]),
        }
        return {"name": name, "image": "i"} | {key: value for key, value in said.items() if value}

    containers = [container("agent")] + [container("side")] * (chance.random() < 0.5)
    pods = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers}}
    return {"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": pods}}


def agent(chance):
    budget = {"maxTokens": chance.choice([1000, 2000])} if chance.random() < 0.5 else {}
    spec = {"mode": "once", "instruction": chance.choice("xy"), "model": {"pool": "p"}}
    conditions = [
        {
            "type": name,
            "status": chance.choice(["True", "False"]),
            "reason": "Tested",
            "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
            "observedGeneration": 1,
        }
        for name in some(chance, "Accepted", "Ready")
    ]
    status = {"observedGeneration": chance.choice([1, 2])} | (
        {"conditions": conditions} if conditions else {}
    )
    return {"spec": spec | ({"limits": budget} if budget else {}), "status": status}


def seen(thing):
    """The part that a home does not fill with what is its own."""
    metadata = thing["metadata"]
    found = {key: metadata.get(key) or {} for key in ("labels", "annotations", "finalizers")}
    found["annotations"].pop("deployment.kubernetes.io/revision", None)
    found["data"] = thing.get("data") or {}
    spec = thing.get("spec", {})
    if thing["kind"] == "Deployment":
        found["containers"] = {
            container["name"]: (
                sorted(map(str, container.get("env", ()))),
                {each["containerPort"] for each in container.get("ports", ())},
                container.get("args"),
            )
            for container in spec["template"]["spec"]["containers"]
        }
    else:
        found["spec"] = {key: value for key, value in spec.items() if value != {}}
        status = thing.get("status") or {}
        conditions = sorted(map(str, map(sorted, map(dict.items, status.get("conditions") or ()))))
        found["status"] = status.get("observedGeneration"), conditions
    return found


async def step(home, kind, thing, how, manager):
    """What is there after it, or which error it was. Asserts that revision and generation count changes."""
    before = after = None
    try:
        if how in ("apply", "dry"):
            with suppress(NotFoundError):
                before = await home.get(kind, *key_of(thing))
            after = await home.apply(thing, manager, dry_run=how == "dry")
        elif how == "status":
            before = await home.get(kind, *key_of(thing))
            after = await home.apply(thing, manager, subresource="status")
        elif how == "replace":
            before, after = await replace(home, kind, thing)
        else:
            await home.delete(kind, *key_of(thing))
    except MeshError as error:
        return type(error)
    if (
        before and after and kind is not DEPLOYMENT
    ):  # a controller notes things in it; annotations count in it
        respecified = kind is AGENT and before["spec"] != after["spec"]
        generations = [each["metadata"].get("generation") for each in (before, after)]
        assert (generations[0] != generations[1]) == respecified
        if how != "dry" and seen(before) != seen(after):
            assert before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]
    return after and seen(after)


async def replace(home, kind, thing):
    """(before, after) of a replacement by what the thing says; a controller may be faster, once or twice."""
    with anyio.fail_after(60):
        while True:
            before = await home.get(kind, *key_of(thing))
            whole = {**before, "metadata": {**before["metadata"], "labels": thing["metadata"]["labels"]}}
            whole |= {part: thing[part] for part in ("spec", "data") if part in thing}
            with suppress(ConflictError):
                return before, await home.replace(whole)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", [config_map, deployment, agent])
async def test_each_step_has_the_same_outcome(homes, namespace, make, seed):
    chance = random.Random(f"{make.__name__} {seed}")
    kind = {config_map: CONFIG_MAP, deployment: DEPLOYMENT, agent: AGENT}[make]
    history = []
    for _ in range(40):
        ways = {"apply": 12, "replace": 3, "dry": 2, "delete": 1} | ({"status": 6} if kind is AGENT else {})
        [how] = chance.choices(list(ways), list(ways.values()))
        manager = chance.choice(["us", "them"])
        metadata = {
            "namespace": namespace,
            "name": "it",
            "labels": some(chance, "x", "y"),
            "annotations": some(chance, "x", "y"),
        }
        thing = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **make(chance)}
        history.append((how, manager, thing))
        local, kubernetes = [await step(home, kind, thing, how, manager) for home in homes]
        assert local == kubernetes, history
