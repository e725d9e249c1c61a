"""`agentctl validate` by a plane, by a cluster and by the rules alone: one table, one exit code."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner, Result

from agentctl.admission.v1 import admission_service_pb2 as pb
from agentctl.admission.v1 import admission_service_pb2_grpc as pb_grpc
from agentctl.resource.v1 import resource_service_pb2_grpc as resource_grpc
from libs.cluster.local import LocalCluster, open_local
from libs.documents import document_of
from libs.errors import InvalidError, UnavailableError
from libs.mesh import ADMISSION, PLANE
from libs.rpc.server import serving
from libs.state import write_json
from libs.testing.ca import authority, identity
from services.plane.server import Resources
from services.plane.usage import Usage

from ..__main__ import app

Command = Callable[..., Awaitable[Result]]

POOL = "apiVersion: agentctl.dev/v1alpha1\nkind: ModelPool\nmetadata: {name: large}\nspec: {models: [m]}\n"
AGENT = """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: scout}
spec: {mode: once, instruction: "Look\\x7f.", model: {pool: large}, limits: {deadline: 5m}}
"""
SECRET = "{apiVersion: v1, kind: Secret, metadata: {name: word}}\n"
DENIED = pb.Finding(
    rule="a-rule", field="spec.image", value="evil/a", message="is not allowed", mend="use another"
)
WARNED = pb.Finding(rule="b-rule", field="spec.limits", message="nothing bounds it", mend="set it")
LINES = {
    "denied": "spec.image 'evil/a': is not allowed; use another (a-rule)",
    "warned": "spec.limits: nothing bounds it; set it (b-rule)",
}
TABLE = [
    ["OBJECT", "VERDICT", "RULE", "FIELD", "MESSAGE", "MEND"],
    ["agent/default/scout", "denied", "a-rule", "spec.image", "is not allowed", "use another"],
    ["agent/default/scout", "warning", "b-rule", "spec.limits", "nothing bounds it", "set it"],
]


class Admission(pb_grpc.AdmissionServiceServicer):
    """Says what it is told."""

    def __init__(self) -> None:
        self.by_kind: dict[str, pb.ReviewResponse | Exception] = {}
        self.asked: list[pb.ReviewRequest] = []

    async def Review(self, request: pb.ReviewRequest, context: object) -> pb.ReviewResponse:
        self.asked.append(request)
        answer = self.by_kind.get(document_of(request.object)["kind"], pb.ReviewResponse(allowed=True))
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def admission() -> Admission:
    return Admission()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with open_local(tmp_path / "objects") as opened:
        yield opened


@pytest.fixture
def agentctl(tmp_path: Path) -> Command:
    person = identity(authority(), tmp_path, "/user/agentctl-system.administrator")
    environment = {
        "AGENTCTL_STATE_DIR": str(tmp_path / "state"),
        "AGENTCTL_TLS_DIR": str(person.folder),
        "HOME": str(tmp_path),  # where no kubeconfig is
        "KUBECONFIG": "",
    }

    async def run(*arguments: str, stdin: str = AGENT) -> Result:
        words = ("validate", "-f", "-", *arguments)
        return await asyncio.to_thread(CliRunner().invoke, app, words, input=stdin, env=environment)

    return run


@pytest.fixture
async def plane(cluster: LocalCluster, admission: Admission, tmp_path: Path) -> AsyncIterator[None]:
    """A plane that runs here, with admission beside it."""
    (tmp_path / "state").mkdir()
    resources = Resources(cluster, Usage(cluster))
    async with (
        serving(
            PLANE,
            identity(authority(), tmp_path, "/cp/plane"),
            lambda server: resource_grpc.add_ResourceServiceServicer_to_server(resources, server),
        ) as one,
        serving(
            ADMISSION,
            identity(authority(), tmp_path, "/cp/admission"),
            lambda server: pb_grpc.add_AdmissionServiceServicer_to_server(admission, server),
        ) as other,
    ):
        write_json(tmp_path / "state" / "endpoints.json", {"plane": one.address, "admission": other.address})
        yield


@asynccontextmanager
async def api_server(
    folder: Path, status: int, message: str = "", warnings: tuple[str, ...] = (), **more: Any
) -> AsyncIterator[tuple[str, list[Any]]]:
    """A kubeconfig of an API server that answers each dry run so, and what it was asked."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.path, dict(request.query)))
        response = web.json_response({"kind": "Status", "message": message, **more}, status=status)
        for warning in warnings:
            response.headers.add("Warning", f'299 - "{warning}"')
        return response

    served = web.Application()
    served.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(served, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
    try:
        yield str(folder / "kubeconfig"), asked
    finally:
        await runner.cleanup()


def table(result: Result) -> list[list[str]]:
    """The cells that are not empty, a list a line."""
    return [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()]


async def test_a_plane_says_what_admission_says(agentctl, plane, admission):
    admission.by_kind["Agent"] = pb.ReviewResponse(denials=[DENIED], warnings=[WARNED])
    result = await agentctl()
    assert (result.exit_code, table(result)) == (1, TABLE)
    [asked] = admission.asked
    assert document_of(asked.object)["metadata"] == {"name": "scout", "namespace": "default"}
    assert not asked.HasField("old_object")


async def test_a_cluster_says_the_same_by_a_dry_run(agentctl, tmp_path):
    why = f'admission webhook "validate.agentctl.dev" denied the request: {LINES["denied"]}'
    async with api_server(tmp_path, 422, why, (LINES["warned"],)) as (kubeconfig, asked):
        result = await agentctl("--kubeconfig", kubeconfig)
    assert (result.exit_code, table(result)) == (1, TABLE)
    method, path, query = asked[-1]
    assert (method, path) == ("PATCH", "/apis/agentctl.dev/v1alpha1/namespaces/default/agents/scout")
    assert query["dryRun"] == "All"


@pytest.mark.parametrize("status", [403, 422])
async def test_each_line_of_a_webhooks_denial_is_a_row(agentctl, tmp_path, status):
    lines = f"\n* {LINES['denied']}\n* {LINES['warned']}"
    why = f'admission webhook "validate.agentctl.dev" denied the request: {lines}'
    async with api_server(tmp_path, status, why) as (kubeconfig, _):
        result = await agentctl("--kubeconfig", kubeconfig, "-o", "json")
    assert result.exit_code == 1
    assert [(each["rule"], each["value"], each["mend"]) for each in json.loads(result.stdout)] == [
        ("a-rule", "evil/a", "use another"),
        ("b-rule", "", "set it"),
    ]


async def test_what_the_api_server_itself_refuses_is_the_schemas(agentctl, tmp_path):
    causes = [{"field": "spec.mode", "message": "Unsupported value", "reason": "FieldValueNotSupported"}]
    async with api_server(tmp_path, 422, "it is invalid", details={"causes": causes}) as (kubeconfig, _):
        result = await agentctl("--kubeconfig", kubeconfig)
    expected = ["agent/default/scout", "denied", "schema", "spec.mode", "Unsupported value"]
    assert (result.exit_code, table(result)[1][:5]) == (1, expected)


async def test_a_field_that_a_cluster_does_not_know_is_named(agentctl, tmp_path):
    why = 'Agent in version "v1alpha1" cannot be handled: strict decoding error: unknown field "spec.IMAGE"'
    async with api_server(tmp_path, 400, why) as (kubeconfig, _):
        result = await agentctl("--kubeconfig", kubeconfig)
    assert (result.exit_code, table(result)[1][2:5]) == (1, ["schema", "spec.IMAGE", "unknown field"])


async def test_a_number_that_nobody_can_carry_is_named(agentctl, plane):
    result = await agentctl("-o", "json", stdin=AGENT.replace("deadline: 5m", f"maxTokens: {2**63}"))
    [row] = json.loads(result.stdout)
    assert (result.exit_code, row["rule"], row["field"]) == (1, "schema", "spec.limits.maxTokens")


async def test_what_is_nearly_ours_is_denied(agentctl, plane):
    result = await agentctl(stdin=AGENT.replace("kind: Agent", "kind: agent"))
    assert (result.exit_code, table(result)[1][:4]) == (1, ["agent/scout", "denied", "unknown-kind", "kind"])


async def test_the_command_itself_may_name_the_certificate(agentctl, plane, tmp_path):
    missing = await agentctl("--tls-dir", str(tmp_path / "nothing"))
    assert (missing.exit_code, missing.stdout) == (4, "")
    person = identity(authority(), tmp_path, "/user/agentctl-system.administrator")
    assert (await agentctl("--tls-dir", str(person.folder))).exit_code == 0


async def test_what_the_cluster_cannot_judge_is_not_checked(agentctl, tmp_path):
    async with api_server(tmp_path, 404, 'namespaces "default" not found') as (kubeconfig, _):
        result = await agentctl("--kubeconfig", kubeconfig)
    expected = ["agent/default/scout", "not-checked", 'namespaces "default" not found']
    assert (result.exit_code, table(result)[1]) == (0, expected)


@pytest.mark.parametrize(("status", "code"), [(403, 4), (503, 5)])
async def test_a_cluster_that_gives_no_verdict_is_an_error(agentctl, tmp_path, status, code):
    async with api_server(tmp_path, status, "agents is forbidden: jane cannot patch") as (kubeconfig, _):
        result = await agentctl("--kubeconfig", kubeconfig)
    assert (result.exit_code, result.stdout) == (code, "")
    assert "jane cannot patch" in result.stderr


async def test_the_rules_alone_say_what_they_do_not_know(agentctl):
    result = await agentctl("-n", "demo")
    assert result.exit_code == 0
    assert "by the rules alone" in result.stderr
    assert [tuple(row[:2]) for row in table(result)[1:]] == [
        ("agent/demo/scout", "allowed"),
        ("agent/demo/scout", "not-checked"),
    ]
    denied = await agentctl(stdin=AGENT.replace("mode: once", "mode: sometimes"))
    assert (denied.exit_code, table(denied)[1][1:4]) == (1, ["denied", "schema", "spec.mode"])


async def test_an_object_that_is_there_is_what_it_was(agentctl, plane, cluster, admission):
    thing = yaml.safe_load(AGENT)
    thing["metadata"]["namespace"] = "default"
    await cluster.create(thing)
    await agentctl()
    assert document_of(admission.asked[0].old_object)["spec"]["instruction"] == "Look\x7f."


async def test_what_the_files_bring_is_not_missing(agentctl, plane, admission):
    missing = pb.Finding(
        rule="unknown-pool", field="spec.model.pool", value="large", message="there is none", mend="make it"
    )
    admission.by_kind["Agent"] = pb.ReviewResponse(denials=[missing])
    alone = await agentctl()
    assert (alone.exit_code, table(alone)[1][:3]) == (1, ["agent/default/scout", "denied", "unknown-pool"])
    together = await agentctl(stdin=f"{AGENT}---\n{POOL}---\n{SECRET}")
    assert (together.exit_code, [row[:2] for row in table(together)[1:]]) == (
        0,
        [
            ["agent/default/scout", "not-checked"],
            ["modelpool/default/large", "allowed"],
            ["secret/word", "not-checked"],
        ],
    )


async def test_what_admission_cannot_judge_is_denied_or_an_error(agentctl, plane, admission):
    admission.by_kind["Agent"] = InvalidError("it names 65 things")
    denied = await agentctl()
    assert (denied.exit_code, table(denied)[1]) == (
        1,
        ["agent/default/scout", "denied", "it names 65 things"],
    )
    admission.by_kind["Agent"] = UnavailableError("could not look up the pool")
    away = await agentctl()
    assert (away.exit_code, away.stdout) == (5, "")
    assert "could not look up the pool" in away.stderr


async def test_files_have_to_be_named_and_have_objects(agentctl):
    assert (await agentctl(stdin="")).exit_code == 2
    assert (await agentctl(stdin="a: [")).exit_code == 2
