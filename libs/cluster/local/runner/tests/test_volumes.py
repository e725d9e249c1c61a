"""Volumes: real files that follow the objects they come from."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest

from libs.cluster.kinds import CONFIG_MAP

from .test_containers import config, pod
from .world import SLEEP, World, container, is_ready

AUDIENCE = "agentctl-identity"


def account():
    return config("agent", {}, "ServiceAccount")


def mounted(volumes, code=SLEEP, **more):
    mounts = [{"name": volume["name"], "mountPath": f"/run/test/{volume['name']}"} for volume in volumes]
    agent = container(code, volumeMounts=mounts, **more)
    return pod({"containers": [agent], "volumes": volumes, "serviceAccountName": "agent"})


def file(world: World, pod, path):
    return world.folder / "pods" / pod["metadata"]["uid"] / "volumes" / path


def projected(*sources):
    return {"name": "v", "projected": {"sources": list(sources)}}


async def test_files_are_where_the_container_looks_for_them(world: World):
    await world.apply(config("c", {"data": {"key": "hello"}}))
    read = "open(os.environ['FILE']).read(), open(sys.argv[1] + '/key').read()"
    code = f"import os, sys; print({read}, flush=True)"
    env = [{"name": "FILE", "value": "/run/test/v/key"}]
    volume = {"name": "v", "configMap": {"name": "c"}}
    await world.apply(mounted([volume], f"{code};{SLEEP}", env=env, args=["/run/test/v"]))
    await world.said(await world.pod("p", is_ready), "hello hello\n")


async def test_a_changed_config_map_changes_the_files_in_place(world: World):
    await world.apply(config("c", {"data": {"one": "1", "two": "2"}}))
    await world.apply(mounted([{"name": "v", "configMap": {"name": "c"}}]))
    running = await world.pod("p", is_ready)
    assert file(world, running, "v/one").read_text() == "1"
    await world.apply(config("c", {"data": {"one": "changed", "three": "3"}}))

    async def changed():
        return file(world, running, "v/three").exists() and not file(world, running, "v/two").exists()

    await world.until(changed)
    assert file(world, running, "v/one").read_text() == "changed"
    await world.cluster.delete(CONFIG_MAP, "default", "c")
    await world.apply(config("c", {"data": {"one": "back"}}))

    async def back():
        return file(world, running, "v/one").read_text() == "back"

    await world.until(back)
    still = await world.cluster.get(CONFIG_MAP, "default", "c")
    assert still["data"] == {"one": "back"}


async def test_secrets_are_private_and_items_choose(world: World):
    await world.apply(config("s", {"stringData": {"key": "x", "other": "y"}}, "Secret"))
    items = [{"key": "key", "path": "deep/name"}]
    await world.apply(mounted([{"name": "v", "secret": {"secretName": "s", "items": items}}]))
    running = await world.pod("p", is_ready)
    path = file(world, running, "v/deep/name")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("x", 0o600)
    assert not file(world, running, "v/other").exists()


async def test_a_token_is_the_pods_own_and_is_renewed_before_it_ends(world: World):
    await world.apply(account())
    source = {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}
    await world.apply(mounted([projected({"serviceAccountToken": source})]))
    running = await world.pod("p", is_ready)
    path = file(world, running, "v/token")
    first = path.read_text()
    bearer = await world.cluster.review_token(first, AUDIENCE)
    assert (bearer.pod, bearer.pod_uid) == ("p", running["metadata"]["uid"])
    assert bearer.username == "system:serviceaccount:default:agent"
    assert path.stat().st_mode & 0o777 == 0o600
    world.clock.ahead += timedelta(seconds=0.8 * 3600 + 1)

    async def renewed():
        return path.read_text() not in ("", first)

    await world.until(renewed)
    assert (await world.cluster.review_token(path.read_text(), AUDIENCE)).pod == "p"


async def test_a_projected_volume_has_all_of_its_sources(world: World):
    await world.apply(config("c", {"data": {"key": "config"}}))
    await world.apply(config("s", {"stringData": {"word": "secret"}}, "Secret"))
    field = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    sources = ({"configMap": {"name": "c"}}, {"secret": {"name": "s"}}, {"downwardAPI": {"items": [field]}})
    await world.apply(mounted([projected(*sources)]))
    running = await world.pod("p", is_ready)
    folder = file(world, running, "v")
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {"key": "config", "word": "secret", "name": "p"}


async def test_containers_share_an_empty_dir_that_goes_with_the_pod(world: World):
    write = container("open('shared', 'w').write('seen')", "init", workingDir="/run/v")
    read = container("print(open('shared').read())", workingDir="/run/v")
    for each in (write, read):
        each["volumeMounts"] = [{"name": "v", "mountPath": "/run/v"}]
    spec = {"initContainers": [write], "containers": [read], "volumes": [{"name": "v", "emptyDir": {}}]}
    await world.apply(pod({**spec, "restartPolicy": "Never"}))
    done = await world.pod("p", lambda pod: pod["status"]["phase"] == "Succeeded")
    assert world.log(done) == "seen\n"

    async def tidied():
        return not file(world, done, "v").exists()

    await world.until(tidied)


async def test_a_pod_waits_for_its_volumes(world: World):
    await world.apply(mounted([{"name": "v", "configMap": {"name": "late"}}]))

    def waits(pod):
        statuses = pod["status"].get("containerStatuses", ())
        return any("late" in each["state"].get("waiting", {}).get("message", "") for each in statuses)

    await world.pod("p", waits)
    await world.apply(config("late", {"data": {}}))
    await world.pod("p", is_ready)


@pytest.mark.parametrize(
    ("volume", "mount", "why"),
    [
        ({"hostPath": {"path": "/"}}, {}, "hostPath"),
        ({"emptyDir": {}}, {"subPath": "x"}, "subPath"),
        (
            {"downwardAPI": {"items": [{"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {},
            "../x",
        ),
    ],
)
async def test_what_there_is_not_here_is_named(world: World, volume, mount, why):
    agent = container(SLEEP, volumeMounts=[{"name": "v", "mountPath": "/v", **mount}])
    spec = {"containers": [agent], "volumes": [{"name": "v", **volume}]}
    await world.apply(pod({**spec, "restartPolicy": "Never"}))
    await world.apply(pod(spec, "kept"))
    failed = await world.pod("p", lambda pod: pod["status"]["phase"] == "Failed")
    assert why in failed["status"]["message"]

    def waits(pod):
        statuses = pod["status"].get("containerStatuses", ())
        return any(each["state"].get("waiting", {}).get("reason") == "Unsupported" for each in statuses)

    kept = await world.pod("kept", waits)
    assert kept["status"]["phase"] == "Pending"
    assert world.processes() == []


@pytest.mark.parametrize("path", ["x\0y", "a\nb", "../a", "/a"])
async def test_a_path_is_inside_and_has_no_control_characters(world: World, path):
    await world.apply(config("c", {"data": {"k": "v"}}))
    volume = {"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": path}]}}
    await world.apply(mounted([volume]))

    def refused(pod):
        statuses = pod.get("status", {}).get("containerStatuses", ())
        return any(
            "no path inside" in each["state"].get("waiting", {}).get("message", "") for each in statuses
        )

    assert await world.pod("p", refused)


async def test_volumes_are_filled_beside_the_event_loop(world: World, monkeypatch):
    threads = []

    def noting(path, *rest, open=os.open):
        if "/volumes/" in str(path):
            threads.append(threading.current_thread())
        return open(path, *rest)

    monkeypatch.setattr("os.open", noting)
    await world.apply(config("c", {"data": {"k": "v"}}))
    await world.apply(config("agent", {}, "ServiceAccount"))
    await world.apply(mounted([{"name": "v", "configMap": {"name": "c"}}]))
    running = await world.pod("p", is_ready)
    assert file(world, running, "v/k").read_text() == "v"
    assert threads
    assert threading.main_thread() not in threads
