"""Every mode from a manifest, on a real cluster: what it does, how it ends, and that kill -9 loses nothing.

The model and the tool are the double's, which say what the manifest has them say, and wait where it has them
wait. What a Job does about an exit code is its own podFailurePolicy, carried out by the Job controller.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from google.protobuf.duration_pb2 import Duration

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import run_pb2
from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb2
from agentctl.coordination.v1 import work_pb2
from libs.cluster import Object
from libs.errors import DeniedError, UnavailableError
from libs.work import Producer

from .killing import kill
from .kubectl import RefusedError
from .person import Person
from .world import World, restarts, script, work

pytestmark = pytest.mark.cluster

RUN_ID = "agentctl.dev/run-id"
DONE = {"say": "done"}


# --- once: exit codes, and what the Job does about them

AWAY = {"name": "nobody", "endpoint": "https://127.0.0.1:9/mcp"}
IMPATIENT = {"AGENT_START_TIMEOUT": "1s"}


def told(**variables: str) -> Object:
    """A podTemplate with variables that are the owner's to set."""
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return {"spec": {"containers": [{"name": "agent", "env": env}]}}


ONCE: dict[str, tuple[tuple[Object, ...], Object]] = {
    "completed": ((work("completed"), DONE), {}),
    "refused": (({"refuse": "no"},), {}),
    "partial": (({"cut": "it began"},), {}),
    "exhausted": ((work("exhausted"),), {"limits": {"maxSteps": 1}}),
    "away": (({"status": 503},), {}),
    "toolless": ((DONE,), {"mcpServers": ["nobody"], "podTemplate": told(**IMPATIENT)}),
    "wrong": ((DONE,), {"podTemplate": told(AGENT_TOOL_TIMEOUT="soon")}),
}


@pytest.fixture(scope="module")
def once(around: World) -> World:
    """All of ONCE, side by side, each of which may be tried twice."""
    around.kubectl.apply(
        around.thing("MCPServerSet", "nobody", {"servers": [AWAY]}),
        *(
            around.agent(name, "once", *turns, runs={"retries": 1}, **spec)
            for name, (turns, spec) in ONCE.items()
        ),
    )
    return around


def test_a_run_that_completes(once: World) -> None:
    last = once.ended("completed")
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Succeeded", 0, "complete")
    assert (last["reason"], last["inputTokens"], last["outputTokens"], last["steps"]) == (
        "completed",
        20,
        10,
        2,
    )
    thing, job = once.get("agent", "completed"), once.get("job", "completed")
    complete = next(each for each in thing["status"]["conditions"] if each["type"] == "Complete")
    assert (thing["status"]["phase"], complete["status"]) == ("Succeeded", "True")
    [call] = once.calls("completed")
    assert call["meta"][RUN_ID] == job["metadata"]["uid"]
    assert once.said("completed").count("done") == 1


@pytest.mark.parametrize(
    ("name", "code", "intent", "reason"),
    [
        ("refused", 5, "terminal", "refused"),
        ("partial", 3, "policy", "too_large"),
        ("exhausted", 7, "policy", "exhausted_steps"),
        ("wrong", 2, "terminal", "failed"),
    ],
)
def test_a_job_fails_at_once_where_another_try_would_not_help(
    once: World, name: str, code: int, intent: str, reason: str
) -> None:
    last = once.ended(name)
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Failed", code, intent)
    assert last["reason"] == reason
    assert failed(once, name) == (1, "PodFailurePolicy")


@pytest.mark.parametrize(("name", "code", "reason"), [("away", 4, "model"), ("toolless", 6, "server")])
def test_a_job_tries_again_where_that_may_help(once: World, name: str, code: int, reason: str) -> None:
    last = once.ended(name)
    assert (last["outcome"], last["exitCode"], last["intent"]) == ("Failed", code, "retriable")
    assert last["reason"] == reason
    assert failed(once, name) == (2, "BackoffLimitExceeded")


def failed(world: World, job: str) -> tuple[int, str]:
    """How many pods of the Job have, and why it did."""
    status = world.get("job", job)["status"]
    [why] = [each["reason"] for each in status["conditions"] if each["type"] == "Failed"]
    assert len(world.pods(job)) == status["failed"]
    return status["failed"], why


# --- kill -9 in what ends


def flow(name: str) -> Object:
    """A workflow whose second step waits at the gate of that name."""
    steps = [
        {"name": "first", "tool": "desk.work", "arguments": {"say": f"{name}-first"}},
        {"name": "second", "tool": "desk.work", "arguments": {"say": f"{name}-second", "wait": name}},
        {"name": "third", "instruction": script({"say": "third"})},
    ]
    return {"workflow": {"inline": yaml.safe_dump({"steps": steps})}, "instruction": None}


def keeping(claim: str) -> Object:
    """A podTemplate with a volume for finished steps."""
    template = told(AGENT_STATE_DIR="/state")
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
    template["spec"]["volumes"] = [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}]
    return template


