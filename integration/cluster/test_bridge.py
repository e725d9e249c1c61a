"""Agents that speak agentd-1, on a real cluster: the bridge beside them is all that the mesh sees.

The agent is the stand-in of agentd, mounted into our image; the operator gives it the flags and variables
that it would give agentd. Its model and its tool are the double's, which it reaches through the bridge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from agentctl.coordination.v1 import work_pb2
from libs.cluster import Object
from libs.errors import DeniedError
from libs.work import Producer

from .killing import kill
from .kubectl import ROOT
from .person import Person
from .world import World, is_ready, restarts, script, work

pytestmark = pytest.mark.cluster

RUN_ID = "agent/run_id"
DONE = {"say": "done"}
BESIDE = {"name": "standin", "mountPath": "/opt/standin/agentd", "readOnly": True}
FILES = """
import json, os, pathlib
roots = "/run", "/var/run/secrets", "/etc/double"
files = (path for root in roots for path in pathlib.Path(root).rglob("*") if path.is_file())
print(json.dumps({"files": sorted({str(p.resolve()) for p in files}), "names": sorted(os.environ)}))
"""


def foreign(*args: str) -> Object:
    """What makes an agent the stand-in, with these flags after the operator's."""
    container = {
        "name": "agent",
        "command": ["python", "-m", "agentd"],
        "args": ["--standin-stream-close", "1s", *args],
        "env": [{"name": "PYTHONPATH", "value": "/opt/standin"}],
        "volumeMounts": [BESIDE],
    }
    volumes = [{"name": "standin", "configMap": {"name": "standin"}}]
    return {
        "contract": "agentd-1",
        "image": "agentctl:dev",
        "podTemplate": {"spec": {"containers": [container], "volumes": volumes}},
    }


@pytest.fixture(scope="module")
def lands(around: World) -> World:
    """With the stand-in to be mounted."""
    program = {path.name: path.read_text() for path in (ROOT / "libs/testing/agentd").glob("*.py")}
    metadata = {"name": "standin", "namespace": around.namespace}
    around.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": program})
    return around


# --- once


def test_a_run_completes_and_the_bridge_keeps_no_pod_alive(lands: World) -> None:
    lands.kubectl.apply(lands.agent("once", "once", work("once"), DONE, **foreign("--log-content")))
    last = lands.ended("once")
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Succeeded", 0, "complete")
    [pod] = lands.pods("once")
    assert pod["status"]["phase"] == "Succeeded"
    [bridge] = pod["status"]["initContainerStatuses"]
    assert bridge["state"]["terminated"]["exitCode"] == 0
    [call] = lands.calls("once")
    assert call["meta"][RUN_ID] == lands.get("job", "once")["metadata"]["uid"]
    assert any('"text": "done"' in line or '"text":"done"' in line for line in lands.said("once"))


@pytest.mark.parametrize(
    ("name", "turns", "code", "intent", "tries", "why"),
    [
        ("exhausted", (work("exhausted"),), 7, "policy", 1, "PodFailurePolicy"),
        ("away", ({"status": 503},), 4, "retriable", 2, "BackoffLimitExceeded"),
    ],
)
def test_a_job_does_what_the_exit_code_asks(
    lands: World, name: str, turns: tuple[Object, ...], code: int, intent: str, tries: int, why: str
) -> None:
    limited = {"limits": {"maxSteps": 1}, "runs": {"retries": 1}}
    lands.kubectl.apply(lands.agent(name, "once", *turns, **limited, **foreign()))
    last = lands.ended(name)
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Failed", code, intent)
    status = lands.get("job", name)["status"]
    [said] = [each["reason"] for each in status["conditions"] if each["type"] == "Failed"]
    assert (status["failed"], said) == (tries, why)


# --- a fleet


@pytest.fixture(scope="module")
def crew(lands: World) -> World:
    """With a fleet of one such agent."""
    lands.kubectl.apply(lands.fleet("crew", 1, **foreign()))
    lands.kubectl.wait("condition=Ready", "agentfleet/crew", lands.namespace)
    return lands


@pytest.fixture(scope="module")
def foreman(lands: World) -> Person:
    """Who gives it work."""
    person = Person(lands.kubectl, lands.namespace, "foreman")
    person.bind("agentctl-user")
    return person


def inside(world: World, container: str) -> Any:
    """The files and the names of the variables that the container has."""
    name = world.running("crew")["metadata"]["name"]
    words = ("exec", name, "-n", world.namespace, "-c", container, "--", "python", "-c", FILES)
    return json.loads(world.kubectl(*words))


