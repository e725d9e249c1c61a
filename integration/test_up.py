"""`agentctl up` as a person has it: real processes, killed from outside, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb
from agentctl.operator.v1 import operator_service_pb2 as operator_pb
from agentctl.operator.v1.operator_service_pb2_grpc import OperatorServiceStub
from agentctl.resource.v1 import resource_service_pb2 as resource_pb
from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceStub
from libs import pki
from libs.enrol import Claim, ask
from libs.errors import DeniedError, NotFoundError
from libs.identity import Identity
from libs.mesh import OPERATOR, PLANE
from libs.resources.tests.bad_manifests import BAD
from libs.rpc.client import dial
from libs.work import connect

from .machine import EXAMPLES, FLEET, NAMESPACE, PATIENCE_SECONDS, QUEUE, Machine, running_in, until

HELLO = EXAMPLES / "hello.yaml"
PATIENT = FLEET.read_text().replace("  scaling:", "  replicas: 2\n  work:\n    lease: 300s\n  scaling:")
"""The fleet, always of two, with leases that outlive every test: nothing here may wait for their end."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    """A machine on which a plane with the fleet runs, for those who harm nothing."""
    with tempfile.TemporaryDirectory(prefix="agentctl-up-", ignore_cleanup_errors=True) as folder:
        machine = Machine(Path(folder))
        try:
            machine.ready(machine.up("--store", "memory"))
            machine.fleet()
            yield machine
        finally:
            machine.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not tmp_path: root's PostgreSQL runs as another user, and pytest shuts its folders to others.
    with tempfile.TemporaryDirectory(prefix="agentctl-up-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        machine = Machine(Path(folder))
        yield machine
        machine.close()


def test_up_works_and_stops_in_order(machine: Machine) -> None:
    plane = machine.up("--store", "memory", "-f", str(FLEET))
    machine.ready(plane)
    machine.done("wait", "fleet/summarize", "-n", NAMESPACE)
    said = machine.done(
        "work", "submit", QUEUE, "-", "--wait", "-o", "json", stdin="One. Two.\nThree. Four.\n"
    )
    results = [json.loads(line) for line in said.splitlines()[1:]]
    assert [each["state"] for each in results] == ["WORK_STATE_SUCCEEDED"] * 2
    assert sorted(machine.pods().values()) == sorted(machine.agents())

    refused = machine.run("up", "--store", "memory")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"process {plane.pid}" in refused.stderr

    code, said = machine.stopped(plane, signal.SIGINT)
    assert (code, said.splitlines()[-1]) == (0, "stopped"), said
    assert running_in(machine.state) == []
    gone = machine.run("queues", "list")
    assert (gone.returncode, "agentctl up" in gone.stderr) == (5, True)
    private = [machine.state / name for name in ("identities", "logs", "objects", "tokens")]
    assert {path.stat().st_mode & 0o77 for path in private} == {0}


@pytest.mark.postgres
def test_work_and_objects_outlive_the_end_of_everything(machine: Machine) -> None:
    first = machine.up(PROVIDER_LATENCY="500ms")
    machine.ready(first)
    machine.done("apply", "-f", "-", stdin=PATIENT)
    machine.done("wait", "fleet/summarize", "-n", NAMESPACE)
    lines = [f"Line {n}. It goes on." for n in range(40)]
    machine.done("work", "submit", QUEUE, "-", "--group", "g", stdin="\n".join(lines))
    until(lambda: bool(machine.holders()), "nobody holds anything")
    uid = machine.json("get", "fleet/summarize", "-n", NAMESPACE)["metadata"]["uid"]
    changed = PATIENT.replace("three sentences", "one sentence")
    machine.done("apply", "-f", "-", stdin=changed)
    until(lambda: len(machine.pods()) > 2, "the change does not roll")
    first.kill()
    first.communicate()
    until(lambda: not machine.agents(), "agents outlive the plane")

    second = machine.up(PROVIDER_LATENCY="20ms")
    machine.ready(second)
    watched = machine.run("work", "watch", QUEUE, "--group", "g", "-o", "json")
    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout.splitlines()[-1])["settled"] == {"succeeded": 40}
    results = machine.done("work", "results", QUEUE, "--group", "g", "-o", "json").splitlines()
    assert len({json.loads(line)["id"] for line in results}) == len(results) == 40
    fleet = machine.json("get", "fleet/summarize", "-n", NAMESPACE)
    assert fleet["metadata"]["uid"] == uid
    assert "one sentence" in fleet["spec"]["template"]["instruction"]
    until(lambda: len(machine.pods()) == 2, "not two agents in the end")
    machine.done("wait", "fleet/summarize", "-n", NAMESPACE)
    assert sorted(machine.pods().values()) == sorted(machine.agents())
    assert machine.stopped(second)[0] == 0
    assert running_in(machine.state) == []


def test_work_of_a_killed_agent_is_finished_without_waiting_for_its_leases(machine: Machine) -> None:
    machine.ready(machine.up("--store", "memory", PROVIDER_LATENCY="1s"))
    machine.done("apply", "-f", "-", stdin=PATIENT)
    machine.done("wait", "fleet/summarize", "-n", NAMESPACE)
    pods = machine.pods()
    machine.done(
        "work", "submit", QUEUE, "-", "--group", "g", stdin="".join(f"Line {n}.\n" for n in range(48))
    )
    victim = ""

    def is_found() -> bool:
        nonlocal victim
        victim = min(machine.holders(), default="")
        return bool(victim)

    until(is_found, "nobody holds anything")
    os.kill(pods[victim], signal.SIGKILL)
    watched = machine.run("work", "watch", QUEUE, "--group", "g", "-o", "json")  # well before the leases end
    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout.splitlines()[-1])["settled"] == {"succeeded": 48}
    until(lambda: machine.pods().get(victim, pods[victim]) != pods[victim], "it is not started again")
    assert sorted(machine.pods().values()) == sorted(machine.agents())
    assert len(machine.pods()) == 2


def test_a_second_ctrl_c_waits_for_nobody(machine: Machine) -> None:
    plane = machine.up("--store", "memory", PROVIDER_LATENCY="1h")
    machine.ready(plane)
    machine.fleet()
    machine.done("work", "submit", QUEUE, "-", stdin="It takes an hour.\n")
    until(lambda: bool(machine.holders()), "nobody holds anything")
    assert plane.stdout is not None
    plane.send_signal(signal.SIGINT)
    for line in plane.stdout:
        if line.startswith("stopping: "):
            break
    code, said = machine.stopped(plane, signal.SIGINT)
    assert (code, "stopping at once" in said) == (0, True), said
    assert running_in(machine.state) == []


def test_a_stop_during_the_start_leaves_nothing(machine: Machine) -> None:
    plane = machine.up("--store", "memory")
    assert plane.stdout is not None
    assert "operator" in plane.stdout.readline()
    code, said = machine.stopped(plane)
    assert (code, "Traceback" in said) == (0, False), said
    assert running_in(machine.state) == []
    assert not (machine.state / "endpoints.json").exists()


def test_who_stops_listening_stops_nothing_but_a_closed_terminal_does(machine: Machine) -> None:
    plane = machine.up("--store", "memory")
    machine.ready(plane)
    assert plane.stdout is not None
    plane.stdout.close()
    machine.fleet()  # which would be news
    plane.send_signal(signal.SIGHUP)
    assert plane.wait(PATIENCE_SECONDS) == 0
    assert running_in(machine.state) == []


@pytest.mark.parametrize(
    "setting",
    ["COORDINATION_DRAIN", "PROVIDER_LATENCY", "OPERATOR_LEASE", "PLANE_STORE", "SCALER_MIN_INTERVAL"],
)
def test_a_wrong_setting_is_named_and_stops_the_start(machine: Machine, setting: str) -> None:
    code, said = machine.refused(**{setting: "nonsense"})
    assert (code, said[: len(setting) + 8]) == (2, f"error: {setting}:")


def test_what_keeps_a_component_from_starting_is_said_in_a_line(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = machine.refused("--store", "memory", "--port", port)
        assert code == 1
        assert said.startswith("error: coordination: ")
        assert said.endswith(f"(its log: {machine.state}/logs/plane.log)")
    machine.state.chmod(0o777)
    code, said = machine.refused("--store", "memory")
    assert (code, f"error: {machine.state}: open to others" in said) == (1, True)


@pytest.mark.postgres
def test_a_database_that_cannot_start_is_said_in_a_line(machine: Machine) -> None:
    machine.state.mkdir(mode=0o711)
    (machine.state / "data").write_text("no folder")
    code, said = machine.refused()
    assert (code, said.startswith("error: coordination: ")) == (1, True), said


@pytest.mark.parametrize(
    "name", ["unknown mode", "no spec", "schedule block on a loop", "subscribed to no URI", "no instruction"]
)
def test_a_bad_manifest_gets_its_verdict(shared: Machine, name: str) -> None:
    manifest, verdict = BAD[name]
    found = shared.run("apply", "-f", "-", stdin=manifest)
    assert (found.returncode, found.stdout) == (1, "")
    assert verdict in found.stderr


def test_an_agent_of_any_image_runs_once_and_again_when_it_is_told_to(shared: Machine) -> None:
    hello = HELLO.read_text()
    shared.done("apply", "-f", "-", stdin=hello)

    def has_run(times: int) -> bool:
        status = shared.json("get", "agent/hello", "-n", NAMESPACE).get("status", {})
        is_over = status.get("lastRun", {}).get("outcome") == "Succeeded"
        return is_over and bool(status["runs"] == times)

    until(lambda: has_run(1), "it does not succeed")
    assert "I was told: Say hello." in shared.done("logs", "agent/hello", "-n", NAMESPACE)
    shared.done("apply", "-f", "-", stdin=hello.replace("runs:\n", "runs:\n    trigger: again\n"))
    until(lambda: has_run(2), "it does not run again")
    shared.done("delete", "-f", "-", stdin=hello.partition("---\n")[2])


def test_an_agent_that_fails_says_its_exit_code_and_what_that_means(shared: Machine) -> None:
    text = HELLO.read_text().replace("name: hello", "name: fails").replace("import os", "raise SystemExit(5)")
    shared.done("apply", "-f", "-", stdin=text)
    until(
        lambda: "Failed" in shared.done("describe", "agent/fails", "-n", NAMESPACE),
        "nothing is said of its failure",
    )
    said = shared.done("describe", "agent/fails", "-n", NAMESPACE)
    assert "failed with exit code 5 (terminal)" in said
    assert "exitCode: 5" in said
    shared.done("delete", "agent/fails", "-n", NAMESPACE)


def agent_folder(machine: Machine) -> tuple[Identity, Path]:
    """The certificate folder of an agent that runs, and its token."""
    running = machine.pods()
    pods = machine.json("get", "pods", "-n", NAMESPACE)["items"]
    pod = next(each for each in pods if each["metadata"]["name"] in running)
    volumes = machine.state / "objects" / "pods" / pod["metadata"]["uid"] / "volumes"
    [certificate], [token] = volumes.rglob("tls.crt"), volumes.glob("*/token")
    return Identity(certificate.parent), token


async def test_an_agent_may_work_and_nothing_else(shared: Machine) -> None:
    shared.run("apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: other}}")
    shared.done("work", "submit", "other/q", "-", stdin="Not for it.\n")
    identity, _ = agent_folder(shared)
    endpoints = json.loads((shared.state / "endpoints.json").read_text())
    async with (
        connect(endpoints["coordination"], identity) as client,
        dial(PLANE, endpoints["plane"], identity) as plane,
        dial(OPERATOR, endpoints["operator"], identity) as operator,
    ):
        found = await client.stub.GetQueues(coordination_pb.GetQueuesRequest(queues=[QUEUE]))
        assert [queue.name for queue in found.queues] == [QUEUE]  # the certificate is good
        resources, operators = ResourceServiceStub(plane), OperatorServiceStub(operator)
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: resources.Get(resource_pb.GetRequest(kind="Pod", namespace=NAMESPACE, name="x")),
            lambda: resources.List(resource_pb.ListRequest(kind="Secret", namespace=NAMESPACE)),
            lambda: resources.CreateToken(
                resource_pb.CreateTokenRequest(
                    namespace=NAMESPACE, service_account="default", audience="agentctl-identity"
                )
            ),
            lambda: operators.GetStatus(operator_pb.GetStatusRequest()),
            lambda: client.stub.Purge(coordination_pb.PurgeRequest(queue=QUEUE, all=True)),
            lambda: client.stub.PauseQueue(coordination_pb.PauseQueueRequest(queue=QUEUE)),
        ]
        for call in refused:
            with pytest.raises(DeniedError):
                await call()
        with pytest.raises((DeniedError, NotFoundError)):
            await client.stub.Claim(coordination_pb.ClaimRequest(queues=["other/q"], request_id="r"))
    [item] = shared.json("work", "list", "other/q")["items"]
    assert item["state"] == "WORK_STATE_READY"


def test_login_makes_certificates_for_those_who_may_do_less(shared: Machine, tmp_path: Path) -> None:
    for option, may_submit, may_pause in (("--producer", 0, 4), ("--user", 0, 0)):
        folder = str(tmp_path / option)
        who = shared.json("login", option, NAMESPACE, "--tls-dir", folder)
        assert f"/ns/{NAMESPACE}/" in who["id"]
        submitted = shared.run("--tls-dir", folder, "work", "submit", "demo/q", "-", stdin="A line.\n")
        paused = shared.run("--tls-dir", folder, "queues", "pause", "demo/q")
        elsewhere = shared.run("--tls-dir", folder, "work", "submit", "other/q", "-", stdin="A line.\n")
        assert (submitted.returncode, paused.returncode) == (may_submit, may_pause), paused.stderr
        assert elsewhere.returncode in (3, 4), elsewhere.stderr
    folder = str(tmp_path / "administrator")
    shared.done("login", "--administrator", "--tls-dir", folder)
    shared.done("--tls-dir", folder, "queues", "resume", "demo/q")


async def test_a_stolen_token_is_of_no_use_to_another_key(shared: Machine, tmp_path: Path) -> None:
    identity, token = agent_folder(shared)
    address = json.loads((shared.state / "endpoints.json").read_text())["identity"]
    roots, text = identity.root.read_text(), token.read_text().strip()
    own = pki.new_request(pki.own_key(identity.key))
    assert (await ask(address, roots, Claim(text, own))).spiffe_id == pki.own(identity).id
    stranger = pki.new_request(pki.own_key(tmp_path / "stranger.key"))
    with pytest.raises(DeniedError):
        await ask(address, roots, Claim(text, stranger))
    for claim in (Claim(text, own, administrator=True), Claim(text, own, component="coordination")):
        with pytest.raises(DeniedError):
            await ask(address, roots, claim)


def demo(folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Starts the demo; what it leaves is in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "integration.demo", *options],
        env=os.environ | environment | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demo_asks_no_model_and_no_plane_but_its_own(tmp_path: Path) -> None:
    elsewhere = "127.0.0.1:1"
    process = demo(
        tmp_path,
        "--store",
        "memory",
        OPENAI_BASE_URL=f"http://{elsewhere}/v1",
        AGENT_MODEL="dear",
        AGENTCTL_COORDINATION_ADDRESS=elsewhere,
        COORDINATION_STORE="nonsense",
    )
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "400 documents, each finished exactly once" in said
    assert list(tmp_path.iterdir()) == []


def test_the_demo_stops_everything_on_ctrl_c(tmp_path: Path) -> None:
    process = demo(tmp_path, "--store", "memory")
    assert process.stdout is not None
    for line in process.stdout:
        if "Submitting" in line:
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, said
    assert "Interrupted" in said
    assert "Traceback" not in said
    assert (list(tmp_path.iterdir()), running_in(tmp_path)) == ([], [])


def test_a_demo_that_fails_says_where_its_logs_are(tmp_path: Path) -> None:
    process = demo(tmp_path, "--store", "postgres")
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "error: the plane did not start" in said
    [left] = tmp_path.iterdir()
    assert f"is in {left}\n" in said