@pytest.fixture(scope="module")
def killed(around: World) -> World:
    """Runs that were killed in a call, and may be tried once more."""
    retried = {"runs": {"retries": 1}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    metadata = {"name": "steps", "namespace": around.namespace}
    agents = [
        around.agent("asking", "once", work("asking"), {"wait": "asking", **DONE}, **retried),
        around.agent("working", "once", work("working", wait="working"), DONE, **retried),
        around.agent("flow", "workflow", **flow("flow"), **retried),
        around.agent("kept", "workflow", **flow("kept"), podTemplate=keeping("steps"), **retried),
    ]
    volume = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim}
    around.kubectl.apply(volume, *agents)
    for name in (agent["metadata"]["name"] for agent in agents):
        around.at(name)
        kill(around.running(name), "agent")
        around.open(name)
    return around


@pytest.mark.parametrize("name", ["asking", "working"])
def test_a_killed_run_is_tried_again_as_the_same_run(killed: World, name: str) -> None:
    last = killed.ended(name)
    assert (last["outcome"], last["exitCode"], last["reason"]) == ("Succeeded", 0, "completed")
    job = killed.get("job", name)
    assert (job["status"]["failed"], job["status"]["succeeded"]) == (1, 1)
    assert [call["meta"][RUN_ID] for call in killed.calls(name)] == [job["metadata"]["uid"]] * 2


@pytest.mark.parametrize(("name", "firsts"), [("flow", 2), ("kept", 1)])
def test_a_workflow_that_is_killed_at_a_step_comes_to_its_end(killed: World, name: str, firsts: int) -> None:
    """With a place to keep them, its finished steps are not done again."""
    last = killed.ended(name)
    assert (last["outcome"], last["reason"], last["steps"]) == ("Succeeded", "completed", 1)
    job = killed.get("job", name)
    assert (job["status"]["failed"], job["status"]["succeeded"]) == (1, 1)
    run = job["metadata"]["uid"]
    first, second = killed.calls(f"{name}-first"), killed.calls(f"{name}-second")
    assert [call["meta"][RUN_ID] for call in first] == [f"{run}/first"] * firsts
    assert [call["meta"][RUN_ID] for call in second] == [f"{run}/second"] * 2
    assert killed.said(name).count("third") == 1


def test_a_workflow_of_tools_needs_no_model(around: World) -> None:
    steps = [{"name": "only", "tool": "desk.work", "arguments": {"say": "only"}}]
    document = {"inline": yaml.safe_dump({"steps": steps})}
    around.kubectl.apply(
        around.agent("modelless", "workflow", workflow=document, instruction=None, model=None)
    )
    assert around.ended("modelless")["exitCode"] == 0
    assert len(around.calls("only")) == 1


# --- schedule


def test_a_run_by_the_clock_is_started_by_its_controller_and_by_no_person(around: World) -> None:
    clock = {"cron": "@yearly", "suspend": True}
    around.kubectl.apply(around.agent("yearly", "schedule", work("yearly"), DONE, schedule=clock))
    around.until(lambda: around.get("agent", "yearly").get("status", {}).get("workloads"))
    start = ("create", "job", "--from=cronjob/yearly", "now", "-n", around.namespace)
    with pytest.raises(RefusedError, match="only the operator makes pods"):
        around.kubectl(*start)
    around.kubectl(*start, "--as", "system:serviceaccount:kube-system:cronjob-controller")
    last = around.ended("yearly")
    assert (last["name"], last["outcome"], last["reason"]) == ("now", "Succeeded", "completed")
    [call] = around.calls("yearly")
    assert call["meta"][RUN_ID] == around.get("job", "now")["metadata"]["uid"]


# --- loop, reactive, claim: what lives on


def test_a_loop_goes_on_after_kill_9(around: World) -> None:
    turns = work("loop", wait="loop"), DONE
    around.kubectl.apply(around.agent("loop", "loop", *turns, loop={"interval": "1s"}))
    around.kubectl.wait("condition=Ready", "agent/loop", around.namespace)
    around.at("loop")
    before = around.running("loop")
    kill(before, "agent")
    around.open("loop")
    around.until(lambda: len(around.calls("loop")) >= 3)
    runs = [call["meta"][RUN_ID] for call in around.calls("loop")]
    assert len(set(runs)) == len(runs)
    around.until(lambda: restarts(around.running("loop")) == 1)
    assert around.running("loop")["metadata"]["uid"] == before["metadata"]["uid"]
    around.kubectl.wait("condition=Ready", "agent/loop", around.namespace)