def test_the_foreign_container_holds_nothing_of_the_mesh(crew: World) -> None:
    has = inside(crew, "agent")
    bridge = "/run/agentctl/bridge"
    assert has["files"] == [f"{bridge}/{name}" for name in ("ca.crt", "tls.crt", "tls.key")]
    assert not [name for name in has["names"] if name.startswith(("AGENTCTL_", "OPENAI_"))]
    name = crew.running("crew")["metadata"]["name"]
    read = ("exec", name, "-n", crew.namespace, "-c", "agent", "--", "python", "-c")
    loopback = crew.kubectl(*read, f"print(open('{bridge}/ca.crt').read())")
    assert loopback.strip() not in crew.authority.bundle.files["ca.crt"]
    # which the same look finds where it is:
    assert "/run/agentctl/tls/tls.key" in inside(crew, "bridge")["files"]


async def test_a_fleet_works_through_its_items(crew: World, foreman: Person, tmp_path: Path) -> None:
    async with foreman.client(tmp_path) as client:
        producer = Producer(client, f"{crew.namespace}/crew")
        submitted = [
            await producer.submit(script(work(f"item-{n}"), {"say": f"{n}"}).encode()) for n in range(4)
        ]
        items = [await producer.result(each.id) for each in submitted]
    assert [item.state for item in items] == [work_pb2.WORK_STATE_SUCCEEDED] * 4
    assert [item.result.decode() for item in items] == list("0123")
    assert [len(crew.calls(f"item-{n}")) for n in range(4)] == [1] * 4


@pytest.mark.parametrize("victim", ["agent", "bridge"])
async def test_an_item_outlives_kill_9(crew: World, foreman: Person, tmp_path: Path, victim: str) -> None:
    pod = crew.running("crew")
    async with foreman.client(tmp_path) as client:
        producer = Producer(client, f"{crew.namespace}/crew")
        submitted = await producer.submit(script(work(victim, wait=victim), {"say": "in the end"}).encode())
        crew.at(victim)
        kill(pod, victim)
        crew.open(victim)
        item = await producer.result(submitted.id)
    assert (item.state, item.result) == (work_pb2.WORK_STATE_SUCCEEDED, b"in the end")
    assert len(crew.calls(victim)) == 2
    assert crew.running("crew")["metadata"]["uid"] == pod["metadata"]["uid"]
    crew.until(lambda: restarts(crew.running("crew"), victim) == 1)


async def test_verbs_reach_the_agent_through_the_bridge(crew: World, foreman: Person, tmp_path: Path) -> None:
    crew.kubectl.wait("condition=Ready", "agentfleet/crew", crew.namespace)
    apiserver = crew.identity("/cp/apiserver", tmp_path / "apiserver")
    pod = crew.running("crew")
    async with (
        foreman.client(tmp_path / "foreman") as client,
        crew.calling(pod, "crew", apiserver) as stub,
    ):
        manifest = (await stub.GetManifest(pb.GetManifestRequest())).manifest
        assert (manifest.implementation, manifest.placement.pod_uid) == ("agentd", pod["metadata"]["uid"])
        turns = work("first", wait="first"), work("second"), DONE
        producer = Producer(client, f"{crew.namespace}/crew")
        submitted = await producer.submit(script(*turns).encode())
        crew.at("first")
        await stub.Pause(pb.PauseRequest(wait=Duration()))
        crew.open("first")
        held = await stub.Pause(pb.PauseRequest())
        assert [(run.id, run.state) for run in held.runs] == [(submitted.id, run_pb2.RUN_STATE_PAUSED)]
        assert crew.calls("second") == []
        await stub.Resume(pb.ResumeRequest())
        item = await producer.result(submitted.id)
        assert (item.state, len(crew.calls("second"))) == (work_pb2.WORK_STATE_SUCCEEDED, 1)


async def test_a_person_may_look_and_not_steer(crew: World, foreman: Person, tmp_path: Path) -> None:
    user = await foreman.certified(tmp_path / "user")
    async with crew.calling(crew.running("crew"), "crew", user) as stub:
        assert (await stub.GetStatus(pb.GetStatusRequest())).ready
        with pytest.raises(DeniedError):
            await stub.Pause(pb.PauseRequest())


async def test_a_drain_ends_the_agent_and_its_container_comes_back(crew: World, tmp_path: Path) -> None:
    apiserver = crew.identity("/cp/apiserver", tmp_path / "apiserver")
    before = crew.running("crew")
    async with crew.calling(before, "crew", apiserver) as stub:
        await stub.Drain(pb.DrainRequest())
    crew.until(lambda: restarts(crew.running("crew"), "agent") > restarts(before, "agent"))
    [container] = crew.running("crew")["status"]["containerStatuses"]
    assert container["lastState"]["terminated"]["exitCode"] == 0
    crew.until(lambda: is_ready(crew.running("crew")))
