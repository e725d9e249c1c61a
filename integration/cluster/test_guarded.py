"""The overlay dev behind its NetworkPolicies: what should flow flows, and the network drops the rest.

The cluster's network has to enforce policies.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctl.coordination.v1 import work_pb2
from libs.work import Producer

from .fleets import DOCUMENTS, fleet
from .kubectl import SYSTEM, Kubectl
from .person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("guarded")]

COORDINATION, OPERATOR, IDENTITY = "coordination:7410", "operator:7411", "operator:7412"
POSTGRES = "postgres:5432"
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


async def test_a_fleet_works_behind_the_policies(kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
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


def test_a_stranger_reaches_nothing_of_the_control_plane(kubectl: Kubectl, namespace: str) -> None:
    closed = dict.fromkeys((COORDINATION, OPERATOR, IDENTITY, POSTGRES), False)
    assert wrong_flows(kubectl, namespace, {}, closed) == []


def test_a_client_reaches_the_mesh_and_no_database(kubectl: Kubectl, namespace: str) -> None:
    flows = {COORDINATION: True, OPERATOR: True, IDENTITY: True, POSTGRES: False}
    assert wrong_flows(kubectl, namespace, CLIENT, flows) == []


def test_an_agent_reaches_work_and_its_certificate_only(kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-n", namespace, "-k", "k8s/tenant/network-policies")
    flows = {COORDINATION: True, IDENTITY: True, OPERATOR: False, POSTGRES: False}
    assert wrong_flows(kubectl, namespace, AGENT, flows) == []


def test_in_the_system_namespace_a_label_is_needed_too(kubectl: Kubectl) -> None:
    closed = dict.fromkeys((COORDINATION, OPERATOR, POSTGRES), False)
    try:
        assert wrong_flows(kubectl, SYSTEM, {}, closed) == []
    finally:
        kubectl("delete", "pod", "probe", "-n", SYSTEM, "--now", "--ignore-not-found")
