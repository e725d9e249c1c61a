"""Commands on objects against a real local home: what they do, print, and exit with."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from agentctl.agent.v1 import agent_service_pb2
from agentctl.agent.v1.run_pb2 import Usage as Tokens
from agentctl.management.v1 import management_service_pb2
from agentctl.management.v1.management_service_pb2_grpc import (
    ManagementServiceServicer,
    add_ManagementServiceServicer_to_server,
)
from agentctl.resource.v1 import resource_service_pb2_grpc as pb_grpc
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, MODEL_POOL, NAMESPACE, POD
from libs.cluster.local import LocalCluster, open_local
from libs.errors import NotFoundError
from libs.mesh import APISERVER, PLANE
from libs.rpc.server import serving
from libs.state import write_json
from libs.testing.ca import authority, identity
from services.plane.server import Resources
from services.plane.usage import Usage

from ..__main__ import app
from ..listing import Lines

Command = Callable[..., Awaitable[Result]]

POOL = """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: stand-in, namespace: demo}
spec: {models: [m]}
"""
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: fine, namespace: demo, labels: {of: test}}
data: {b: "2", a: "1"}
"""
AGENT_OF_NO_MODE = """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: bad, namespace: demo}
spec: {mode: sometimes, instruction: a, model: {pool: a}}
"""
AN_AGENT = AGENT_OF_NO_MODE.replace("sometimes", "once").replace("name: bad", "name: good")
A_FLEET = """
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {name: team, namespace: demo}
spec: {template: {instruction: a, model: {pool: a}}}
"""
A_POD = "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: demo}, spec: {}}"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with open_local(tmp_path / "objects") as opened:
        await opened.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
        yield opened


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    person = identity(authority(), tmp_path, "/user/ann")
    return {
        "AGENTCTL_STATE_DIR": str(tmp_path / "state"),
        "AGENTCTL_TLS_DIR": str(person.folder),
        "HOME": str(tmp_path),  # where no kubeconfig is
        "KUBECONFIG": "",
    }


@pytest.fixture
async def agentctl(
    cluster: LocalCluster, environment: dict[str, str], tmp_path: Path
) -> AsyncIterator[Command]:
    """Runs a command as an administrator of a plane that runs here."""
    servicer = Resources(cluster, Usage(cluster))
    state = tmp_path / "state"
    state.mkdir()
    async with serving(
        PLANE,
        identity(authority(), tmp_path, "/cp/plane"),
        lambda server: pb_grpc.add_ResourceServiceServicer_to_server(servicer, server),
    ) as up:
        write_json(state / "endpoints.json", {"plane": up.address})

        async def run(*arguments: str, stdin: str | None = None) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin, env=environment)

        yield run


def owned_by(owner: dict, thing: dict) -> dict:
    reference = {
        **{name: owner[name] for name in ("apiVersion", "kind")},
        **{name: owner["metadata"][name] for name in ("name", "uid")},
        "controller": True,
    }
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [reference]}}


def a_pod(name: str, **status: object) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "demo", "labels": {"agentctl.dev/agent": "good"}},
        "spec": {"containers": [{"name": "agent"}]},
        "status": status,
    }


async def test_apply_says_what_became_of_each_object(agentctl):
    first = await agentctl("apply", "-f", "-", stdin=f"{POOL}---{CONFIG}")
    assert (first.exit_code, first.stdout) == (0, "modelpool/stand-in created\nconfigmap/fine created\n")
    changed = CONFIG.replace('"2"', '"3"')
    again = await agentctl("apply", "-f", "-", stdin=f"{POOL}---{changed}")
    assert (again.exit_code, again.stdout) == (0, "modelpool/stand-in unchanged\nconfigmap/fine configured\n")


async def test_one_that_is_refused_keeps_no_other_from_being_applied(agentctl, cluster):
    result = await agentctl("apply", "-f", "-", stdin=f"{AGENT_OF_NO_MODE}---\n{A_POD}\n---{CONFIG}")
    assert (result.exit_code, result.stdout) == (1, "configmap/fine created\n")
    first, second = result.stderr.splitlines()
    assert first.startswith('error: agent/bad: The Agent "bad" is invalid: spec.mode: Unsupported value')
    assert second.startswith("error: pod/p: Pod objects are made by the plane")
    assert await cluster.get(CONFIG_MAP, "demo", "fine")


