"""Admission between stock kubectl and a real API server, on the overlay dev: verdicts and whose they are, and
what goes on while admission is away, its certificate is renewed, or the API server restarts."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from socket import create_connection
from threading import Event
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agentctl.admission.v1.admission_service_pb2 import ReviewRequest
from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceStub
from libs.documents import struct_of
from libs.findings import Row, name_of, row_of
from libs.identity import Identity
from libs.mesh import ADMISSION
from libs.rpc.client import dial

from ..test_admission import BY_THE_OBJECT, BY_THE_PLANE, MALFORMED, REASON, THERE, UNWISE, agent, thing
from .fleets import fleet
from .kubectl import ROOT, SYSTEM, Kubectl, RefusedError
from .node import Node
from .person import Person
from .place import Place

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("dev")]

Json = dict[str, Any]

HOOK = "validate.admission.agentctl.dev"
DENIED = f'admission webhook "{HOOK}" denied the request: '
CUT = re.compile(rf'failed calling webhook "{HOOK}": .*(connection reset by peer|EOF)$')
DEPLOYMENT = "deployment/admission"
ADMISSION_POD = "app.kubernetes.io/component=admission"
OVERRIDE = "agentctl.dev/allow-trifecta"
PART_OF = "app.kubernetes.io/part-of"
IMAGES = "agentctl,acme/**,python:*,example.com/**"

DENYING = [
    *BY_THE_OBJECT,
    (agent("stranger", image="acme-evil/a:1"), "spec.image 'acme-evil/a:1'", "image-not-allowed"),
    (agent("taken"), "metadata.name 'taken'", "name-taken"),
]
"""Objects that break rules, with field and value, and the rule; all the world that counts is WORLD."""

TAKEN = thing("AgentFleet", "taken", {
    "template": {"instruction": "a", "model": {"pool": "stand-in"}, "limits": {"deadline": "1m"}},
    "scaling": {"minReplicas": 0},
})  # fmt: skip
WORLD = [
    *(
        each
        for each in yaml.safe_load_all((ROOT / "examples" / "modes" / "reactive.yaml").read_text())
        if each["kind"] in ("ModelPool", "MCPServerSet")
    ),
    *THERE,
    TAKEN,
]


@pytest.fixture(scope="module", autouse=True)
def allowed_images(kubectl: Kubectl, dev: None) -> None:
    """Admission is told which there are."""
    replaced(kubectl, "set", "env", DEPLOYMENT, f"ADMISSION_ALLOWED_IMAGES={IMAGES}")


@pytest.fixture
def shop(kubectl: Kubectl, namespace: str) -> str:
    """A namespace with WORLD in it."""
    kubectl.apply(*(moved(each, namespace) for each in WORLD))
    return namespace


def moved(each: Json, namespace: str) -> Json:
    """The same in another namespace."""
    copy = deepcopy(each)
    copy["metadata"]["namespace"] = namespace
    return copy


def replaced(kubectl: Kubectl, *words: str) -> None:
    """What makes the Deployment replace its pods; returns when only new ones are left."""
    pods = kubectl("get", "pods", "-l", ADMISSION_POD, "-n", SYSTEM, "-o", "name").split()
    kubectl(*words, "-n", SYSTEM)
    kubectl("rollout", "status", DEPLOYMENT, "-n", SYSTEM, "--timeout=90s", seconds=100)
    for each in pods:
        kubectl.wait("delete", each, SYSTEM)


def until(ask: Callable[[], object], seconds: float = 120) -> None:
    """Returns when it is so; what kubectl is refused meanwhile is no answer. AssertionError."""
    deadline, refused = time.monotonic() + seconds, ""
    while True:
        try:
            if ask():
                return
        except RefusedError as error:
            refused = str(error)
        assert time.monotonic() < deadline, f"did not come to be so within {seconds} s: {refused}"
        time.sleep(0.2)


def apply(kubectl: Kubectl, each: Json, *words: str) -> tuple[str, list[str]]:
    """What `kubectl apply` prints, and what it warns of."""
    done = kubectl.done("apply", *words, "-f", "-", stdin=json.dumps(each))
    return done.stdout, done.stderr.splitlines()


def denial(kubectl: Kubectl, each: Json, *words: str, reason: str = "Invalid") -> list[str]:
    """The lines that say why the webhook denies it."""
    kind, name = each["kind"], each["metadata"]["name"]
    invalid, forbidden = rf'The {kind} "{name}" is invalid: ', rf"(?s)\(Forbidden\): .*{DENIED}"
    with pytest.raises(RefusedError, match=invalid if reason == "Invalid" else forbidden) as caught:
        apply(kubectl, each, *words)
    return lines_of(str(caught.value))


def lines_of(error: str) -> list[str]:
    """All that is wrong, as admission writes it. Of an error that is Invalid kubectl shows the causes."""
    _, _, why = error.partition(DENIED) if DENIED in error else error.partition(" is invalid: ")
    lines = why.strip().removeprefix("* ").split("\n* ")
    return [re.sub(r"^(\S+): ('.*?'): ", r"\1 \2: ", line) for line in lines]


def is_there(kubectl: Kubectl, each: Json) -> bool:
    metadata = each["metadata"]
    words = (each["kind"], metadata["name"], "-n", metadata["namespace"], "--ignore-not-found")
    return bool(kubectl("get", *words, "-o", "name"))


def audited(kubectl: Kubectl, each: Json) -> Iterator[Json]:
    """The lines of the audit log about it, oldest first."""
    metadata = each["metadata"]
    target = f"{metadata['namespace']}/{each['kind']}/{metadata['name']}"
    for line in kubectl("logs", DEPLOYMENT, "-n", SYSTEM).splitlines():
        said = json.loads(line)
        if str(said.get("logger")).startswith("agentctl.audit") and said["target"] == target:
            yield {
                key: said.get(key, "") for key in ("event", "who", "what", "decision", "outcome", "reason")
            }


# --- verdicts


def test_each_denial_names_field_value_rule_and_mend_and_a_dry_run_says_the_same(
    kubectl: Kubectl, shop: str
) -> None:
    for anywhere, where, rule in [*DENYING, *BY_THE_PLANE]:
        each = moved(anywhere, shop)
        reason = "Forbidden" if rule == "trifecta" else "Invalid"
        said = denial(kubectl, each, reason=reason)
        assert len(said) == 1, said
        assert re.fullmatch(rf"{re.escape(where)}: .+; .+ \({rule}\)", said[0]), said
        assert denial(kubectl, each, "--dry-run=server", reason=reason) == said
        assert not is_there(kubectl, each)
        whole, dry = audited(kubectl, each)
        denied = {"event": "admission-denial", "what": "create", "decision": "denied", "reason": rule}
        assert whole == denied | {"who": whole["who"], "outcome": ""}
        assert dry == whole | {"outcome": "dry run"}


def test_all_that_is_wrong_is_said_at_once_to_whatever_command(kubectl: Kubectl, shop: str) -> None:
    bad = {"model": {"pool": "nosuch"}, "schedule": {"cron": "0 0 31 2 *"}}
    wrong = {"unknown-pool", "cron-never"}
    said = denial(kubectl, agent("doubly", shop, **bad))
    assert {row_of(line, "", "denied").rule for line in said} == wrong
    apply(kubectl, agent("doubly", shop))
    assert denial(kubectl, agent("doubly", shop, **bad)) == said
    for words in (
        ("patch", "agent/doubly", "--type=merge", "-p", json.dumps({"spec": bad})),
        ("patch", "agent/doubly", "--type=merge", "-p", json.dumps({"spec": bad}), "--dry-run=server"),
    ):
        with pytest.raises(RefusedError) as caught:
            kubectl(*words, "-n", shop)
        assert lines_of(str(caught.value)) == said
    both = [agent(name, shop, **spec) for name, spec in (("doubly", bad), ("also", bad), ("good", {}))]
    with pytest.raises(RefusedError) as caught:  # several errors: kubectl shows each one's message
        kubectl.apply(*both)
    assert str(caught.value).count(DENIED) == 2
    assert is_there(kubectl, both[2])


def test_what_is_unwise_is_applied_with_a_warning_and_a_dry_run_stores_nothing(
    kubectl: Kubectl, shop: str
) -> None:
    for each, rule in ((moved(each, shop), rule) for each, rule in UNWISE):
        dry, warned = apply(kubectl, each, "--dry-run=server", "-o", "json")
        assert json.loads(dry)["metadata"]["labels"] == {PART_OF: "agentctl"}
        assert [re.fullmatch(rf"Warning: spec\.\S+: .+ \({rule}\)", line) is None for line in warned] == [
            False
        ]
        assert not is_there(kubectl, each)
        said, again = apply(kubectl, each)
        assert (said.endswith(" created\n"), again) == (True, warned)


def test_the_label_is_filled_in_once_and_ones_own_is_kept(kubectl: Kubectl, shop: str) -> None:
    mine = agent("mine", shop, {"labels": {PART_OF: "shop"}})
    for each, label in ((agent("theirs", shop), "agentctl"), (mine, "shop")):
        words = ("agent", each["metadata"]["name"], "-n", shop)
        assert apply(kubectl, each)[0].endswith(" created\n")
        before = kubectl.get(*words)
        assert before["metadata"]["labels"] == {PART_OF: label}
        assert apply(kubectl, each) == (f"agent.agentctl.dev/{words[1]} unchanged\n", [])
        assert apply(kubectl, each, "--server-side", "--force-conflicts")[1] == []
        assert kubectl.get(*words)["metadata"]["generation"] == before["metadata"]["generation"]


def test_no_example_is_warned_of(kubectl: Kubectl, namespace: str) -> None:
    things = [
        moved(each, namespace)
        for path in sorted((ROOT / "examples").glob("**/*.yaml"))
        for each in yaml.safe_load_all(path.read_text())
        if each["kind"] != "Namespace"
    ]
    things.sort(key=lambda each: str(each["kind"]).startswith("Agent"))
    for each in things:
        kind = each["kind"].startswith("Agent")
        assert apply(kubectl, each, *(("--dry-run=server",) if kind else ()))[1] == []


# --- whose they are


def pod(*secrets: str, account: str = "") -> Json:
    """A pod template that names Secrets, and a ServiceAccount."""
    env = [
        {"name": f"NAME{n}", "valueFrom": {"secretKeyRef": {"name": name, "key": "key"}}}
        for n, name in enumerate(secrets)
    ]
    named = {"serviceAccountName": account} if account else {}
    return {"spec": {"containers": [{"name": "agent", "env": env}], **named}}


def test_an_author_names_the_secrets_and_accounts_that_he_may_use_and_no_others(
    kubectl: Kubectl, shop: str, tmp_path: Path
) -> None:
    person = Person(kubectl, shop, "author")
    kubectl("create", "role", "declarer", "--verb=*", "--resource=agents.agentctl.dev", "-n", shop)
    words = ("create", "rolebinding", "declarer", "--role=declarer", f"--serviceaccount={shop}:author")
    kubectl(*words, "-n", shop)
    author = person.kubectl(tmp_path)

    env, account = "spec.podTemplate.spec.containers[0].env[0].valueFrom.secretKeyRef.name", "robot"
    knowing = agent("knowing", shop, podTemplate=pod("theirs", account=account))
    lines = [row_of(line, "", "denied") for line in denial(author, knowing, reason="Forbidden")]
    assert {(row.rule, row.field, row.value) for row in lines} == {
        ("secret-not-yours", env, "theirs"),
        ("account-not-yours", "spec.podTemplate.spec.serviceAccountName", account),
    }
    assert [line["who"] for line in audited(kubectl, knowing)] == [f"system:serviceaccount:{shop}:author"]
    assert apply(author, agent("plain", shop))[1] == []

    apply(kubectl, knowing)  # the administrator may; what is named already is nobody's fault
    renamed = agent("knowing", shop, {"labels": {"team": "mail"}}, podTemplate=pod("theirs", account=account))
    apply(author, renamed)
    renamed["spec"]["instruction"] = "Write something else."
    apply(author, renamed)
    renamed["spec"]["podTemplate"] = pod("theirs", "more", account=account)
    lines = [row_of(line, "", "denied") for line in denial(author, renamed, reason="Forbidden")]
    assert {row.value for row in lines} == {"theirs", "more", account}  # what runs has changed

    person.bind("edit")
    until(lambda: author("auth", "can-i", "get", "secret/more", "-n", shop))
    apply(author, renamed)
    apply(author, agent("knowing-too", shop, podTemplate=pod("theirs", account=account)))


def test_the_trifecta_is_overridden_with_a_reason_by_who_has_the_role_and_by_nobody_else(
    kubectl: Kubectl, shop: str, tmp_path: Path
) -> None:
    person = Person(kubectl, shop, "author")
    person.bind("edit")
    author, who = person.kubectl(tmp_path), f"system:serviceaccount:{shop}:author"
    until(lambda: author("auth", "can-i", "create", "agents.agentctl.dev", "-n", shop))
    lethal = agent("reader", shop, {"annotations": {OVERRIDE: REASON}}, mcpServers=["leaky"])
    [line] = denial(author, lethal, reason="Forbidden")
    assert f"'{REASON}'" in line
    assert line.endswith("(trifecta)")

    person.bind("agentctl-trifecta-override")
    until(
        lambda: author(
            "auth", "can-i", "override", "agents.agentctl.dev", "--subresource=trifecta", "-n", shop
        )
    )
    for words in (("--dry-run=server",), ()):
        [warning] = apply(author, lethal, *words)[1]
        assert warning.startswith(f"Warning: metadata.annotations[{OVERRIDE}]")
    [line] = denial(author, agent("unexplained", shop, mcpServers=["leaky"]), reason="Forbidden")
    assert f"annotation {OVERRIDE}" in line
    refused = {"event": "admission-denial", "decision": "denied", "reason": "trifecta", "outcome": ""}
    overridden = {"event": "admission-override", "decision": "allowed", "reason": REASON}
    assert list(audited(kubectl, lethal)) == [
        {"who": who, "what": "create", **said}
        for said in (refused, overridden | {"outcome": "dry run"}, overridden | {"outcome": ""})
    ]


# --- the same, whoever is asked


async def test_verdicts_are_the_same_by_kubectl_cli_grpc_and_files(
    kubectl: Kubectl, shop: str, tmp_path: Path
) -> None:
    denying = [*DENYING, *BY_THE_PLANE]
    corpus = [each for each, _, _ in denying] + [each for each, _ in UNWISE] + [agent("right"), *MALFORMED]
    things = [moved(each, shop) for each in corpus]
    asked = by_kubectl(kubectl, things)
    assert {row[2] for row in asked if row[1] == "denied"} == {"schema", *(rule for _, _, rule in denying)}
    path, world = tmp_path / "things.json", tmp_path / "world.json"
    path.write_text("\n---\n".join(map(json.dumps, things)))
    world.write_text("\n---\n".join(json.dumps(moved(each, shop)) for each in WORLD))
    assert said_by("agentctl", "validate", "--kubeconfig", kubectl.kubeconfig, "-f", path) == asked

    person = Person(kubectl, shop, "author")
    person.bind("agentctl-user")
    person.bind("edit")
    identity = await person.certified(tmp_path / "tls")
    assert await by_grpc(kubectl, identity, things) == asked

    words = ("validate", "-f", path, "-f", world, "--allowed-images", IMAGES)
    names = {name_of(each) for each in things}
    alone = {row for row in said_by("agentctl-admission", *words) if row[0] in names}
    unknown = {name_of(moved(each, shop)) for each, _, _ in BY_THE_PLANE}
    assert alone == {row for row in asked if row[0] not in unknown} | {
        (name, "allowed", "", "", "", "", "") for name in unknown
    }


Said = tuple[str, str, str, str, str, str, str]


def plain(row: Row) -> Said:
    """A row without what each says in its own words: of a schema, that it denies; of a warning, no more than
    its rule and field, since those of webhooks are cut."""
    if row.verdict == "denied" and row.rule in ("", "schema", "malformed"):
        return row.object, "denied", "schema", "", "", "", ""
    if row.verdict == "warning":
        return row.object, "warning", row.rule, row.field, "", "", ""
    return row.object, row.verdict, row.rule, row.field, row.value, row.message, row.mend


def by_kubectl(kubectl: Kubectl, things: list[Json]) -> set[Said]:
    rows = set()
    for each in things:
        name = name_of(each)
        try:
            _, lines = apply(kubectl, each, "--dry-run=server")
            rows.add(Row(name, "allowed"))
        except RefusedError as error:
            rows |= {row_of(line, name, "denied") for line in lines_of(str(error))}
            lines = re.findall("^.*(Warning: .*)$", str(error), re.MULTILINE)
        rows |= {row_of(line.removeprefix("Warning: "), name, "warning") for line in lines}
    return set(map(plain, rows))


def said_by(program: str, *words: str | Path) -> set[Said]:
    """What a command of ours says."""
    command = [str(Path(sys.executable).parent / program), *map(str, words), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    rows = [Row(**row) for row in json.loads(done.stdout)]
    return {plain(row) for row in rows if row.verdict != "not-checked"}


async def by_grpc(kubectl: Kubectl, identity: Identity, things: list[Json]) -> set[Said]:
    rows = []
    with kubectl.forwarded("service/admission", ADMISSION.port, SYSTEM) as address:
        async with dial(ADMISSION, address, identity) as channel:
            stub = AdmissionServiceStub(channel)
            for each in things:
                name = name_of(each)
                verdict = await stub.Review(ReviewRequest(object=struct_of(each)))
                found = [("denied", each) for each in verdict.denials]
                found += [("warning", each) for each in verdict.warnings]
                rows += [
                    Row(name, verdict, each.rule, each.field, each.value, each.message, each.mend)  # type: ignore[arg-type]
                    for verdict, each in found
                ]
                if verdict.allowed:
                    rows.append(Row(name, "allowed"))
    return set(map(plain, rows))


def test_the_latency_of_the_webhook_is_measured_by_a_command(
    kubectl: Kubectl, shop: str, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text(roots(kubectl))
    with kubectl.forwarded("service/admission", 443, SYSTEM) as address:
        words = (
            "management",
            "--fleets",
            "",
            "--callers",
            "1,8",
            "--review-seconds",
            "1",
            "--namespace",
            shop,
        )
        edge = ("--webhook", address, "--ca", str(ca), "--server-name", f"admission.{SYSTEM}.svc")
        command = [str(Path(sys.executable).parent / "agentctl-loadgen"), *words, *edge]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    print(done.stdout)  # noqa: T201
    assert done.returncode == 0, done.stdout + done.stderr
    assert "webhook" in done.stdout


# --- while admission is away


@contextmanager
def without_admission(kubectl: Kubectl) -> Iterator[None]:
    """No replica of it, while the block runs."""
    kubectl("scale", DEPLOYMENT, "--replicas=0", "-n", SYSTEM)
    try:
        kubectl("wait", "--for=delete", "pod", "-l", ADMISSION_POD, "-n", SYSTEM, "--timeout=60s", seconds=70)
        yield
    finally:
        kubectl("scale", DEPLOYMENT, "--replicas=1", "-n", SYSTEM)
        kubectl.wait("condition=Available", DEPLOYMENT, SYSTEM)


def test_while_admission_is_away_all_goes_on_but_declaring(
    kubectl: Kubectl, namespace: str, elsewhere: str
) -> None:
    kubectl.apply(*fleet(namespace), *fleet(elsewhere))
    held = agent("held", namespace, {"finalizers": ["test.example/held"]})
    for each in (held, agent("kept", namespace), agent("held", elsewhere)):
        apply(kubectl, each)
    for where in (namespace, elsewhere):
        kubectl.wait("condition=Ready", "agentfleet/summarize", where)
    with without_admission(kubectl):
        for words in ((), ("--dry-run=server",)):
            with pytest.raises(RefusedError, match=f'failed calling webhook "{HOOK}"'):
                apply(kubectl, agent("new", namespace), *words)
        with pytest.raises(RefusedError, match=f'failed calling webhook "{HOOK}"'):
            kubectl("label", "agent/kept", "-n", namespace, "team=mail")

        ready = "jsonpath={.status.readyReplicas}="
        kubectl("delete", "pod", "-l", "agentctl.dev/agent=summarize", "-n", namespace, "--now")
        kubectl.wait(f"{ready}2", "agentfleet/summarize", namespace)
        kubectl(
            "scale", "agentfleet/summarize", "--replicas=3", "-n", namespace
        )  # min and max are rules of the CRD
        kubectl.wait(f"{ready}3", "agentfleet/summarize", namespace)

        kubectl("delete", "agent/held", "-n", namespace, "--wait=false")
        kubectl("annotate", "agent/held", "-n", namespace, "test.example/note=leaving")
        kubectl(
            "patch", "agent/held", "-n", namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
        )
        kubectl.wait("delete", "agent/held", namespace)
        kubectl("delete", "agent/kept", "-n", namespace, "--cascade=orphan", "--timeout=60s")
        kubectl("delete", "agentfleet/summarize", "-n", namespace, "--cascade=foreground", "--timeout=60s")
        kubectl.wait("delete", "deployment/summarize", namespace)
        kubectl("delete", "namespace", elsewhere, "--timeout=60s", seconds=70)
        kubectl("create", "namespace", elsewhere)  # the fixture deletes it again

    until(lambda: apply(kubectl, agent("new", namespace)))
    denial(kubectl, agent("new", namespace, schedule={"cron": "0 0 31 2 *"}))


# --- renewed


@dataclass
class Applies:
    """Changes of one agent, one after the other."""

    done: int = 0
    cut: int = 0
    """How often a connection ended under a request: API servers speak HTTP/1.1 to webhooks, where a server
    closes an idle connection without a word."""

    is_over: bool = False
    """One was refused for another reason, which the end of the block raises."""

    def more(self, number: int) -> None:
        """Until so many more are done, or one is refused."""
        wanted = self.done + number
        until(lambda: self.done >= wanted or self.is_over)


@contextmanager
def applying(kubectl: Kubectl, namespace: str) -> Iterator[Applies]:
    """All the time while the block runs. Each has another spec, so that the rules are asked. One that was cut
    is tried once more; whatever else is refused ends the test."""
    found, ended = Applies(), Event()

    def change(number: int) -> None:
        each = agent("busy", namespace, instruction=f"Write {number}.")
        try:
            apply(kubectl, each)
        except RefusedError as error:
            if not CUT.search(str(error)):
                raise
            found.cut += 1
            apply(kubectl, each)
        found.done += 1

    def loop() -> None:
        try:
            for number in count():
                if ended.is_set():
                    return
                change(number)
        finally:
            found.is_over = True

    with ThreadPoolExecutor(1) as pool:
        looping = pool.submit(loop)
        try:
            yield found
        finally:
            ended.set()
            looping.result()


def test_changes_go_on_while_admission_is_rolled_out(kubectl: Kubectl, shop: str) -> None:
    with applying(kubectl, shop) as applies:
        applies.more(5)
        replaced(kubectl, "rollout", "restart", DEPLOYMENT)
        applies.more(10)
    assert applies.cut <= 1


RENEW = """
import asyncio, os, pathlib
from libs import pki
from libs.enrol import Claim, ask
from libs.identity import Identity
from libs.pki import TrustBundle
identity = Identity(pathlib.Path(os.environ["AGENTCTL_TLS_DIR"]))
token = pathlib.Path(os.environ["AGENTCTL_TOKEN_FILE"]).read_text().strip()
roots = TrustBundle.read(pathlib.Path(os.environ["AGENTCTL_TRUST_DIR"])).root
claim = Claim(token, pki.new_request(pki.own_key(identity.key)), component="admission")
made = asyncio.run(ask(os.environ["AGENTCTL_IDENTITY_ADDRESS"], roots, claim))
pki.write_identity(identity, made.bundle, identity.key.read_bytes(), made.chain_pem)
"""
"""What a component does when two thirds of its certificate's life are over, which takes 16 hours."""


