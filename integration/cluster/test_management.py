"""The verbs on a claim fleet at work, with stock kubectl and otherwise; each is told by what it does.

The work is held at gates of the double. Requests of kubectl come through a real API server's aggregation.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection
from typing import Any

import pytest

from agentctl.coordination.v1 import work_pb2
from libs.errors import DeniedError
from libs.identity import Identity

from .certificates import front_proxy
from .crews import API, NAME, Crew, Program, Stub, agentctl, crew, entered
from .killing import processes
from .kubectl import SYSTEM, Kubectl, RefusedError
from .person import Person
from .place import Place
from .world import World, is_ready, restarts, script, work

pytestmark = pytest.mark.cluster

LEASED, SUCCEEDED, DEAD = (
    work_pb2.WORK_STATE_LEASED, work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD
)  # fmt: skip


@pytest.fixture(scope="module")
def fleet(around: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """The fleet, once for all tests, when the API server knows of the verbs."""
    around.kubectl("wait", "--for=create", "apiservice/v1alpha1.management.agentctl.dev", "--timeout=60s")
    around.kubectl(
        "wait", "--for=condition=Available", "apiservice/v1alpha1.management.agentctl.dev", "--timeout=60s"
    )
    with crew(around, tmp_path_factory.mktemp("producer")) as made:
        yield made


@pytest.fixture(name="crew")
def idle(fleet: Crew) -> Crew:
    """The same, idle and ready."""
    fleet.anew()
    return fleet


def done(answer: Any) -> str:
    """Its message, of a Status that says that all came so far."""
    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Success", 200), answer
    return str(answer["message"])


def more(crew: Crew, count: int) -> list[str]:
    """Items that nobody holds at a gate."""
    return crew.submit(*(script(work(f"more-{n}"), {"say": "done"}) for n in range(count)))


# --- with kubectl


def test_a_drained_fleet_finishes_what_it_has_begun_and_exits_with_0(crew: Crew) -> None:
    kubectl, names = crew.world.kubectl, ("finish-1", "finish-2")
    ids = crew.begin(*names)
    pods = crew.pods().keys()
    with ThreadPoolExecutor() as threads:
        drain = threads.submit(kubectl.post, f"{crew.api}/drain", until="finished", deadline="50s")
        crew.world.until(lambda: all(told["draining"] for told in crew.told().values()))
        assert [item.state for item in crew.items(ids)] == [LEASED] * 2
        assert not drain.done()
        for name in names:
            crew.world.open(name)
        assert "2 of 2 pods" in done(drain.result())
    items = crew.settled(*ids)
    assert [(item.state, item.attempt, item.result.decode()) for item in items] == [
        (SUCCEEDED, 1, f"{name} done") for name in names
    ]
    assert [len(crew.world.calls(name)) for name in names] == [1, 1]
    assert [crew.exit_of(pod) for pod in pods] == [(1, 0)] * 2


def test_what_a_drain_has_no_time_for_is_handed_back_uncounted(crew: Crew) -> None:
    [id] = crew.begin("handed-back")
    pod = crew.holder(id)
    other = crew.other(pod)
    done(crew.world.kubectl.post(f"{crew.api}/drain", pod=pod, until="finished", grace="1s"))
    crew.world.until(lambda: len(crew.world.calls("handed-back")) == 2)
    item = crew.item(id)
    assert (item.state, item.attempt, list(item.failures)) == (LEASED, 1, [])
    crew.world.open("handed-back")
    [item] = crew.settled(id)
    assert (item.state, item.attempt) == (SUCCEEDED, 1)
    assert crew.exit_of(pod) == (1, 0)
    assert restarts(crew.pods()[other]) == 0


def test_a_lame_duck_is_not_ready_finishes_and_claims_nothing_until_it_is_undone(crew: Crew) -> None:
    kubectl = crew.world.kubectl
    [first] = crew.begin("of-the-duck")
    duck = crew.holder(first)
    other = crew.other(duck)
    done(kubectl.post(f"{crew.api}/lame-duck", pod=duck, until="in-effect"))
    crew.await_ready(duck, False)
    assert is_ready(crew.pods()[other])
    crew.world.open("of-the-duck")
    [item] = crew.settled(first)
    assert (item.state, crew.holder(first)) == (SUCCEEDED, duck)
    later = more(crew, 6)  # the duck has nothing to do, and leaves all of it
    crew.settled(*later)
    assert {crew.holder(id) for id in later} == {other}
    done(kubectl.post(f"{crew.api}/lame-duck", pod=duck, until="in-effect", undo=True))
    crew.await_ready(duck, True)
    assert {crew.holder(id) for id in crew.begin("after-1", "after-2")} == {duck, other}


def test_a_paused_agent_holds_its_run_at_its_turn_and_claims_nothing_until_it_is_resumed(crew: Crew) -> None:
    kubectl = crew.world.kubectl
    [first] = crew.begin("is-held")
    held = crew.holder(first)
    other = crew.other(held)
    assert "1 of 1 pod" in done(kubectl.post(f"{crew.api}/pause", pod=held))
    crew.world.open("is-held")
    done(kubectl.post(f"{crew.api}/pause", pod=held, until="in-effect"))
    asked = crew.world.seen()["asked"]
    later = more(crew, 4)
    crew.settled(*later)
    assert {crew.holder(id) for id in later} == {other}
    assert crew.world.seen()["asked"] == asked + 2 * len(later)  # the run that is held asks nothing
    told = crew.told()
    assert [run["state"] for run in told[held]["runs"]] == ["RUN_STATE_PAUSED"]
    assert (told[held]["paused"], told[other]["paused"], crew.item(first).state) == (True, False, LEASED)
    done(kubectl.post(f"{crew.api}/resume", until="in-effect"))  # also of whom nobody has paused
    [item] = crew.settled(first)
    assert (item.state, item.attempt, crew.holder(first)) == (SUCCEEDED, 1, held)
    assert len(crew.world.calls("is-held")) == 1
    assert {crew.holder(id) for id in crew.begin("again-1", "again-2")} == {held, other}


def test_of_all_runs_only_the_one_that_is_named_is_cancelled(crew: Crew) -> None:
    one, two = crew.begin("cancelled", "spared")
    order = {"run": one, "until": "in-effect", "reason": "sold out"}
    assert "1 of 1 pod" in done(crew.world.kubectl.post(f"{crew.api}/cancel", **order))
    [item] = crew.settled(one)
    assert (item.state, "sold out" in item.failures[-1].error) == (DEAD, True)
    assert (crew.item(two).state, crew.world.seen()["waiting"]["spared"]) == (LEASED, 1)
    crew.world.open("spared")
    [item] = crew.settled(two)
    assert (item.state, item.attempt) == (SUCCEEDED, 1)
    with pytest.raises(RefusedError, match="NotFound"):
        crew.world.kubectl.post(f"{crew.api}/cancel", run="nobody-knows-it")


def test_a_dry_run_touches_nobody(crew: Crew) -> None:
    [id] = crew.begin("dry")
    for verb in ("drain", "lame-duck", "cancel", "pause", "resume"):
        said = done(crew.world.kubectl.post(f"{crew.api}/{verb}?dryRun=All"))
        assert "2 of 2 pods would be asked" in said
    for told in crew.told().values():
        assert (told["ready"], told["draining"], told["paused"], told["lameDuck"]) == (
            True,
            False,
            False,
            False,
        )
    assert (crew.item(id).state, crew.world.seen()["waiting"]["dry"]) == (LEASED, 1)


def test_a_pod_that_hangs_costs_the_others_nothing_and_is_named(crew: Crew) -> None:
    hanging, other = sorted(crew.pods())
    found = processes(crew.pods()[hanging], "agent")
    if not found:
        pytest.skip("the node's processes are not on this machine")
    os.kill(min(found), signal.SIGSTOP)
    try:
        answer = crew.world.kubectl.post(f"{crew.api}/pause", until="in-effect", deadline="3s")
        assert (answer["status"], answer["code"], answer["reason"]) == ("Failure", 207, "PartialFailure")
        [cause] = answer["details"]["causes"]
        assert cause["field"] == f"pods[{hanging}]"
        # Of a handshake that is not answered gRPC says no more than that it failed.
        assert cause["reason"] in ("DEADLINE", "UNAVAILABLE"), cause
        assert "1 of 2 pods" in answer["message"]
        assert crew.told()[other]["paused"]
    finally:
        os.kill(min(found), signal.SIGCONT)
    done(crew.world.kubectl.post(f"{crew.api}/resume", until="in-effect"))


def test_a_fleet_of_which_no_pod_runs_is_an_error_that_says_so(around: World) -> None:
    kubectl = around.kubectl
    nowhere = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}}
    kubectl.apply(around.fleet("pending", 1, podTemplate=nowhere))
    around.until(lambda: around.pods("pending"))
    path = f"{API}/namespaces/{around.namespace}/agentfleets"
    with pytest.raises(RefusedError, match="pending has no pod that runs; 1 pending, 1 in all"):
        kubectl.post(f"{path}/pending/pause")
    with pytest.raises(RefusedError, match="NotFound"):
        kubectl.post(f"{path}/unknown/pause")
    kubectl("delete", "agentfleet", "pending", "-n", around.namespace)


def test_a_right_that_is_missing_is_named_and_the_role_gives_it(crew: Crew, tmp_path: Path) -> None:
    namespace = crew.world.namespace
    person = Person(crew.world.kubectl, namespace, "helper")
    theirs = person.kubectl(tmp_path)
    missing = (
        rf'User "system:serviceaccount:{namespace}:helper" cannot create resource "agentfleets/pause" '
        rf'in API group "management.agentctl.dev" in the namespace "{namespace}"'
    )
    with pytest.raises(RefusedError, match=missing):
        theirs.post(f"{crew.api}/pause")
    with pytest.raises(RefusedError, match='cannot get resource "agentfleets/status"'):
        theirs("get", "--raw", f"{crew.api}/status")
    person.bind("view")
    crew.world.until(lambda: succeeds(lambda: theirs("get", "--raw", f"{crew.api}/status")))
    with pytest.raises(RefusedError, match=missing):
        theirs.post(f"{crew.api}/pause")
    assert not any(told["paused"] for told in crew.told().values())
    person.bind("agentctl-operate")
    reason = f"by {namespace}"
    crew.world.until(lambda: succeeds(lambda: theirs.post(f"{crew.api}/pause", reason=reason)))
    assert all(told["paused"] for told in crew.told().values())
    lines = crew.world.kubectl("logs", "deployment/plane", "-c", "plane", "-n", SYSTEM).splitlines()
    said = [json.loads(line) for line in lines if reason in line]
    [line] = [each for each in said if each["logger"] == "agentctl.audit"]
    assert {key: line[key] for key in ("event", "who", "target", "decision", "outcome")} == {
        "event": "management.pause",
        "who": f"system:serviceaccount:{namespace}:helper",
        "target": f"{namespace}/agentfleets/{NAME}",
        "decision": "allowed",
        "outcome": "done: 2 of 2 pods",
    }


def succeeds(call: Callable[[], Any]) -> bool:
    """Whether it is not forbidden: what was bound is known a moment later."""
    try:
        call()
    except RefusedError as error:
        if "Forbidden" not in str(error):
            raise
        return False
    return True


# --- otherwise


@dataclass(frozen=True)
class Foreman:
    """A ServiceAccount that may operate the namespace, and its certificate by `agentctl login`."""

    person: Person
    folder: Path

    @property
    def identity(self) -> Identity:
        """What it shows."""
        return Identity(self.folder)


@pytest.fixture(scope="module")
def foreman(fleet: Crew, tmp_path_factory: pytest.TempPathFactory) -> Foreman:
    """One for all tests."""
    return appointed(
        fleet, "foreman", tmp_path_factory.mktemp("foreman"), "agentctl-user", "agentctl-operate"
    )


def appointed(crew: Crew, name: str, folder: Path, *roles: str) -> Foreman:
    """Somebody with these roles in the namespace, by one of which there is a certificate."""
    person = Person(crew.world.kubectl, crew.world.namespace, name)
    for role in roles:
        person.bind(role)
    entered(crew.world.kubectl, f"{crew.world.namespace}/{name}", folder)
    return Foreman(person, folder)


def test_a_certificate_alone_steers_nobody(crew: Crew, tmp_path: Path) -> None:
    namespace, missing = crew.world.namespace, 'cannot create resource "agentfleets/pause" in API group'
    walker_on = appointed(crew, "walker-on", tmp_path, "agentctl-user")
    with crew.world.kubectl.forwarded("service/apiserver", 7415, SYSTEM) as address:
        with pytest.raises(DeniedError, match=missing):
            Stub(walker_on.identity, address, namespace)("pause")
        words = ("pause", f"fleet/{NAME}", "-n", namespace, "--address", address)
        refused = agentctl(tmp_path, *words, "--tls-dir", str(tmp_path))
        assert (refused.returncode, missing in refused.stderr) == (4, True), refused
    kubeconfig = str(walker_on.person.kubectl(tmp_path).kubeconfig)
    refused = agentctl(tmp_path, *words[:4], "--kubeconfig", kubeconfig)
    assert (refused.returncode, missing in refused.stderr) == (4, True), refused
    assert not any(told["paused"] for told in crew.told().values())


@pytest.mark.parametrize("way", ["stub", "address", "kubeconfig"])
def test_the_same_verbs_by_grpc_and_by_the_cli(
    crew: Crew, foreman: Foreman, way: str, tmp_path: Path
) -> None:
    with opened(crew, foreman, way, tmp_path) as ask:
        [first] = crew.begin(f"{way}-1")
        pod = crew.holder(first)
        assert ask("lame-duck", pod=pod, until="in-effect")
        crew.await_ready(pod, False)
        assert ask("lame-duck", pod=pod, until="in-effect", undo=True)
        crew.await_ready(pod, True)

        assert ask("pause", pod=pod)
        crew.world.open(f"{way}-1")
        assert ask("pause", pod=pod, until="in-effect")
        assert [run["state"] for run in crew.told()[pod]["runs"]] == ["RUN_STATE_PAUSED"]
        assert ask("resume", until="in-effect")
        [item] = crew.settled(first)
        assert (item.state, item.attempt, crew.holder(first)) == (SUCCEEDED, 1, pod)

        [second] = crew.begin(f"{way}-2")
        assert ask("cancel", run_id=second, until="in-effect")
        [item] = crew.settled(second)
        assert item.state == DEAD

        assert ask("drain", pod=pod, until="finished")
        assert crew.exit_of(pod) == (1, 0)
        assert restarts(crew.pods()[crew.other(pod)]) == 0


@contextmanager
def opened(crew: Crew, foreman: Foreman, way: str, folder: Path) -> Iterator[Callable[..., bool]]:
    """A way to steer the crew as the foreman."""
    namespace = crew.world.namespace
    if way == "kubeconfig":
        yield Program(
            ("--kubeconfig", str(foreman.person.kubectl(folder).kubeconfig)), namespace, folder / "state"
        )
        return
    with crew.world.kubectl.forwarded("service/apiserver", 7415, SYSTEM) as address:
        if way == "stub":
            yield Stub(foreman.identity, address, namespace)
        else:
            options = ("--address", address, "--tls-dir", str(foreman.folder))
            yield Program(options, namespace, folder / "state")


# --- straight to the apiserver


@dataclass(frozen=True)
class Straight:
    """The HTTPS port of the apiserver, without the API server in between."""

    address: str
    roots: str
    path: str

    def post(self, headers: dict[str, str], shown: Path | None = None) -> tuple[int, str]:
        """The code and the message; `shown` is the stem of a certificate."""
        context = ssl.create_default_context(cadata=self.roots)
        if shown:
            context.load_cert_chain(shown.with_suffix(".crt"), shown.with_suffix(".key"))
        host, _, port = self.address.rpartition(":")
        name = f"apiserver.{SYSTEM}.svc"
        connection = HTTPConnection(name, timeout=30)
        plain = create_connection((host, int(port)), 30)
        with context.wrap_socket(plain, server_hostname=name) as connection.sock:
            connection.request("POST", self.path, headers=headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["message"]


@pytest.fixture(scope="module")
def straight(fleet: Crew) -> Iterator[Straight]:
    """Open for all tests."""
    kubectl = fleet.world.kubectl
    roots = kubectl.get("configmap", "agentctl-trust", "-n", SYSTEM)["data"]["ca.crt"]
    with kubectl.forwarded("service/apiserver", 443, SYSTEM) as address:
        yield Straight(address, roots, f"{fleet.api}/pause")


FORGED = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}


def test_headers_that_name_somebody_are_not_believed_without_a_certificate(
    crew: Crew, straight: Straight, foreman: Foreman
) -> None:
    refusal = (401, "headers name somebody, but there is no front proxy's certificate")
    assert straight.post(FORGED) == refusal
    assert straight.post(FORGED | {"Authorization": f"Bearer {foreman.person.token('')}"}) == refusal
    assert not any(told["paused"] for told in crew.told().values())


def test_nor_with_one_of_the_front_proxys_authority_and_another_name(
    crew: Crew, straight: Straight, tmp_path: Path
) -> None:
    pki = Place.of(dict(os.environ)).pki
    if not (pki / "front-proxy-ca.key").exists():
        pytest.skip("only where the front proxy's authority is at hand: the one-node cluster")
    front_proxy(pki, "somebody-else", tmp_path / "wrong")
    code, message = straight.post(FORGED, tmp_path / "wrong")
    assert (code, "['somebody-else'] is not that of an allowed front proxy" in message) == (401, True)
    assert not any(told["paused"] for told in crew.told().values())
    front_proxy(pki, "front-proxy-client", tmp_path / "right")  # so the name was all that was wrong
    assert straight.post(FORGED, tmp_path / "right")[0] == 200
    assert all(told["paused"] for told in crew.told().values())


def test_a_token_of_the_cluster_is_enough_without_the_api_server(
    crew: Crew, straight: Straight, foreman: Foreman
) -> None:
    assert straight.post({})[0] == 401
    assert straight.post({"Authorization": "Bearer nonsense"})[0] == 401
    other_audience = {"Authorization": f"Bearer {foreman.person.token()}"}
    assert straight.post(other_audience)[0] == 401
    nobody = Person(crew.world.kubectl, crew.world.namespace, "stranger")
    code, message = straight.post({"Authorization": f"Bearer {nobody.token('')}"})
    assert (code, 'cannot create resource "agentfleets/pause" in API group' in message) == (403, True)
    assert not any(told["paused"] for told in crew.told().values())
    token = {"Authorization": f"Bearer {foreman.person.token('')}"}
    assert straight.post(token)[0] == 200
    assert all(told["paused"] for told in crew.told().values())


# --- what kubectl makes of it


def test_kubectl_learns_of_the_api_in_two_requests_and_without_a_warning(fleet: Crew, tmp_path: Path) -> None:
    kubectl: Kubectl = fleet.world.kubectl
    discovery = kubectl.done("api-resources", "--cache-dir", str(tmp_path / "first"), "-v=6").stderr
    assert re.findall(r"https://[^/\s]+(/[^?\s]*)", discovery) == ["/api", "/apis"]
    fresh = ("--cache-dir", str(tmp_path / "second"), "-v=1")
    listed = kubectl.done("api-resources", "--no-headers", *fresh)
    assert [line.split()[-3:-1] for line in listed.stdout.splitlines() if line.startswith("agents ")] == [
        ["agentctl.dev/v1alpha1", "true"]
    ]
    explained = kubectl.done("explain", "agents.spec", *fresh)
    assert "agentctl.dev" in explained.stdout
    got = kubectl.done("get", "agents", "-n", fleet.world.namespace, "--ignore-not-found", *fresh)
    for said in (listed, explained, got, kubectl.done("version", *fresh)):
        lines = [line for line in said.stderr.splitlines() if "version skew" not in line]  # of kubectl itself
        assert lines == [], said
    asked = kubectl.done("get", "agents", "-n", fleet.world.namespace, "-v=6").stderr
    assert f"/apis/agentctl.dev/v1alpha1/namespaces/{fleet.world.namespace}/agents" in asked
    verbs = json.loads(kubectl("get", "--raw", API))["resources"]
    assert {"agents/drain", "agentfleets/lame-duck", "agents/status"} <= {each["name"] for each in verbs}
