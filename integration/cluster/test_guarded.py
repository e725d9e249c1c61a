"""The overlay dev behind its NetworkPolicies: what should flow flows, and the network drops the rest.

The cluster's network has to enforce policies.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctl.coordination.v1 import work_pb2
from libs.work import Producer

from .crews import API
from .fleets import DOCUMENTS, fleet
from .kubectl import SYSTEM, Kubectl, RefusedError
from .person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("guarded")]

COORDINATION, OPERATOR, IDENTITY = "coordination:7410", "operator:7411", "operator:7412"
POSTGRES = "postgres:5432"
MANAGEMENT, REVIEWS = "apiserver:7415", "admission:7416"
EDGES = ("apiserver:443", "admission:443")
"""Open to all: where an API server's calls come from no policy can say, and they judge each caller."""
API_SERVICE = "apiservice/v1alpha1.management.agentctl.dev"
AGENT = {"app.kubernetes.io/name": "agent", "app.kubernetes.io/part-of": "agentctl"}
CLIENT = {"agentctl.dev/client": "true"}

# A network takes a moment to know a new pod: each target is tried until it is as expected, or time is up.
PROBE = """
import json, socket, sys, time
def connects(target):
    host, _, port = target.partition(":")
    try:
        socket.create_connection((f"{host}.agentctl-system.svc", int(port)), 2).close()
    except OSError:
        return False
    return True
wrong = []
for target, expected in json.loads(sys.argv[1]).items():
    deadline = time.monotonic() + 20
    while connects(target) is not expected:
        if time.monotonic() > deadline:
            wrong.append(target)
            break
        time.sleep(0.5)
print(json.dumps(wrong))
"""


def wrong_flows(
    kubectl: Kubectl, namespace: str, labels: dict[str, str], flows: dict[str, bool]
) -> list[str]:
    """Of a pod with these labels: the targets that it reaches and should not, or does not and should."""
    locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "probe",
        "image": "agentctl:dev",
        "command": ["python", "-c", PROBE, json.dumps(flows)],
        "securityContext": locked,
    }
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "namespace": namespace, "labels": labels},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": security,
                "containers": [container],
            },
        }
    )
    kubectl.wait("jsonpath={.status.phase}=Succeeded", "pod/probe", namespace, 150)
    wrong: list[str] = json.loads(kubectl("logs", "probe", "-n", namespace))
    return wrong


async def test_a_fleet_works_and_is_steered_behind_the_policies(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    kubectl("apply", "-n", namespace, "-k", "k8s/tenant/network-policies")
    kubectl.apply(*fleet(namespace))
    kubectl.wait("condition=Ready", "agentfleet/summarize", namespace)
    person = Person(kubectl, namespace, "someone")
    person.bind("agentctl-user")
    async with person.client(tmp_path) as client:
        producer = Producer(client, f"{namespace}/summarize")
        submitted = [await producer.submit(path.read_bytes()) for path in DOCUMENTS]
        items = [await producer.result(each.id) for each in submitted]
    assert {item.state for item in items} == {work_pb2.WORK_STATE_SUCCEEDED}
    await_registered(kubectl)
    steered(kubectl, namespace)


def await_registered(kubectl: Kubectl) -> None:
    """Returns when the API server passes verbs on."""
    kubectl.wait("create", API_SERVICE, SYSTEM)
    kubectl.wait("condition=Available", API_SERVICE, SYSTEM)


def steered(kubectl: Kubectl, namespace: str) -> None:
    """The fleet is held, and goes on."""
    path = f"{API}/namespaces/{namespace}/agentfleets/summarize"
    for verb, paused in (("pause", True), ("resume", False)):
        assert kubectl.post(f"{path}/{verb}", until="in-effect")["status"] == "Success"
        pods = json.loads(kubectl("get", "--raw", f"{path}/status"))["pods"]
        assert {each["status"]["paused"] for each in pods} == {paused}


def test_namespaces_are_deleted_while_the_apiserver_is_down_and_verbs_come_back_with_it(
    kubectl: Kubectl, namespace: str
) -> None:
    """The worst moment: the API is registered, and nobody answers."""
    kubectl.apply(*fleet(namespace))
    kubectl.wait("condition=Ready", "agentfleet/summarize", namespace)
    await_registered(kubectl)
    kubectl("create", "namespace", "doomed")
    try:
        kubectl("scale", "deployment/apiserver", "--replicas=0", "-n", SYSTEM)
        kubectl.wait("condition=Available=False", API_SERVICE, SYSTEM)
        kubectl("delete", "namespace", "doomed", "--timeout=120s", seconds=130)
        assert kubectl("get", API_SERVICE, "--ignore-not-found") == ""
        assert kubectl.done("api-resources", "-v=1").stderr == ""
        with pytest.raises(RefusedError, match="NotFound"):
            kubectl.post(f"{API}/namespaces/{namespace}/agentfleets/summarize/pause")
    finally:
        kubectl("scale", "deployment/apiserver", "--replicas=1", "-n", SYSTEM)
    await_registered(kubectl)
    steered(kubectl, namespace)


def test_a_stranger_reaches_nothing_but_the_edges(kubectl: Kubectl, namespace: str) -> None:
    closed = dict.fromkeys((COORDINATION, OPERATOR, IDENTITY, POSTGRES, MANAGEMENT, REVIEWS), False)
    assert wrong_flows(kubectl, namespace, {}, closed | dict.fromkeys(EDGES, True)) == []


def test_a_client_reaches_the_mesh_and_no_database(kubectl: Kubectl, namespace: str) -> None:
    open_ = dict.fromkeys((COORDINATION, OPERATOR, IDENTITY, MANAGEMENT, REVIEWS), True)
    assert wrong_flows(kubectl, namespace, CLIENT, {**open_, POSTGRES: False}) == []


def test_an_agent_reaches_work_and_its_certificate_only(kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-n", namespace, "-k", "k8s/tenant/network-policies")
    closed = dict.fromkeys((OPERATOR, POSTGRES, MANAGEMENT, REVIEWS), False)
    assert wrong_flows(kubectl, namespace, AGENT, {COORDINATION: True, IDENTITY: True, **closed}) == []


def test_in_the_system_namespace_a_label_is_needed_too(kubectl: Kubectl) -> None:
    closed = dict.fromkeys((COORDINATION, OPERATOR, POSTGRES, MANAGEMENT, REVIEWS), False)
    try:
        assert wrong_flows(kubectl, SYSTEM, {}, closed) == []
    finally:
        kubectl("delete", "pod", "probe", "-n", SYSTEM, "--now", "--ignore-not-found")