def test_changes_go_on_while_root_and_certificate_are_renewed(
    kubectl: Kubectl, shop: str, tmp_path: Path
) -> None:
    before = certificates(roots(kubectl))
    pods = kubectl.get("pods", "-l", ADMISSION_POD, "-n", SYSTEM)
    with applying(kubectl, shop) as applies:
        words = ("annotate", "secret", "agentctl-ca", "-n", SYSTEM, "agentctl.dev/rotate=root")
        kubectl(*words, "agentctl.dev/rotate-overlap=10s")
        until(lambda: len(certificates(roots(kubectl))) == len(before) + 1)
        both = certificates(roots(kubectl))
        [new] = both - before
        until(lambda: all(bundle == both for bundle in bundles(kubectl)))
        root = tmp_path / "new.crt"
        root.write_bytes(x509.load_der_x509_certificate(new).public_bytes(Encoding.PEM))
        assert not is_vouched_for(kubectl, root)

        renewals = 0

        def is_renewed() -> bool:
            nonlocal renewals
            renewals += 1
            kubectl("exec", DEPLOYMENT, "-n", SYSTEM, "--", "python", "-c", RENEW)
            return is_vouched_for(kubectl, root)

        until(is_renewed, 180)  # the operator looks once a minute whether the overlap is over
        applies.more(20)
    assert applies.cut <= renewals
    print(f"{applies.done} changes, {renewals} renewals, {applies.cut} cut")  # noqa: T201
    after = kubectl.get("pods", "-l", ADMISSION_POD, "-n", SYSTEM)
    assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in pods]