async def test_the_namespace_option_is_for_what_names_none(agentctl, cluster):
    elsewhere = CONFIG.replace(", namespace: demo", "")
    assert (await agentctl("apply", "-n", "demo", "-f", "-", stdin=elsewhere)).exit_code == 0
    assert await cluster.get(CONFIG_MAP, "demo", "fine")


async def test_a_dry_run_says_so_and_changes_nothing(agentctl, cluster):
    result = await agentctl("apply", "--dry-run", "-f", "-", stdin=POOL)
    assert (result.exit_code, result.stdout) == (0, "modelpool/stand-in created (dry run)\n")
    with pytest.raises(NotFoundError):
        await cluster.get(MODEL_POOL, "demo", "stand-in")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kind: [", "not YAML"),
        ("- a", "a document that is no object"),
        ("{apiVersion: v1, metadata: {name: x}}", "without a kind"),
        ("{kind: ConfigMap, metadata: {name: x}}", "without an apiVersion"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: x}", "a ConfigMap without metadata.name"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: {name: 7}}", "a ConfigMap without metadata.name"),
        ("{kind: List, apiVersion: v1, items: [1]}", "a document that is no object"),
        ("{kind: Gadget, apiVersion: x/v1, metadata: {name: x}}", "x/v1 Gadget is no kind"),
        ("a: {[1]: x}", "-, document 2: a key that is no text, in line 7"),
        ("a: .inf", "-, document 2: .inf is no JSON number"),
        ("a: &a [*a]", "-, document 2: nested deeper than 32 levels"),
        ("", "no objects in -"),
    ],
)
async def test_a_file_that_holds_no_objects_is_2_and_nothing_is_applied(agentctl, cluster, text, why):
    result = await agentctl("apply", "-f", "-", stdin=f"{CONFIG}---\n{text}" if text else "")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert why in result.stderr
    with pytest.raises(NotFoundError):
        await cluster.get(CONFIG_MAP, "demo", "fine")


async def test_folders_and_lists_are_taken_apart(agentctl, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "b.yaml").write_text(POOL)
    (folder / "notes.txt").write_text("kind: [")
    items = [yaml.safe_load(CONFIG)]
    (folder / "a.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    result = await agentctl("apply", "-f", str(folder))
    assert (result.exit_code, result.stdout) == (0, "configmap/fine created\nmodelpool/stand-in created\n")
    gone = await agentctl("apply", "-f", str(folder / "nothing.yaml"))
    assert (gone.exit_code, gone.stderr.count("\n")) == (1, 1)


async def test_yaml_means_what_it_means_to_kubectl(agentctl, cluster):
    data = "{1: a, yes: b, 2020-01-01: c}"
    text = CONFIG.replace('{b: "2", a: "1"}', data).replace("of: test", "of: 2020-01-01")
    assert (await agentctl("apply", "-f", "-", stdin=text)).exit_code == 0
    found = await cluster.get(CONFIG_MAP, "demo", "fine")
    assert found["data"] == {"1": "a", "true": "b", "2020-01-01": "c"}
    assert found["metadata"]["labels"] == {"of": "2020-01-01"}


async def test_a_number_that_no_message_holds_is_refused_by_its_path(agentctl):
    text = AN_AGENT.replace("mode: once", f"mode: once, limits: {{maxTokens: {2**70}}}")
    result = await agentctl("apply", "-f", "-", stdin=text)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(
        "error: agent/good: spec.limits.maxTokens: 1180591620717411303424 is beyond"
    )


async def test_a_dry_run_counts_the_namespaces_that_it_would_make(agentctl, cluster):
    new = "{apiVersion: v1, kind: Namespace, metadata: {name: new}}\n"
    documents = [new, *(text.replace("demo", "new") for text in (CONFIG, AN_AGENT, AGENT_OF_NO_MODE))]
    result = await agentctl("apply", "--dry-run", "-f", "-", stdin="---\n".join(documents))
    unchecked = "created (dry run; namespace new is not there yet: not checked further)"
    assert result.stdout.splitlines() == [
        "namespace/new created (dry run)", f"configmap/fine {unchecked}", f"agent/good {unchecked}",
    ]  # fmt: skip
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert 'agent/bad: The Agent "bad" is invalid: spec.mode' in result.stderr
    with pytest.raises(NotFoundError):
        await cluster.get(NAMESPACE, "", "new")


async def test_objects_without_a_namespace_get_one_hint(agentctl):
    elsewhere = (POOL + "---" + CONFIG).replace(", namespace: demo", "")
    result = await agentctl("apply", "-n", "nosuch", "-f", "-", stdin=elsewhere)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(
        'error: modelpool/stand-in, configmap/fine: namespaces "nosuch" not found'
    )
    assert "-n NAMESPACE or metadata.namespace" in result.stderr


async def test_get_agentctl_shows_all_that_people_declare(agentctl):
    nothing = await agentctl("get", "agentctl", "-n", "demo")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "nothing found\n")
    await agentctl("apply", "-f", "-", stdin=f"{POOL}---{CONFIG}---{AN_AGENT}---{A_FLEET}")
    names = "agent/good\nagentfleet/team\nmodelpool/stand-in\n"
    assert (await agentctl("get", "agentctl", "-n", "demo", "-o", "name")).stdout == names
    tables = (await agentctl("get", "agentctl", "-A")).stdout.split("\n\n")
    assert [table.splitlines()[1].split()[:2] for table in tables] == [
        ["demo", "agent/good"], ["demo", "agentfleet/team"], ["demo", "modelpool/stand-in"],
    ]  # fmt: skip
    listed = json.loads((await agentctl("get", "agentctl", "-n", "demo", "-o", "json")).stdout)
    assert [each["kind"] for each in listed["items"]] == ["Agent", "AgentFleet", "ModelPool"]
    assert (await agentctl("get", "agentctl", "-w")).exit_code == 2


