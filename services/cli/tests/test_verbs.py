"""The verbs against a ManagementService and an aggregated API: what is asked, printed, and exited with."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner, Result

from agentctl.agent.v1 import agent_service_pb2, run_pb2
from agentctl.management.v1 import management_service_pb2 as pb
from agentctl.management.v1 import management_service_pb2_grpc as pb_grpc
from libs.errors import DeniedError, NotFoundError, PreconditionError
from libs.mesh import APISERVER
from libs.state import write_json
from libs.testing.mesh import Mesh, mesh

from ..__main__ import app

Command = Callable[..., Awaitable[Result]]

DENIED = (
    '"system:serviceaccount:demo:ci" cannot create resource "agentfleets/drain" in API group '
    '"management.agentctl.dev" in the namespace "demo"'
)


class Scripted:
    """Answers each method with what the test says, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: dict[str, list[Any]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        if not name[0].isupper():
            raise AttributeError(name)

        async def answer(request: Any, _: object) -> Any:
            self.requests[name].append(request)
            found = self.answers[name]
            if isinstance(found, Exception):
                raise found
            return found

        return answer


class Aggregated:
    """An API server that answers with what the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.code, self.body = 200, ""
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []

    def says(self, code: int, document: object) -> None:
        self.code, self.body = code, document if isinstance(document, str) else json.dumps(document)

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        said = json.loads(text) if text else None
        self.asked.append((request.method, request.path, dict(request.query), said))
        return web.Response(status=self.code, text=self.body)


@pytest.fixture
def meshed(tmp_path: Path) -> Any:
    with mesh(tmp_path) as made:
        yield made


@pytest.fixture
def service() -> Scripted:
    return Scripted()


@pytest.fixture
async def address(service: Scripted, meshed: Mesh) -> AsyncIterator[str]:
    servicer: Any = service  # it has every method, though nobody can see them

    def register(doorway: Any) -> None:
        pb_grpc.add_ManagementServiceServicer_to_server(servicer, doorway)

    async with meshed.serve(register, APISERVER) as up:
        yield up.address


@pytest.fixture
def agentctl(tmp_path: Path, meshed: Mesh) -> Command:
    """Runs a command where nothing is, as an administrator."""
    environment = {
        "AGENTCTL_STATE_DIR": str(tmp_path / "state"),
        "AGENTCTL_TLS_DIR": str(meshed.identity("administrator").folder),
        "AGENTCTL_COORDINATION_ADDRESS": "127.0.0.1:1",  # which is not who does verbs
        "HOME": str(tmp_path),
        "KUBECONFIG": "",
    }

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)

    return run


@pytest.fixture
def at_home(agentctl: Command, address: str, tmp_path: Path) -> Command:
    """Runs a command beside a plane."""
    (tmp_path / "state").mkdir()
    write_json(tmp_path / "state" / "endpoints.json", {"plane": "127.0.0.1:1", "apiserver": address})
    return agentctl


@pytest.fixture
def api() -> Aggregated:
    return Aggregated()


@pytest.fixture
async def kubeconfig(api: Aggregated, tmp_path: Path) -> AsyncIterator[str]:
    server = web.Application()
    server.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(server, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    path = tmp_path / "kubeconfig"
    named = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named}))
    try:
        yield str(path)
    finally:
        await runner.cleanup()


def outcome(pod: str, stage: str, **more: Any) -> pb.Outcome:
    return pb.Outcome(pod=pod, pod_uid=f"uid-{pod}", stage=pb.Stage.Value(f"STAGE_{stage}"), **more)


def report(done: int, *outcomes: pb.Outcome) -> pb.Report:
    return pb.Report(outcomes=outcomes, done_count=done)


def drained(*stages: str) -> pb.DrainResponse:
    outcomes = [outcome(f"w-{number}", stage) for number, stage in enumerate(stages)]
    return pb.DrainResponse(report=report(len(stages), *outcomes))


def a_status(code: int, *causes: tuple[str, str, str], message: str = "") -> dict[str, Any]:
    listed = [{"field": f"pods[{pod}]", "reason": reason, "message": why} for pod, reason, why in causes]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success" if code == 200 else "Failure",
        "code": code,
        "message": message,
        "details": {"causes": listed},
    }


async def test_a_drain_says_how_far_each_pod_came(at_home, service):
    service.answers["Drain"] = pb.DrainResponse(
        report=report(
            2,
            outcome("w-0", "IN_EFFECT", run_count=2),
            outcome("w-1", "FINISHED", message="exit code 0"),
            outcome("w-2", "FAILED", reason="DEADLINE", message="did not answer"),
        )
    )
    result = await at_home("drain", "team", "--fleet", "-n", "demo", "--until", "in-effect")
    assert result.stdout.splitlines() == [
        "POD  STATE     RUNS  MESSAGE",
        "w-0  draining     2",
        "w-1  drained         exit code 0",
        "w-2  failed          DEADLINE: did not answer",
        "2 of 3 pods draining; 1 failed: w-2: DEADLINE",
    ]
    assert (result.exit_code, result.stderr) == (1, "")


async def test_what_all_pods_did_is_exit_code_0(at_home, service):
    service.answers["Drain"] = drained("FINISHED")
    result = await at_home("drain", "one", "--wait")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 of 1 pod drained")
    (request,) = service.requests["Drain"]
    assert request.terms.until == pb.STAGE_FINISHED
    assert (request.target.namespace, request.target.agent) == ("default", "one")


async def test_a_pod_that_is_on_its_way_is_not_done(at_home, service):
    service.answers["Drain"] = pb.DrainResponse(
        report=report(1, outcome("w-0", "FINISHED"), outcome("w-1", "IN_EFFECT"))
    )
    result = await at_home("drain", "one", "--wait")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "1 of 2 pods drained; 1 not yet")


async def test_a_line_has_the_word_of_the_table_and_names_a_few_pods(at_home, service):
    on = [outcome(f"w-{number}", "IN_EFFECT") for number in range(2)]
    service.answers["Resume"] = pb.ResumeResponse(report=report(2, *on))
    said = (await at_home("resume", "one")).stdout.splitlines()
    assert [line.split()[1] for line in said[1:3]] == ["resumed", "resumed"]
    assert said[-1] == "2 of 2 pods resumed"
    off = [outcome(f"x-{number}", "FAILED", reason="DEADLINE", message="a long story") for number in range(5)]
    service.answers["Resume"] = pb.ResumeResponse(report=report(2, *on, *off))
    said = (await at_home("resume", "one")).stdout.splitlines()
    named = "x-0: DEADLINE; x-1: DEADLINE; x-2: DEADLINE"
    assert said[-1] == f"2 of 7 pods resumed; 5 failed: {named}; and 2 more"


async def test_nobody_asked_is_no_success(at_home, service):
    service.answers["Cancel"] = pb.CancelResponse()
    assert (await at_home("cancel", "one")).exit_code == 1


async def test_all_that_is_said_is_asked_by_grpc(at_home, service):
    service.answers["Drain"] = drained("WOULD")
    where = ("fleet/team", "-n", "demo", "--pod", "w-0")
    how = ("--grace", "20s", "--deadline", "1m", "--reason", "a node goes", "--dry-run")
    result = await at_home("drain", *where, *how)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 of 1 pod would be asked")
    (request,) = service.requests["Drain"]
    assert request.target == pb.Target(namespace="demo", fleet="team", pod="w-0")
    assert (request.grace.seconds, request.terms.deadline.seconds) == (20, 60)
    assert (request.terms.reason, request.terms.dry_run) == ("a node goes", True)
    assert request.terms.until == pb.STAGE_ACCEPTED


@pytest.mark.parametrize(
    ("verb", "rpc", "response", "word"),
    [
        ("cancel", "Cancel", pb.CancelResponse, "canceled"),
        ("pause", "Pause", pb.PauseResponse, "paused"),
        ("resume", "Resume", pb.ResumeResponse, "resumed"),
    ],
)
async def test_one_run_is_named(at_home, service, verb, rpc, response, word):
    service.answers[rpc] = response(report=report(1, outcome("w-1", "IN_EFFECT")))
    result = await at_home(verb, "team", "--fleet", "--run", "r-1", "--until", "in-effect")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"1 of 1 pod {word}")
    assert service.requests[rpc][0].run_id == "r-1"


@pytest.mark.parametrize(("undo", "word"), [((), "lame duck"), (("--undo",), "ready again")])
async def test_a_lame_duck_may_be_undone(at_home, service, undo, word):
    service.answers["LameDuck"] = pb.LameDuckResponse(report=report(1, outcome("w-0", "FINISHED")))
    result = await at_home("lame-duck", "one", "--until", "finished", *undo)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"1 of 1 pod {word}")
    assert service.requests["LameDuck"][0].undo == bool(undo)


async def test_json_is_the_report(at_home, service):
    runs = [run_pb2.Run(id="r-1", state=run_pb2.RUN_STATE_CANCELED)]
    service.answers["Cancel"] = pb.CancelResponse(report=report(1, outcome("w-0", "FINISHED", runs=runs)))
    result = await at_home("cancel", "one", "-o", "json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    (only,) = found["outcomes"]
    assert found["done_count"] == 1
    assert (only["pod"], only["stage"], only["runs"][0]["id"]) == ("w-0", "STAGE_FINISHED", "r-1")


@pytest.mark.parametrize(
    ("error", "code"), [(DeniedError(DENIED), 4), (PreconditionError("no pod of it runs, 2 are pending"), 1)]
)
async def test_a_refusal_is_one_line_in_the_services_words(at_home, service, error, code):
    service.answers["Drain"] = error
    result = await at_home("drain", "fleet/team", "-n", "demo")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"error: {error}\n")


async def test_an_agent_that_is_not_there_may_be_a_fleet(at_home, service):
    service.answers["Drain"] = NotFoundError('agents "team" not found')
    result = await at_home("drain", "team")
    mend = "(a fleet is named fleet/team, its namespace by -n)"
    assert (result.exit_code, result.stderr) == (3, f'error: agents "team" not found {mend}\n')


async def test_an_address_is_called_with_the_certificate_of_a_folder(agentctl, service, address, meshed):
    service.answers["Drain"] = drained("ACCEPTED")
    user = str(meshed.identity("user/demo.ci").folder)
    assert (await agentctl("drain", "one", "--address", address, "--tls-dir", user)).exit_code == 0
    assert (await agentctl("--address", address, "drain", "one")).exit_code == 0
    producer = str(meshed.identity("producer").folder)
    assert (await agentctl("drain", "one", "--address", address, "--tls-dir", producer)).exit_code == 4
    assert len(service.requests["Drain"]) == 2


async def test_without_a_plane_and_a_cluster_it_says_what_to_start(agentctl):
    result = await agentctl("drain", "one")
    assert result.exit_code == 5
    assert "agentctl up" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain", "one", "--run", "r-1"),
        ("cancel", "one", "--undo"),
        ("pause", "one", "--grace", "1s"),
        ("drain", "one", "--wait", "--until", "accepted"),
        ("drain", "one", "--until", "never"),
        ("drain", "one", "--deadline", "10"),
        ("drain", "one", "--deadline", "2h"),
        ("drain", "pod/one"),
        ("drain", "agent/one", "--fleet"),
        ("drain", "fleet/"),
        ("drain",),
        ("drain", "one", "--address", "h:1", "--kubeconfig", "k"),
        ("drain", ""),
        ("drain", "one", "-n", ""),
        ("drain", "one", "--pod", ""),
        ("drain", "one", "--address", ""),
        ("cancel", "one", "--run", ""),
        ("status", "one", "--pod", ""),
    ],
)
async def test_what_makes_no_sense_is_wrong_usage(at_home, service, arguments):
    assert (await at_home(*arguments)).exit_code == 2
    assert not service.requests


async def test_status_says_what_pods_do(at_home, service):
    said = agent_service_pb2.GetStatusResponse(
        ready=False, not_ready_reason="lame duck", lame_duck=True, paused=True, free_slots=3
    )
    said.uptime.FromSeconds(95)
    said.runs.add(id="r-1", state=run_pb2.RUN_STATE_PAUSED, activity="model")
    service.answers["GetStatus"] = pb.GetStatusResponse(
        pods=[
            pb.PodStatus(pod="w-0", phase="Running", status=said),
            pb.PodStatus(pod="w-1", phase="Pending", error="it does not run"),
        ]
    )
    result = await at_home("status", "fleet/team", "-n", "demo")
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            "POD  PHASE    READY  STATE              RUNS  FREE     UP  MESSAGE",
            "w-0  Running  no     paused, lame duck     1     3  1m35s  lame duck",
            "w-1  Pending                                               it does not run",
            "",
            "RUN  POD  STATE   AGE  ACTIVITY",
            "r-1  w-0  paused   0s  model",
        ],
    )
    found = json.loads((await at_home("status", "fleet/team", "-o", "json")).stdout)
    assert [each["phase"] for each in found["pods"]] == ["Running", "Pending"]


async def test_an_agent_whose_runs_do_not_all_hold_yet_is_pausing(at_home, service):
    said = agent_service_pb2.GetStatusResponse(paused=True)
    for name, state in (("r-1", run_pb2.RUN_STATE_PAUSED), ("r-2", run_pb2.RUN_STATE_WORKING)):
        said.runs.add(id=name, state=state)
    service.answers["GetStatus"] = pb.GetStatusResponse(
        pods=[pb.PodStatus(pod="w-0", phase="R", status=said)]
    )
    lines = (await at_home("status", "one")).stdout.splitlines()
    assert lines[1].split()[3] == "pausing"
    assert [line.split()[2] for line in lines[-2:]] == ["paused", "working"]


async def test_who_hears_no_answer_hears_that_agents_may_have_accepted(agentctl):
    result = await agentctl("drain", "one", "--address", "127.0.0.1:1")
    assert result.exit_code == 5
    assert "nobody answers at 127.0.0.1:1" in result.stderr
    assert "what agents may have accepted goes on" in result.stderr


async def test_all_that_is_said_is_asked_of_the_aggregated_api(agentctl, api, kubeconfig):
    api.says(200, a_status(200, message="drain demo/team: 1 of 1 pod would be asked"))
    how = ("--grace", "1m30s", "--deadline", "1500ms", "--reason", "a node goes", "--dry-run", "--wait")
    where = ("fleet/team", "-n", "demo", "--pod", "w-0", "--kubeconfig", kubeconfig)
    result = await agentctl("drain", *where, *how)
    assert (result.exit_code, result.stdout) == (0, "drain demo/team: 1 of 1 pod would be asked\n")
    body = {
        "reason": "a node goes",
        "deadline": "1.5s",
        "until": "finished",
        "pod": "w-0",
        "grace": "90s",
    }
    path = "/apis/management.agentctl.dev/v1alpha1/namespaces/demo/agentfleets/team/drain"
    assert api.asked == [("POST", path, {"dryRun": "All", "timeout": "6.5s"}, body)]


async def test_undo_and_run_are_asked_of_the_aggregated_api(agentctl, api, kubeconfig):
    api.says(200, a_status(200, message="done"))
    for arguments in (("lame-duck", "one", "--undo"), ("cancel", "one", "--run", "r-1")):
        assert (await agentctl(*arguments, "--kubeconfig", kubeconfig)).exit_code == 0
    (_, first, _, undo), (_, second, _, run) = api.asked
    where = "/apis/management.agentctl.dev/v1alpha1/namespaces/default/agents/one"
    assert (first, second) == (f"{where}/lame-duck", f"{where}/cancel")
    assert (undo["undo"], run["run"]) == (True, "r-1")


@pytest.mark.parametrize("code", [207, 504])
async def test_pods_that_did_not_come_so_far_are_a_line_each(agentctl, api, kubeconfig, code):
    message = "drain demo/team: 1 of 3 pods have finished; w-1: it still drains; w-2: it did not answer"
    late = ("w-1", "IN_EFFECT", "it still drains")
    answer = a_status(code, late, ("w-2", "DEADLINE", "it did not answer"), message=message)
    api.says(code, answer)
    result = await agentctl("drain", "fleet/team", "--wait", "--kubeconfig", kubeconfig)
    assert result.stdout.splitlines() == [
        "POD  STATE     RUNS  MESSAGE",
        "w-1  draining        it still drains",
        "w-2  failed          DEADLINE: it did not answer",
        message,
    ]
    assert result.exit_code == 1
    result = await agentctl("drain", "fleet/team", "--wait", "--kubeconfig", kubeconfig, "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (1, answer)


@pytest.mark.parametrize(
    ("code", "answer", "exit_code", "said"),
    [
        (403, a_status(403, message=DENIED), 4, 'cannot create resource "agentfleets/drain"'),
        (401, a_status(401, message="Unauthorized"), 4, "does not take these credentials"),
        (404, a_status(404, message='agentfleets "team" not found'), 3, '"team" not found'),
        (
            422,
            a_status(422, ("deadline", "Invalid", "1s to 1h"), message="deadline: 1s to 1h"),
            1,
            "1s to 1h",
        ),
        (409, a_status(409, message="no pod of it runs"), 1, "no pod of it runs"),
        (500, a_status(500, message="it lacks a right itself"), 1, "it lacks a right itself"),
        (404, "404 page not found", 5, "kubectl get apiservice"),
        (503, "service unavailable", 5, "kubectl get apiservice"),
        (504, a_status(504, message="request did not complete"), 5, "what agents may have accepted goes on"),
    ],
)
async def test_a_refusal_of_the_aggregated_api_is_one_line(
    agentctl, api, kubeconfig, code, answer, exit_code, said
):
    api.says(code, answer)
    result = await agentctl("drain", "fleet/team", "-n", "demo", "--kubeconfig", kubeconfig)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


async def test_status_of_the_aggregated_api_is_the_same_table(agentctl, api, kubeconfig):
    pods = [
        {"pod": "w-0", "phase": "Running", "status": {"ready": True, "uptime": "3s", "runs": [{"id": "r"}]}}
    ]
    api.says(200, {"kind": "AgentStatus", "apiVersion": "management.agentctl.dev/v1alpha1", "pods": pods})
    result = await agentctl("status", "one", "-n", "demo", "--kubeconfig", kubeconfig)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["w-0", "Running", "yes", "1", "0", "3s"]
    assert api.asked[0][1] == "/apis/management.agentctl.dev/v1alpha1/namespaces/demo/agents/one/status"