def roots(kubectl: Kubectl) -> str:
    """Those of the installation, as PEM."""
    return str(kubectl.get("configmap", "agentctl-trust", "-n", SYSTEM)["data"]["ca.crt"])


def certificates(pem: str) -> set[bytes]:
    """Each as DER."""
    return {each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(pem.encode())}


def bundles(kubectl: Kubectl) -> Iterator[set[bytes]]:
    """Whom API server trusts, for webhooks and for the aggregated API."""
    clients = [
        hook["clientConfig"]
        for kind in ("validating", "mutating")
        for hook in kubectl.get(f"{kind}webhookconfiguration", "agentctl-admission")["webhooks"]
    ]
    clients.append(kubectl.get("apiservice", "v1alpha1.management.agentctl.dev")["spec"])
    return (certificates(b64decode(client["caBundle"]).decode()) for client in clients)


def is_vouched_for(kubectl: Kubectl, root: Path) -> bool:
    """Whether the webhook's certificate is one that the API server takes if it trusts that root alone."""
    context = ssl.create_default_context(cafile=str(root))
    with kubectl.forwarded("service/admission", 443, SYSTEM) as address:
        host, _, port = address.partition(":")
        with create_connection((host, int(port)), 10) as connection:
            try:
                context.wrap_socket(connection, server_hostname=f"admission.{SYSTEM}.svc").close()
            except ssl.SSLCertVerificationError:
                return False
    return True