async def test_scale_holds_against_a_manifest_that_names_no_replicas(agentctl, cluster):
    missing = await agentctl("scale", "fleet/team", "-n", "demo", "--replicas", "3")
    assert (missing.exit_code, missing.stderr.count("\n")) == (3, 1)
    await agentctl("apply", "-f", "-", stdin=A_FLEET)
    result = await agentctl("scale", "fleet", "team", "-n", "demo", "--replicas", "3")
    assert (result.exit_code, result.stdout) == (0, "agentfleet/team scaled\n"), result.stderr
    await agentctl("apply", "-f", "-", stdin=A_FLEET.replace("instruction: a", "instruction: b"))
    spec = (await cluster.get(AGENT_FLEET, "demo", "team"))["spec"]
    assert (spec["replicas"], spec["template"]["instruction"]) == (3, "b")
    refused = await agentctl("scale", "fleet/team", "-n", "demo", "--replicas", "11")
    assert refused.exit_code == 1
    assert "spec.replicas: Invalid value: has to be between scaling.minReplicas and" in refused.stderr
    assert (await agentctl("scale", "agent/good", "--replicas", "3")).exit_code == 2


async def test_scale_leaves_the_number_to_the_demand_again(agentctl, cluster):
    fleet = ("fleet/team", "-n", "demo")
    await agentctl("apply", "-f", "-", stdin=A_FLEET)
    await agentctl("scale", *fleet, "--replicas", "3")
    assert "3, fixed by hand" in (await agentctl("describe", *fleet)).stdout
    for _ in range(2):
        result = await agentctl("scale", *fleet, "--auto")
        assert (result.exit_code, result.stdout) == (0, "agentfleet/team is left to the demand\n")
    assert "replicas" not in (await cluster.get(AGENT_FLEET, "demo", "team"))["spec"]
    assert "as the demand has it" in (await agentctl("describe", *fleet)).stdout
    for wrong in ((), ("--auto", "--replicas", "3")):
        result = await agentctl("scale", *fleet, *wrong)
        assert (result.exit_code, result.stderr) == (2, "error: say either --replicas N or --auto\n")


async def test_a_number_that_a_manifest_fixes_is_not_said_to_be_left_to_the_demand(agentctl, cluster):
    await agentctl("apply", "-f", "-", stdin=A_FLEET.replace("{template", "{replicas: 2, template"))
    result = await agentctl("scale", "fleet/team", "-n", "demo", "--auto")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: agentfleet/team keeps its 2 agents: somebody else has set")


