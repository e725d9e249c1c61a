"""What may be declared on the plane of `agentctl up`: verdicts, who may what, and the audit log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from .machine import EXAMPLES, NAMESPACE, Machine

Json = dict[str, Any]

MANIFESTS = sorted(EXAMPLES.glob("**/*.yaml"))
TAGS = ("untrusted_input", "sensitive", "egress")
ADMINISTRATOR = "system:serviceaccount:agentctl-system:administrator"
USER = f"system:serviceaccount:{NAMESPACE}:default"
REASON = "reads public mail only"


def thing(kind: str, name: str, spec: object, namespace: str = NAMESPACE, **metadata: Any) -> Json:
    """An object of ours."""
    return {
        "apiVersion": "agentctl.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


def agent(name: str, namespace: str = NAMESPACE, metadata: Json | None = None, **spec: Any) -> Json:
    """One that runs at new year."""
    good = {
        "mode": "schedule",
        "schedule": {"cron": "0 0 1 1 *"},
        "instruction": "Write.",
        "model": {"pool": "stand-in"},
        "limits": {"deadline": "1m"},
    }
    return thing("Agent", name, good | spec, namespace, **(metadata or {}))


def servers(name: str, *names: str, tags: Sequence[str] = ()) -> Json:
    """A server set."""
    listed = [
        {"name": each, "endpoint": "https://office.example.com/mcp", "tags": list(tags)} for each in names
    ]
    return thing("MCPServerSet", name, {"servers": listed})


THERE = [servers("leaky", "desk", tags=TAGS), servers("twice", "mail")]
"""What the plane has, beside the pool and the server set of the examples."""

BY_THE_OBJECT = [
    (agent("on-no-day", schedule={"cron": "0 0 31 2 *"}), "spec.schedule.cron '0 0 31 2 *'", "cron-never"),
    (
        agent("nowhere", schedule={"cron": "@daily", "timeZone": "Mars/Base"}),
        "spec.schedule.timeZone 'Mars/Base'",
        "unknown-time-zone",
    ),
    (agent("other-model", model={"pool": "stand-in", "id": "gpt"}), "spec.model.id 'gpt'", "unknown-model"),
    (agent("same-server", mcpServers=["office", "twice"]), "spec.mcpServers[1] 'twice'", "duplicate-server"),
    (agent("lethal", mcpServers=["leaky"]), "spec", "trifecta"),
    (
        thing("ModelPool", "no-port", {"endpoint": "https://a.example:99999/v1", "models": ["a"]}),
        "spec.endpoint 'https://a.example:99999/v1'",
        "endpoint-invalid",
    ),
]
"""Objects that break rules, with field and value, and the rule: by themselves and THERE alone."""

BY_THE_PLANE = [
    (agent("poor", model={"pool": "nosuch"}), "spec.model.pool 'nosuch'", "unknown-pool"),
    (agent("lonely", mcpServers=["nosuch"]), "spec.mcpServers[0] 'nosuch'", "unknown-server-set"),
]
"""Objects that are denied because of what the plane does not have."""

UNWISE = [
    (
        thing("AgentFleet", "spends", {"template": {"instruction": "a", "model": {"pool": "stand-in"}},
                                       "scaling": {"minReplicas": 0}}),
        "no-limits",
    ),
    (agent("floats", image="acme/agent", podTemplate={"spec": {"containers": [
        {"name": "agent", "resources": {"limits": {"memory": "1Gi"}}}]}}), "image-floating"),
    (agent("tells", instruction="Use sk-" + "a1" * 20), "secret-in-text"),
]  # fmt: skip
"""Objects that are legal, with the rule that warns."""

MALFORMED = [
    thing("Agent", "no-spec", None),
    agent("no-mode", mode="sometimes"),
    agent("cheap", colour="red"),
]
"""Objects that no schema fits."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A plane that has the pools and the server set of the examples, and THERE."""
    with tempfile.TemporaryDirectory(prefix="agentctl-admission-", ignore_cleanup_errors=True) as folder:
        machine = Machine(Path(folder))
        try:
            machine.ready(machine.up("--store", "memory"))
            texts = [(EXAMPLES / name).read_text() for name in ("modes/reactive.yaml", "openai.yaml")]
            things = [each for text in texts for each in yaml.safe_load_all(text)]
            applied(machine, *(each for each in things if not each["kind"].startswith("Agent")), *THERE)
            yield machine
        finally:
            machine.close()