def test_a_reaction_is_begun_again_after_kill_9(around: World) -> None:
    turns = work("reaction", wait="reaction"), DONE
    around.kubectl.apply(around.agent("reactive", "reactive", *turns, subscribe=["desk://top"]))
    around.kubectl.wait("condition=Ready", "agent/reactive", around.namespace)
    around.at("reaction")
    kill(around.running("reactive"), "agent")
    around.open("reaction")
    around.until(lambda: len(around.calls("reaction")) == 2)
    around.until(lambda: restarts(around.running("reactive")) == 1)
    around.kubectl.wait("condition=Ready", "agent/reactive", around.namespace)
    around.change("something")
    around.until(lambda: len(around.calls("reaction")) == 3)
    assert len({call["meta"][RUN_ID] for call in around.calls("reaction")}) == 3


async def test_a_fleet_hands_on_the_item_of_a_killed_agent(around: World, tmp_path: Path) -> None:
    around.kubectl.apply(around.fleet("crew", 2))
    around.kubectl.wait("condition=Ready", "agentfleet/crew", around.namespace)
    person = Person(around.kubectl, around.namespace, "foreman")
    person.bind("agentctl-user")
    async with person.client(tmp_path) as client:
        producer = Producer(client, f"{around.namespace}/crew")
        held = await producer.submit(script(work("held", wait="held"), {"say": "held at last"}).encode())
        around.at("held")
        [item] = (await client.stub.GetItems(coordination_pb2.GetItemsRequest(item_ids=[held.id]))).items
        [worker] = [pod for pod in around.pods("crew") if pod["metadata"]["uid"] in item.holder]
        kill(worker, "agent")
        others = [
            await producer.submit(script(work(f"item-{n}"), {"say": f"{n}"}).encode()) for n in range(6)
        ]
        around.open("held")
        items = [await producer.result(each.id) for each in [held, *others]]
    assert [item.state for item in items] == [work_pb2.WORK_STATE_SUCCEEDED] * 7
    assert [item.result.decode() for item in items] == ["held at last", *map(str, range(6))]
    assert {call["meta"][RUN_ID] for call in around.calls("held")} == {held.id}
    assert len(around.calls("held")) == 2


# --- AgentService over the network


async def test_verbs_reach_exactly_the_pod_that_is_meant(around: World, tmp_path: Path) -> None:
    turns = work("held", wait="paused"), work("went on"), DONE
    around.kubectl.apply(around.agent("steered", "loop", *turns, loop={"interval": "1s"}))
    around.at("paused")
    pod = around.running("steered")
    apiserver = around.identity("/cp/apiserver", tmp_path / "apiserver")
    async with around.calling(pod, "steered", apiserver) as stub:
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.ready, status.paused) == (True, False)
        [run] = status.runs
        assert (run.state, run.activity) == (run_pb2.RUN_STATE_WORKING, "tool desk_work")
        manifest = (await stub.GetManifest(pb.GetManifestRequest())).manifest
        assert (manifest.mode, manifest.placement.pod_uid) == ("loop", pod["metadata"]["uid"])

        paused = await stub.Pause(pb.PauseRequest(wait=Duration()))
        assert [each.id for each in paused.runs] == [run.id]
        around.open("paused")
        held = await stub.Pause(pb.PauseRequest())
        assert [(each.id, each.state) for each in held.runs] == [(run.id, run_pb2.RUN_STATE_PAUSED)]
        assert around.calls("went on") == []
        await stub.Resume(pb.ResumeRequest())
        around.until(lambda: around.calls("went on"))

        await stub.Drain(pb.DrainRequest())
    around.until(lambda: restarts(around.running("steered")) == 1)
    [container] = around.running("steered")["status"]["containerStatuses"]
    assert container["lastState"]["terminated"]["exitCode"] == 0


async def test_a_person_may_look_at_an_agent_and_not_steer_it(around: World, tmp_path: Path) -> None:
    around.kubectl.apply(around.agent("watched", "loop", DONE, loop={"interval": "1h"}))
    around.kubectl.wait("condition=Ready", "agent/watched", around.namespace)
    person = Person(around.kubectl, around.namespace, "onlooker")
    person.bind("agentctl-user")
    user = await person.certified(tmp_path / "user")
    async with around.calling(around.running("watched"), "watched", user) as stub:
        assert (await stub.GetStatus(pb.GetStatusRequest())).ready
        with pytest.raises(DeniedError):
            await stub.Pause(pb.PauseRequest())
        assert not (await stub.GetStatus(pb.GetStatusRequest())).paused


async def test_another_pod_at_the_address_is_not_believed(around: World, tmp_path: Path) -> None:
    around.kubectl.apply(around.agent("impostor", "loop", DONE, loop={"interval": "1h"}))
    around.kubectl.wait("condition=Ready", "agent/impostor", around.namespace)
    pod = around.running("impostor")
    meant = {**pod, "metadata": {**pod["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}}
    apiserver = around.identity("/cp/apiserver", tmp_path / "apiserver")
    async with around.calling(meant, "impostor", apiserver) as stub:
        with pytest.raises(UnavailableError):
            await stub.Pause(pb.PauseRequest(), timeout=5)