async def test_describe_says_how_a_fleet_scales(agentctl, cluster):
    await agentctl("apply", "-f", "-", stdin=A_FLEET)
    said = (await agentctl("describe", "fleet/team", "-n", "demo")).stdout
    scaling = [line.split(maxsplit=1) for line in _section(said, "Scaling")]
    assert scaling == [
        ["Agents:", "0, 0 ready"], ["Bounds:", "0 to 10"], ["Wanted:", "as the demand has it"],
        ["Target:", "4 items an agent"],
    ]  # fmt: skip
    divided = A_FLEET.replace("{template", "{replicas: 3, scaling: {mode: shard, maxReplicas: 5}, template")
    await agentctl("apply", "-f", "-", stdin=divided)
    condition = {
        "type": "Sharded", "status": "True", "reason": "Sharded", "message": "3 shards, epoch 7",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = {
        "replicas": 3,
        "readyReplicas": 2,
        "shards": {"count": 3, "epoch": 7},
        "conditions": [condition],
    }
    fleet = {
        "apiVersion": "agentctl.dev/v1alpha1",
        "kind": "AgentFleet",
        "metadata": {"name": "team", "namespace": "demo"},
        "status": status,
    }
    await cluster.apply(fleet, "operator", subresource="status")
    said = (await agentctl("describe", "fleet/team", "-n", "demo")).stdout
    assert [line.split(maxsplit=1) for line in _section(said, "Scaling")] == [
        ["Agents:", "3, 2 ready"], ["Bounds:", "1 to 5"], ["Wanted:", "3"], ["Shards:", "3, epoch 7"],
        ["Sharded:", "Sharded: 3 shards, epoch 7"],
    ]  # fmt: skip


def _section(said: str, name: str) -> list[str]:
    """The lines of one part of what `describe` says."""
    return said.partition(f"\n{name}:\n")[2].partition("\n\n")[0].splitlines()


async def test_get_has_each_shape(agentctl):
    await agentctl("apply", "-f", "-", stdin=f"{POOL}---{CONFIG}")
    one = json.loads((await agentctl("get", "pool/stand-in", "-n", "demo", "-o", "json")).stdout)
    assert (one["kind"], one["spec"]["models"]) == ("ModelPool", ["m"])
    text = (await agentctl("get", "pool", "stand-in", "-n", "demo", "-o", "yaml")).stdout
    assert yaml.safe_load(text) == one
    assert [line.partition(":")[0] for line in text.splitlines() if line[0] not in " -"] == [
        "apiVersion", "kind", "metadata", "spec",
    ]  # fmt: skip
    many = json.loads((await agentctl("get", "pools", "-n", "demo", "-o", "json")).stdout)
    assert (many["apiVersion"], many["kind"], many["items"]) == ("v1", "List", [one])
    assert (await agentctl("get", "pools", "-n", "demo", "-o", "name")).stdout == "modelpool/stand-in\n"
    table = (await agentctl("get", "pools", "-A", "-o", "wide")).stdout.splitlines()
    assert table[0].split() == ["NAMESPACE", "NAME", "ENDPOINT", "USERS", "READY", "AGE", "MODELS"]
    assert (table[1].split()[:2], table[1].split()[-1]) == (["demo", "stand-in"], "m")


async def test_get_of_nothing_is_0_for_a_list_and_3_for_a_name(agentctl):
    listed = await agentctl("get", "agents", "-n", "demo")
    assert (listed.exit_code, listed.stdout, listed.stderr) == (0, "", "nothing found\n")
    named = await agentctl("get", "agents", "nosuch", "-n", "demo")
    assert (named.exit_code, named.stdout, named.stderr.count("\n")) == (3, "", 1)
    assert 'agents.agentctl.dev "nosuch" not found' in named.stderr


async def test_what_is_no_kind_or_no_name_is_2(agentctl):
    for arguments in (("get", "gadgets"), ("describe", "pods"), ("delete", "agents"), ("wait", "agents")):
        result = await agentctl(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), arguments


async def test_a_selector_selects(agentctl):
    other = CONFIG.replace("fine", "other").replace("of: test", "of: nothing")
    await agentctl("apply", "-f", "-", stdin=f"{CONFIG}---{other}")
    found = await agentctl("get", "cm", "-n", "demo", "-l", "of=test", "-o", "name")
    assert found.stdout == "configmap/fine\n"


async def test_delete_by_name_and_by_file(agentctl):
    await agentctl("apply", "-f", "-", stdin=f"{POOL}---{CONFIG}")
    assert (await agentctl("delete", "pool/stand-in", "-n", "demo")).stdout == "modelpool/stand-in deleted\n"
    rest = await agentctl("delete", "-f", "-", stdin=f"{POOL}---{CONFIG}")
    assert (rest.exit_code, rest.stdout) == (0, "configmap/fine deleted\n")
    assert "modelpool/stand-in is not there" in rest.stderr
    again = await agentctl("delete", "cm", "fine", "-n", "demo")
    assert (again.exit_code, again.stderr.count("\n")) == (3, 1)


def conditions(status: str, reason: str, message: str = "", generation: int = 1) -> dict:
    condition = {
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return {"observedGeneration": generation, "conditions": [condition]}


async def say(cluster: LocalCluster, status: dict) -> None:
    """The status of the agent `good`, as an operator writes it."""
    metadata = {"name": "good", "namespace": "demo"}
    thing = {"apiVersion": AGENT.api_version, "kind": "Agent", "metadata": metadata, "status": status}
    await cluster.apply(thing, "agentctl-operator", subresource="status")


async def test_wait_ends_when_the_condition_comes_true(agentctl, cluster):
    await agentctl("apply", "-f", "-", stdin=AN_AGENT)
    waiting = asyncio.create_task(agentctl("wait", "agent/good", "-n", "demo", "--timeout", "30s"))
    await say(cluster, conditions("False", "Progressing"))
    await say(cluster, conditions("True", "Ready"))
    result = await waiting
    assert (result.exit_code, result.stdout) == (0, "agent/good Ready\n"), result.stderr


async def test_wait_that_is_in_vain_says_why(agentctl, cluster):
    missing = await agentctl("wait", "agent/good", "-n", "demo", "--timeout", "10ms")
    assert missing.exit_code == 3
    assert missing.stderr == "error: agent/good is not Ready: it is not there\n"
    await agentctl("apply", "-f", "-", stdin=AN_AGENT)
    await say(cluster, conditions("False", "NotAccepted", "no pool a"))
    result = await agentctl("wait", "agent/good", "-n", "demo", "--timeout", "1s")
    assert result.exit_code == 1
    assert result.stderr == "error: agent/good is not Ready: NotAccepted: no pool a\n"


async def test_wait_believes_nothing_that_was_said_of_an_older_generation(agentctl, cluster):
    await agentctl("apply", "-f", "-", stdin=AN_AGENT)
    await say(cluster, conditions("True", "Ready"))
    assert (await agentctl("wait", "agent/good", "-n", "demo")).exit_code == 0
    await agentctl("apply", "-f", "-", stdin=AN_AGENT.replace("instruction: a", "instruction: b"))
    result = await agentctl("wait", "agent/good", "-n", "demo", "--timeout", "1s")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing is said of Ready of this generation yet" in result.stderr


async def test_wait_asks_a_workload_that_dates_only_its_status(agentctl, cluster):
    container = {"name": "c", "image": "i"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    metadata = {"name": "d", "namespace": "demo"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    await cluster.create({**deployment, "spec": spec})
    words = ("wait", "deploy/d", "-n", "demo", "--for", "Available", "--timeout")
    available = {"type": "Available", "status": "True", "reason": "r", "message": ""}
    for generation, code in ((1, 0), (2, 1)):  # 1 is the newest
        status = {"observedGeneration": generation, "conditions": [available]}
        await cluster.apply({**deployment, "status": status}, "controller", subresource="status")
        assert (await agentctl(*words, "1s")).exit_code == code


async def test_describe_shows_conditions_and_events(agentctl, cluster):
    await agentctl("apply", "-f", "-", stdin=AN_AGENT)
    await say(cluster, conditions("False", "NotAccepted", "no pool a"))
    agent = await cluster.get(AGENT, "demo", "good")
    await cluster.create(
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "demo"},
            "regarding": {"kind": "Agent", "name": "good", "uid": agent["metadata"]["uid"]},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "type": "Warning",
            "reason": "UnknownModelPool",
            "note": "there is no a",
        }
    )
    said = (await agentctl("describe", "agent", "good", "-n", "demo")).stdout
    assert "mode: once" in said
    assert "NotAccepted" in said
    assert "there is no a" in said


class Steered(ManagementServiceServicer):
    """Tells of one pod that runs and one that has ended."""

    async def GetStatus(
        self, request: management_service_pb2.GetStatusRequest, context: object
    ) -> management_service_pb2.GetStatusResponse:
        said = agent_service_pb2.GetStatusResponse(
            ready=True,
            ended_runs={"completed": 2, "deadline": 71},
            usage=Tokens(input_tokens=40, output_tokens=2),
        )
        pods = [
            management_service_pb2.PodStatus(pod=f"{request.target.agent}-1", phase="Running", status=said),
            management_service_pb2.PodStatus(pod="old", phase="Failed", error="it does not run"),
        ]
        return management_service_pb2.GetStatusResponse(pods=pods)


async def test_describe_shows_how_the_runs_of_an_agent_ended(agentctl, tmp_path):
    await agentctl("apply", "-f", "-", stdin=AN_AGENT)
    steered = Steered()  # type: ignore[abstract]  # it has but one of the methods
    async with serving(
        APISERVER,
        identity(authority(), tmp_path, "/cp/apiserver"),
        lambda server: add_ManagementServiceServicer_to_server(steered, server),
    ) as up:
        file = tmp_path / "state" / "endpoints.json"
        write_json(file, {**json.loads(file.read_text()), "apiserver": up.address})
        said = (await agentctl("describe", "agent/good", "-n", "demo")).stdout
    _, _, agents = said.partition("\nAgents:\n")
    [_, line] = agents.splitlines()
    assert line.split() == ["good-1", "yes", "0", "71", "deadline,", "2", "completed", "42"]


async def test_describe_says_why_nobody_told_how_runs_ended(agentctl):
    await agentctl("apply", "-f", "-", stdin=AN_AGENT)
    result = await agentctl("describe", "agent/good", "-n", "demo")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith(
        "\nAgents could not be asked: the plane that runs here has no apiserver: start it anew\n"
    )


async def test_tree_and_its_pods(agentctl, cluster):
    await agentctl("apply", "-f", "-", stdin=AN_AGENT)
    agent = await cluster.get(AGENT, "demo", "good")
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "good", "namespace": "demo"},
        "spec": {
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "agent", "image": "i"}]}}
        },
    }
    job = await cluster.create(owned_by(agent, job))
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    statuses = [{"name": "agent", "ready": False, "restartCount": 1, "state": waiting}]
    pod = a_pod("good-1", phase="Running", containerStatuses=statuses)
    await cluster.create(owned_by(job, pod))
    await cluster.apply(pod, "runner", subresource="status")
    said = (await agentctl("tree", "-n", "demo")).stdout.splitlines()
    assert [line.lstrip().split("  ")[0] for line in said] == [
        "OBJECT", "agent/good", "└─ job/good", "└─ pod/good-1",
    ]  # fmt: skip
    assert "CrashLoopBackOff, 1 restart " in said[-1]
    nothing = await agentctl("tree")
    assert (nothing.exit_code, nothing.stderr) == (0, "nothing found in namespace default\n")
    pods = (await agentctl("get", "pods", "-n", "demo")).stdout.splitlines()
    assert pods[1].split()[:4] == ["good-1", "0/1", "CrashLoopBackOff", "1"]