@pytest.fixture(scope="module")
def user(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The certificate folder of a user of the namespace."""
    folder = str(tmp_path_factory.mktemp("user") / "tls")
    machine.done("login", "--user", NAMESPACE, "--tls-dir", folder)
    return folder


def text_of(*things: Json) -> str:
    return "\n---\n".join(map(json.dumps, things))


def apply(machine: Machine, *things: Json, tls_dir: str = "") -> subprocess.CompletedProcess[str]:
    """`agentctl apply`, as the administrator or by a certificate folder."""
    who = ["--tls-dir", tls_dir] if tls_dir else []
    return machine.run(*who, "apply", "-f", "-", stdin=text_of(*things))


def applied(machine: Machine, *things: Json, tls_dir: str = "") -> str:
    """What it says on stderr when all are applied."""
    found = apply(machine, *things, tls_dir=tls_dir)
    assert found.returncode == 0, found
    return found.stderr


def stored(machine: Machine, kind: str) -> set[str]:
    """The names there are."""
    return {each["metadata"]["name"] for each in machine.json("get", kind, "-A")["items"]}


def audited(machine: Machine, event: str, name: str) -> Json:
    """The last line of the audit log of that event with an agent of that name."""
    lines = map(json.loads, (machine.state / "logs" / "plane.log").read_text().splitlines())
    found = [
        line
        for line in lines
        if line.get("logger") == "agentctl.audit" and line["target"] == f"{NAMESPACE}/Agent/{name}"
    ]
    assert found[-1]["event"] == event
    return {key: found[-1].get(key) for key in ("who", "what", "decision", "reason")}


def test_what_breaks_a_rule_is_refused_with_field_value_and_mend_and_is_not_stored(machine: Machine) -> None:
    wrong = [*BY_THE_OBJECT, *BY_THE_PLANE]
    found = apply(machine, *(each for each, _, _ in wrong), agent("right"))
    assert (found.returncode, found.stdout) == (1, "agent/right created\n")
    for said, (each, field, rule) in zip(found.stderr.splitlines(), wrong, strict=True):
        kind, name = each["kind"], each["metadata"]["name"]
        begin = f'error: {kind.lower()}/{name}: The {kind} "{name}" is denied: {field}: '
        assert said.startswith(begin), said
        assert re.fullmatch(rf".+; .+ \({rule}\)", said.removeprefix(begin)), said
    assert stored(machine, "agents") == {"right"}
    assert "no-port" not in stored(machine, "modelpools")
    machine.done("delete", "agent/right", "-n", NAMESPACE)


def test_all_that_is_wrong_is_said_at_once(machine: Machine) -> None:
    both = agent("doubly", model={"pool": "nosuch"}, schedule={"cron": "0 0 31 2 *"})
    found = apply(machine, both)
    assert found.returncode == 1
    lines = [line.partition(":")[0] for line in found.stderr.splitlines() if line.startswith("* ")]
    assert sorted(lines) == ["* spec.model.pool 'nosuch'", "* spec.schedule.cron '0 0 31 2 *'"], found.stderr
    assert audited(machine, "admission-denial", "doubly") == {
        "who": ADMINISTRATOR,
        "what": "create",
        "decision": "denied",
        "reason": "cron-never, unknown-pool",
    }


def test_what_is_unwise_is_applied_with_a_warning(machine: Machine) -> None:
    said = applied(machine, *(each for each, _ in UNWISE))
    lines = said.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == [f"({rule})" for _, rule in UNWISE], said
    assert all(line.startswith("Warning: spec.") for line in lines)
    assert "sk-a1" not in said
    assert {"floats", "tells"} <= stored(machine, "agents")
    machine.done("delete", "-f", "-", stdin=text_of(*(each for each, _ in UNWISE)))


def test_the_examples_are_applied_without_a_warning(machine: Machine) -> None:
    files = [word for path in MANIFESTS for word in ("-f", str(path))]
    found = machine.run("apply", "--dry-run", *files)
    assert (found.returncode, found.stderr) == (0, ""), found


def rows(found: subprocess.CompletedProcess[str]) -> list[tuple[str, ...]]:
    """What a command says of objects, one row a finding, but for what was not checked."""
    assert found.returncode in (0, 1), found.stderr
    keys = ("object", "verdict", "rule", "field", "value", "message", "mend")
    said = [tuple(row[key] for key in keys) for row in json.loads(found.stdout)]
    return sorted(row for row in said if row[1] != "not-checked")


def test_verdicts_are_the_same_with_a_plane_and_without(machine: Machine, tmp_path: Path) -> None:
    things = [*THERE, *(each for each, _, _ in BY_THE_OBJECT), *(each for each, _ in UNWISE), *MALFORMED]
    path = tmp_path / "things.yaml"
    path.write_text(text_of(*things))
    files = [word for each in (*MANIFESTS, path) for word in ("-f", str(each))]
    command = [str(Path(sys.executable).parent / "agentctl-admission"), "validate", *files, "-o", "json"]
    alone = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    with_plane = rows(machine.run("validate", *files, "-o", "json"))
    without = machine.run("validate", *files, "-o", "json", "--state-dir", str(tmp_path / "nothing"))
    assert without.stderr.startswith("neither a plane nor a kubeconfig")
    assert rows(alone) == with_plane
    assert rows(without) == with_plane
    rules = {row[2] for row in with_plane if row[1] == "denied"}
    assert rules == {rule for _, _, rule in BY_THE_OBJECT} | {"schema"}
    assert {row[2] for row in with_plane if row[1] == "warning"} == {rule for _, rule in UNWISE}
    denied = {row[0].rpartition("/")[2] for row in with_plane if row[1] == "denied"}
    assert denied == {each["metadata"]["name"] for each in (*(e for e, _, _ in BY_THE_OBJECT), *MALFORMED)}


def test_what_hangs_on_the_plane_is_denied_there_and_not_checked_elsewhere(
    machine: Machine, tmp_path: Path
) -> None:
    text = text_of(*(each for each, _, _ in BY_THE_PLANE))
    found = machine.run("validate", "-f", "-", "-o", "json", stdin=text)
    assert found.returncode == 1
    assert [row["rule"] for row in json.loads(found.stdout)] == [rule for _, _, rule in BY_THE_PLANE]
    found = machine.run(
        "validate", "-f", "-", "-o", "json", "--state-dir", str(tmp_path / "nothing"), stdin=text
    )
    assert found.returncode == 0
    assert {row["verdict"] for row in json.loads(found.stdout)} == {"allowed", "not-checked"}


def test_the_trifecta_is_overridden_by_an_administrator_and_by_nobody_else(
    machine: Machine, user: str
) -> None:
    lethal = agent("reader", mcpServers=["leaky"])
    lethal["metadata"]["annotations"] = {"agentctl.dev/allow-trifecta": REASON}
    found = apply(machine, lethal, tls_dir=user)
    assert found.returncode == 1
    assert "may not override agents/trifecta in agentctl.dev" in found.stderr
    assert "reader" not in stored(machine, "agents")
    denied = {"who": USER, "decision": "denied", "reason": "trifecta"}
    assert audited(machine, "admission-denial", "reader") == denied | {"what": "create"}

    said = applied(machine, lethal)
    assert said.count("\n") == 1
    assert said.startswith("Warning: metadata.annotations[agentctl.dev/allow-trifecta]"), said
    assert audited(machine, "admission-override", "reader") == {
        "who": ADMINISTRATOR,
        "what": "create",
        "decision": "allowed",
        "reason": REASON,
    }

    lethal["metadata"]["labels"] = {"team": "mail"}
    assert applied(machine, lethal, tls_dir=user) == ""  # what hangs on the override is as it was
    lethal["spec"]["instruction"] = "Write something else."
    assert apply(machine, lethal, tls_dir=user).returncode == 1
    assert audited(machine, "admission-denial", "reader") == denied | {"what": "update"}
    machine.done("delete", "agent/reader", "-n", NAMESPACE)


def test_a_user_may_name_the_secrets_and_accounts_of_the_namespace(machine: Machine, user: str) -> None:
    """As by the role `edit` of Kubernetes; a producer may declare nothing."""
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "key"}}}
    spec = {"serviceAccountName": "robot", "containers": [{"name": "agent", "env": [key]}]}
    assert applied(machine, agent("knows", podTemplate={"spec": spec}), tls_dir=user) == ""
    assert "knows" in stored(machine, "agents")
    machine.done("delete", "agent/knows", "-n", NAMESPACE)


def test_a_stranger_finds_no_namespace_and_a_producer_may_not(machine: Machine, tmp_path: Path) -> None:
    machine.done("apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: other}}")
    for who, words in (("--user", "no namespace demo"), ("--producer", "may not call")):
        namespace = "other" if who == "--user" else NAMESPACE
        folder = str(tmp_path / who)
        machine.done("login", who, namespace, "--tls-dir", folder)
        found = apply(machine, agent("theirs"), tls_dir=folder)
        assert (found.returncode, words in found.stderr) == (1, True), found
    assert "theirs" not in stored(machine, "agents")
