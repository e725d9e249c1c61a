"""The overlay single on a bare cluster: from `kubectl apply` to work that is done, and back to nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctl.coordination.v1 import work_pb2
from libs.errors import DeniedError, UnauthenticatedError
from libs.work import Producer

from .fleets import DOCUMENTS, fleet
from .kubectl import SYSTEM, Kubectl, RefusedError
from .person import Person

pytestmark = pytest.mark.cluster


def revisions(kubectl: Kubectl) -> dict[str, str]:
    """What everything of the overlay is like, as far as people say it."""
    found = json.loads(kubectl("get", "-k", "k8s/overlays/single", "-o", "json"))["items"]
    return {
        f"{thing['kind']}/{thing['metadata']['name']}": str(
            thing["metadata"].get("generation") or thing["metadata"]["resourceVersion"]
        )
        for thing in found
    }


@pytest.mark.usefixtures("single")
def test_applying_it_again_changes_nothing(kubectl: Kubectl) -> None:
    before = revisions(kubectl)
    said = kubectl("apply", "-k", "k8s/overlays/single", seconds=120).splitlines()
    assert [line for line in said if not line.endswith(" unchanged")] == []
    assert revisions(kubectl) == before


@pytest.mark.usefixtures("single")
async def test_a_fleet_works_through_its_queue(kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
    kubectl.apply(*fleet(namespace))
    kubectl.wait("condition=Ready", "agentfleet/summarize", namespace)
    person = Person(kubectl, namespace, "someone")
    person.bind("agentctl-user")
    async with person.client(tmp_path) as client:
        producer = Producer(client, f"{namespace}/summarize")
        submitted = [await producer.submit(path.read_bytes()) for path in DOCUMENTS]
        items = [await producer.result(each.id) for each in submitted]
    assert [item.state for item in items] == [work_pb2.WORK_STATE_SUCCEEDED] * len(DOCUMENTS)
    for item, document in zip(items, DOCUMENTS, strict=True):
        assert 0 < len(item.result) < len(document.read_bytes())


@pytest.mark.usefixtures("single")
async def test_a_killed_agent_is_replaced_and_its_work_done(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    kubectl.apply(*fleet(namespace))
    kubectl.wait("condition=Ready", "agentfleet/summarize", namespace)
    person = Person(kubectl, namespace, "someone")
    person.bind("agentctl-user")
    async with person.client(tmp_path) as client:
        producer = Producer(client, f"{namespace}/summarize")
        submitted = [await producer.submit(path.read_bytes()) for path in DOCUMENTS]
        kubectl("delete", "pod", "--all", "-n", namespace, "--now")
        items = [await producer.result(each.id) for each in submitted]
    assert {item.state for item in items} == {work_pb2.WORK_STATE_SUCCEEDED}


@pytest.mark.usefixtures("single")
async def test_who_may_do_nothing_gets_no_certificate(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    person = Person(kubectl, namespace, "nobody")
    with pytest.raises(DeniedError):
        await person.certified(tmp_path / "user")
    person.bind("agentctl-user")
    with pytest.raises(DeniedError):
        await person.certified(tmp_path / "administrator", administrator=True)
    with pytest.raises(UnauthenticatedError):
        await person.certified(tmp_path / "audience", token=person.token("https://elsewhere.example"))
    forged = person.token()[:-8] + "AAAAAAAA"
    with pytest.raises(UnauthenticatedError):
        await person.certified(tmp_path / "forged", token=forged)
    await person.certified(tmp_path / "user-after-all")


@pytest.mark.usefixtures("single")
def test_only_who_may_edit_the_namespace_declares_agents_there(kubectl: Kubectl, namespace: str) -> None:
    person = Person(kubectl, namespace, "someone")
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": fleet(namespace)})
    impersonated = ("apply", "--as", f"system:serviceaccount:{namespace}:someone", "-f", "-")
    with pytest.raises(RefusedError, match="forbidden"):
        kubectl(*impersonated, stdin=manifest)
    person.bind("view")
    kubectl("get", "agentfleets", "-n", namespace, *impersonated[1:3])
    with pytest.raises(RefusedError, match="forbidden"):
        kubectl(*impersonated, stdin=manifest)
    person.bind("edit")
    kubectl(*impersonated, stdin=manifest)


@pytest.mark.usefixtures("single")
def test_no_agent_lives_with_the_control_plane(kubectl: Kubectl) -> None:
    with pytest.raises(RefusedError, match=f"agents cannot live in {SYSTEM}"):
        kubectl.apply(*fleet(SYSTEM)[-1:])