async def test_logs_of_a_pod_that_is_not_there_are_3_in_one_line(agentctl, cluster):
    result = await agentctl("logs", "nosuch", "-n", "demo")
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    result = await agentctl("logs", "agent/good", "-n", "demo")
    assert (result.exit_code, result.stderr) == (3, "error: agent/good has no pods in demo\n")


async def test_logs_of_an_agent_are_those_of_its_pods(agentctl, cluster, tmp_path):
    for name in ("good-1", "good-2"):
        pod = await cluster.create(a_pod(name, phase="Running"))
        folder = tmp_path / "objects" / "pods" / pod["metadata"]["uid"]
        folder.mkdir(parents=True)
        (folder / "agent.log").write_text(f"first of {name}\nlast of {name}")
    result = await agentctl("logs", "agent/good", "-n", "demo")
    assert sorted(result.stdout.splitlines()) == [
        "good-1  first of good-1", "good-1  last of good-1",
        "good-2  first of good-2", "good-2  last of good-2",
    ]  # fmt: skip
    assert (await agentctl("logs", "good-1", "-n", "demo", "--tail", "1")).stdout == "last of good-1\n"


async def test_watch_shows_each_change_until_it_is_stopped(agentctl, environment):
    await agentctl("apply", "-f", "-", stdin=CONFIG)
    words = ("-m", "services.cli", "get", "cm/fine", "-n", "demo", "-w", "-o", "name")
    watching = await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert watching.stdout is not None
        async with asyncio.timeout(20):
            assert await watching.stdout.readline() == b"configmap/fine\n"
            await agentctl("apply", "-f", "-", stdin=POOL + "---" + CONFIG.replace('"2"', '"3"'))
            assert await watching.stdout.readline() == b"configmap/fine\n"
            watching.send_signal(signal.SIGINT)
            assert await watching.wait() == 130
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()