# --- the API server


LEASE_SECONDS = 15  # the operator's


@pytest.fixture
def node(kubectl: Kubectl) -> Node:
    """The node that the cluster is."""
    place = Place.of(dict(os.environ))
    if place.kubeconfig.resolve() != kubectl.kubeconfig.resolve():
        pytest.skip("only where the API server can be killed: the one-node cluster")
    return Node(place)


def test_all_converges_after_an_outage_of_the_api_server(kubectl: Kubectl, shop: str, node: Node) -> None:
    kubectl.apply(*fleet(shop))
    kubectl.wait("condition=Ready", "agentfleet/summarize", shop)
    node.kill("apiserver")
    time.sleep(LEASE_SECONDS + 5)  # the outage itself: so long that nobody leads any more
    node.up()
    until(lambda: apply(kubectl, agent("new", shop)))
    denial(kubectl, agent("bad", shop, schedule={"cron": "0 0 31 2 *"}))
    for name in ("operator", "admission", "apiserver", "coordination"):
        kubectl.wait("condition=Available", f"deployment/{name}", SYSTEM)
    kubectl("delete", "pod", "-l", "agentctl.dev/agent=summarize", "-n", shop, "--now")
    kubectl("scale", "agentfleet/summarize", "--replicas=3", "-n", shop)
    kubectl.wait("jsonpath={.status.readyReplicas}=3", "agentfleet/summarize", shop)
    until(lambda: kubectl("get", "apiservice", "v1alpha1.management.agentctl.dev"))
    kubectl(
        "wait", "--for=condition=Available", "apiservice/v1alpha1.management.agentctl.dev", "--timeout=60s"
    )
    kubectl("get", "--raw", f"/apis/management.agentctl.dev/v1alpha1/namespaces/{shop}/agents/new/status")
    kubectl("delete", "agentfleet/summarize", "-n", shop, "--timeout=60s")
    kubectl.wait("delete", "deployment/summarize", shop)
