"""`agentctl-admission validate`, and that every surface gives the same verdict."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.cluster import Object
from libs.cluster.kinds import MCP_SERVER_SET, MODEL_POOL
from libs.documents import struct_of
from libs.errors import InvalidError
from services.admission.context import needs
from services.admission.reading import OVERRIDE, text
from services.admission.validate import main

from .declared import agent, declared, fleet, pods, pool, server, server_set, template
from .generated import spoil, things

IMAGES = "ghcr.io/acme/**"
SECRET_PODS = pods({"env": [{"name": "W", "valueFrom": {"secretKeyRef": {"name": "word", "key": "a"}}}]})
ALL = server_set("all", server("browser", "untrusted_input", "sensitive", "egress"))
BECAUSE = {"annotations": {OVERRIDE: "ticket 12"}}
CORPUS = [
    agent(),
    fleet(),
    pool(),
    ALL,
    agent(image="ghcr.io/acme/a"),
    agent(image="evil/a:1", mcpServers=["all"]),
    agent(metadata=BECAUSE, mcpServers=["all"]),
    agent(model={"pool": "large", "id": "nosuch"}),
    agent(mode="schedule", schedule={"cron": "0 0 31 2 *", "timeZone": "Etc/Nowhere"}),
    agent(mode="sometimes"),
    agent(podTemplate=SECRET_PODS, unknown=1),
    agent("x" * 60),
    agent(metadata={"namespace": "agentctl-system"}),
    fleet(scaling={"maxReplicas": 5000}, template=template(image="evil/a")),
    pool(endpoint="http://joe:pass@host/"),
    server_set("web", server("a", endpoint="http://10.0.0.1/mcp"), server("a")),
    declared(MODEL_POOL, "large", {"models": []}),
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "demo"}, "data": {}},
]
BY_NAME = {
    MODEL_POOL: pool,
    MCP_SERVER_SET: lambda name: {**ALL, "metadata": {"name": name, "namespace": "demo"}},
}
Found = set[tuple[str, str]]


def world_of(*given: Object | None) -> list[Object]:
    """All pools and server sets that these name."""
    wanted = [(each, needs(each)) for each in given if each is not None]
    made: dict[Any, Object] = {}
    for _, need in wanted:
        for kind, name in need.objects:
            if kind in BY_NAME:
                thing = BY_NAME[kind](name)
                thing["metadata"]["namespace"] = need.namespace
                made[kind, need.namespace, name] = thing
    return list(made.values())


def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def by_files(folder: Path, thing: Object, world: list[Object]) -> tuple[int, Found, Found]:
    """Exit code, denials and warnings of `agentctl-admission validate`."""
    path = folder / "things.yaml"
    path.write_text("\n---\n".join(json.dumps(each, ensure_ascii=False) for each in (thing, *world)))
    code, out, err = run(str(path), "--allowed-images", IMAGES, "--trust-domain", "mesh.test", "-o", "json")
    assert not err
    rows = [row for row in json.loads(out) if row["object"] == json.loads(out)[0]["object"]]
    denied, warned = (
        {found(row["rule"], row["field"]) for row in rows if row["verdict"] == verdict}
        for verdict in ("denied", "warning")
    )
    return code, denied, warned


def found(rule: str, field: str) -> tuple[str, str]:
    """Which of its malformed fields is found first hangs on their order, which a Struct does not keep."""
    return rule, "" if rule == "malformed" else field


def of_grpc(said: Any) -> tuple[Found, Found]:
    denials = {found(each.rule, each.field) for each in said.denials}
    return denials, {found(each.rule, each.field) for each in said.warnings}


def of_webhook(answer: Any) -> tuple[Found, set[str]]:
    causes = answer.get("status", {}).get("details", {}).get("causes", ())
    rules = {line.rpartition("(")[2].rstrip(")") for line in answer.get("warnings", ())}
    return {found(each["reason"], each["field"]) for each in causes}, rules


async def agree(service: Any, world: Any, folder: Path, thing: Object, old: Object | None = None) -> bool:
    """Asserts that all surfaces say the same; whether it may be."""
    around = world_of(thing, old)
    world.objects.clear()
    world.put(*around)
    grpc = await service.by_grpc(thing, old)
    denials, warnings = of_grpc(grpc)
    webhook = await service.by_webhook(thing, old)
    hook_denials, hook_warnings = of_webhook(webhook)
    by_schema = {each for each in denials if each[0] == "schema"}
    if by_schema:  # to which an API server holds it before it asks
        assert hook_denials - {("malformed", "")} <= denials
    else:
        assert (grpc.allowed, denials) == (webhook["allowed"], hook_denials)
    assert hook_warnings == {rule for rule, _ in warnings}
    filled_in = await service.by_webhook(thing, old, path="/mutate")
    assert bool(grpc.patch) == ("patch" in filled_in)
    if (
        old is None
        and text(thing, "namespace")
        and text(thing, "name")
        and isinstance(thing.get("kind"), str)
    ):
        code, file_denials, file_warnings = by_files(folder, thing, around)
        assert file_denials == denials
        assert file_warnings == {each for each in warnings if each[0] != "trifecta-overridden"}
        assert code == (0 if grpc.allowed else 1)
    return bool(grpc.allowed)


@pytest.mark.parametrize("thing", CORPUS, ids=[f"{n}-{each['kind']}" for n, each in enumerate(CORPUS)])
async def test_webhook_service_and_files_agree_on_what_people_write(service, world, tmp_path, thing):
    await agree(service, world, tmp_path, copy.deepcopy(thing))


async def test_the_corpus_has_good_and_bad(service, world, tmp_path):
    verdicts = [await agree(service, world, tmp_path, copy.deepcopy(each)) for each in CORPUS]
    assert 5 <= sum(verdicts) <= len(CORPUS) - 5


@st.composite
def changes(draw: st.DrawFn) -> tuple[Object, Object | None]:
    """An object, and what it was if it is not new."""
    thing = draw(things())
    old = copy.deepcopy(draw(st.sampled_from([None, thing])))
    if old is not None:
        spoil(draw, thing)
    return thing, old


def is_json(change: tuple[Object, Object | None]) -> bool:
    """Whether somebody could declare it at all."""
    try:
        struct_of({"change": list(change)})
    except InvalidError:
        return False
    return True


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(change=changes().filter(is_json))
async def test_they_agree_on_anything_whatever(service, world, tmp_path, change):
    await agree(service, world, tmp_path, *change)


POOL = "apiVersion: agentctl.dev/v1alpha1\nkind: ModelPool\nmetadata: {name: large}\nspec: {models: [m]}\n"
AGENT = """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: scout}
spec: {mode: once, instruction: Look., model: {pool: large}, limits: {deadline: 5m}}
"""


def write(folder: Path, *texts: str) -> str:
    (folder / "f.yaml").write_text("---\n".join(texts))
    return str(folder / "f.yaml")


def test_the_files_are_the_world(tmp_path):
    code, out, _ = run(write(tmp_path, POOL, AGENT))
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [
            ["OBJECT", "VERDICT", "RULE", "FIELD", "MESSAGE", "MEND"],
            ["modelpool/default/large", "allowed"],
            ["agent/default/scout", "allowed"],
        ],
    )


def test_what_needs_a_cluster_is_said_not_to_be_checked(tmp_path):
    pods_of_secret = AGENT.replace("limits:", "podTemplate: {spec: {serviceAccountName: robot}}, limits:")
    code, out, _ = run(write(tmp_path, pods_of_secret), "-n", "demo", "-o", "json")
    assert code == 0
    assert [(each["object"], each["verdict"], each["field"]) for each in json.loads(out)] == [
        ("agent/demo/scout", "allowed", ""),
        ("agent/demo/scout", "not-checked", "spec.model.pool"),
        ("agent/demo/scout", "not-checked", "spec.podTemplate.spec.serviceAccountName"),
    ]


def test_a_denial_is_exit_code_1_and_says_how_to_mend_it(tmp_path):
    bad = AGENT.replace("mode: once", "mode: once, image: evil/a:1")
    code, out, _ = run("-f", write(tmp_path, POOL, bad), "--allowed-images", IMAGES, "-o", "json")
    [row] = [each for each in json.loads(out) if each["verdict"] == "denied"]
    assert code == 1
    assert set(row) == {"object", "verdict", "rule", "field", "value", "message", "mend"}
    assert (row["rule"], row["field"], row["value"]) == ("image-not-allowed", "spec.image", "evil/a:1")
    assert row["message"]
    assert row["mend"]


def test_what_no_rule_is_about_is_not_judged(tmp_path):
    code, out, _ = run(write(tmp_path, "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"), "-o", "json")
    [row] = json.loads(out)
    assert (code, row["object"], row["verdict"]) == (0, "secret/s", "not-checked")


@pytest.mark.parametrize(
    ("bad", "rule", "field"),
    [
        (AGENT.replace("kind: Agent", "kind: agent"), "unknown-kind", "kind"),
        (AGENT.replace("/v1alpha1", "/v1"), "unknown-kind", "apiVersion"),
        (AGENT.replace("agentctl.dev", "Agentctl.dev"), "unknown-kind", "apiVersion"),
        (AGENT.replace("agentctl.dev", "agenctl.dev"), "unknown-kind", "apiVersion"),
        (AGENT.replace("name: scout", "generateName: scout-"), "no-name", "metadata.name"),
        (AGENT.replace("limits:", "colour: red, limits:"), "schema", "spec.colour"),
    ],
)
def test_what_an_apply_refuses_is_denied(tmp_path, bad, rule, field):
    code, out, _ = run(write(tmp_path, POOL, bad), "-o", "json")
    [row] = [each for each in json.loads(out) if each["verdict"] == "denied"]
    assert (code, row["rule"], row["field"]) == (1, rule, field)
    assert row["mend"]


def test_kinds_of_others_are_not_ours_to_judge(tmp_path):
    for version in ("kagent.dev/v1alpha1", "management.agentctl.dev/v1", "v1"):
        code, out, _ = run(write(tmp_path, AGENT.replace("agentctl.dev/v1alpha1", version)), "-o", "json")
        assert (code, [each["verdict"] for each in json.loads(out)]) == (0, ["not-checked"])


def test_neither_table_nor_json_shows_a_password(tmp_path):
    bad = POOL.replace("models:", "endpoint: 'https://joe:hunter2@x.example/v1', models:")
    for shape in ("table", "json"):
        code, out, _ = run(write(tmp_path, bad), "-o", shape)
        assert (code, "x.example" in out, "hunter2" in out) == (1, False, False)


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("a: [", (), "not YAML"),
        ("\xff", (), "UTF-8"),
        ("- 1\n", (), "document 1: no object"),
        ("kind: Agent\n", (), "no object with a kind and metadata"),
        ("", (), "name files"),
        (AGENT, ("--allowed-images", "a b"), "a b"),
        (AGENT, ("nosuch.yaml",), "nosuch.yaml"),
    ],
)
def test_what_cannot_be_judged_is_a_usage_error(tmp_path, content, arguments, said):
    path = tmp_path / "f.yaml"
    path.write_bytes(content.encode("latin-1"))
    code, out, err = run(str(path), *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_the_command_reads_stdin():
    done = subprocess.run(
        [sys.executable, "-m", "services.admission", "validate", "-f", "-"],
        input=POOL,
        text=True,
        capture_output=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.splitlines()[1].split() == ["modelpool/default/large", "allowed"]