async def test_nobody_at_home_is_5(tmp_path):
    environment = {"AGENTCTL_STATE_DIR": str(tmp_path), "HOME": str(tmp_path), "KUBECONFIG": ""}
    result = await asyncio.to_thread(CliRunner().invoke, app, ("get", "pods"), env=environment)
    assert (result.exit_code, result.stderr.count("\n")) == (5, 1)
    assert "agentctl up" in result.stderr


EMPTY_KUBECONFIG = """
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x}]
users: []
"""


@pytest.mark.parametrize(
    "content", [None, "", "[]", "a", "clusters: 7", "current-context: x", "kind: [", EMPTY_KUBECONFIG]
)
async def test_a_kubeconfig_that_leads_nowhere_is_5_in_one_line(tmp_path, content):
    kubeconfig = tmp_path / "config"
    if content is not None:
        kubeconfig.write_text(content)
    environment = {"AGENTCTL_STATE_DIR": str(tmp_path)}
    words = ("get", "pods", "--kubeconfig", str(kubeconfig))
    result = await asyncio.to_thread(CliRunner().invoke, app, words, env=environment)
    assert (result.exit_code, result.stderr.count("\n")) == (5, 1), result.output
    assert str(kubeconfig) in result.stderr


async def test_up_is_refused_before_it_begins(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: [")
    for words, code, why in (
        (("-f", str(bad)), 2, "not YAML"),
        (("-f", str(tmp_path / "nothing.yaml")), 1, "No such file"),
        (("--store", "postgres"), 2, "go together"),
    ):
        whole = ("up", "--state-dir", str(tmp_path / "state"), *words)
        result = await asyncio.to_thread(CliRunner().invoke, app, whole)
        assert (result.exit_code, result.stderr.count("\n")) == (code, 1), words
        assert why in result.stderr
    assert not (tmp_path / "state").exists()


async def test_a_user_of_one_namespace_is_told_no_more(agentctl, tmp_path):
    await agentctl("apply", "-f", "-", stdin=POOL)
    bob = identity(authority(), tmp_path, "/ns/other/user/bob")
    result = await agentctl("--tls-dir", str(bob.folder), "get", "pool/stand-in", "-n", "demo")
    assert (result.exit_code, result.stderr) == (3, "error: no namespace demo\n")
    agent = identity(authority(), tmp_path, "/ns/demo/agent/a/pod/p/u")
    result = await agentctl("--tls-dir", str(agent.folder), "get", "pools", "-n", "demo")
    assert (result.exit_code, result.stderr.count("\n")) == (4, 1)


def test_a_watch_shows_a_change_of_the_table_only(capsys):
    lines = Lines(POD, namespaces=False, wide=False)
    pod = {**a_pod("p", phase="Pending"), "metadata": {"name": "p", "uid": "u"}}
    for phase in ("Pending", "Pending", "Running"):
        lines.show("MODIFIED", {**pod, "status": {"phase": phase}})
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in said] == ["Pending", "Running"]
