"""A new intermediate for agents, while a fleet is at work: nobody notices. That the old one is refused in the
end is a day away, and tested with a clock in libs/tests/test_pki.py and services/operator/identity."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from agentctl.coordination.v1 import work_pb2
from libs.pki.certificates import new_key
from libs.work import Client, Producer

from .door import Door, door, token_of
from .fleets import DOCUMENTS, fleet
from .kubectl import SYSTEM, Kubectl
from .person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("single")]

LABEL = "agentctl.dev/agent=summarize"


async def test_agents_get_certificates_of_a_new_intermediate_and_no_item_fails(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    kubectl.apply(*fleet(namespace))
    kubectl.wait("condition=Ready", "agentfleet/summarize", namespace)
    person = Person(kubectl, namespace, "someone")
    person.bind("agentctl-user")
    states: list[work_pb2.WorkState.ValueType] = []
    with door(kubectl) as listener:
        async with person.client(tmp_path) as client, anyio.create_task_group() as group:
            group.start_soon(working, client, f"{namespace}/summarize", states)
            token = token_of(kubectl, kubectl.get("pods", "-n", namespace, "-l", LABEL)[0])
            issuer = partial(issued_by, listener, token, new_key())
            before = await issuer()
            assert pins(kubectl, namespace) == {before}
            words = ("annotate", "secret", "agentctl-ca", "-n", SYSTEM, "agentctl.dev/rotate=workloads")
            kubectl(*words, "agentctl.dev/rotate-overlap=10s")
            after = before
            with anyio.fail_after(150):  # the operator looks once a minute
                while after == before:
                    await more(states, len(DOCUMENTS))
                    after = await issuer()
            assert pins(kubectl, namespace) == {before, after}
            kubectl("delete", "pod", "-l", LABEL, "-n", namespace, "--now")  # the next begin anew
            with anyio.fail_after(90):
                await more(states, 4 * len(DOCUMENTS))
            group.cancel_scope.cancel()
    assert set(states) == {work_pb2.WORK_STATE_SUCCEEDED}
    assert "agentctl.dev/rotate" not in kubectl.get("secret", "agentctl-ca", "-n", SYSTEM)["metadata"].get(
        "annotations", {}
    )


async def working(client: Client, queue: str, states: list[work_pb2.WorkState.ValueType]) -> None:
    """Work without end, and how each item ended."""
    producer = Producer(client, queue)
    while True:
        submitted = [await producer.submit(path.read_bytes()) for path in DOCUMENTS]
        states.extend([(await producer.result(each.id)).state for each in submitted])


async def more(states: list[work_pb2.WorkState.ValueType], count: int) -> None:
    """Until so many more items have ended."""
    wanted = len(states) + count
    while len(states) < wanted:  # noqa: ASYNC110  (nothing tells of a list that grows)
        await anyio.sleep(0.2)


async def issued_by(listener: Door, token: str, key: Any) -> str:
    """Who signs the certificate that an agent gets now: its fingerprint."""
    return fingerprints((await listener.ask(token, key)).chain_pem)[1]


def pins(kubectl: Kubectl, namespace: str) -> set[str]:
    """The intermediates from which agents are believed, as published."""
    trust = kubectl.get("configmap", "agentctl-trust", "-n", namespace)["data"]
    return set(fingerprints(trust["workloads.crt"].encode()))


def fingerprints(pem: bytes) -> list[str]:
    """Of all certificates in it."""
    found = x509.load_pem_x509_certificates(pem)
    return [each.fingerprint(hashes.SHA256()).hex() for each in found]
