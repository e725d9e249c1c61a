"""What a token, a pod, a certificate and a person are refused, on the overlay single."""

from __future__ import annotations

import json
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from agentctl.coordination.v1 import coordination_service_pb2 as work_pb
from agentctl.coordination.v1 import work_pb2
from agentctl.coordination.v1.coordination_service_pb2_grpc import CoordinationServiceStub
from agentctl.operator.v1 import operator_service_pb2 as operator_pb
from agentctl.operator.v1.operator_service_pb2_grpc import OperatorServiceStub
from libs import pki
from libs.cluster import Object
from libs.cluster.kinds import REPLICA_SET
from libs.errors import DeniedError, NotFoundError, UnauthenticatedError
from libs.identity import Identity
from libs.mesh import COORDINATION, OPERATOR
from libs.pki.certificates import new_key
from libs.rpc.client import dial
from libs.work import Producer

from . import foreign
from .door import Door, door, token_of
from .kubectl import SYSTEM, Kubectl, RefusedError
from .person import Person
from .place import Place
from .watching import Watching, watching

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("single")]


GUARD = "k8s/base/crds/guard"


@pytest.fixture(scope="module", autouse=True)
def unguarded(kubectl: Kubectl, single: None) -> Iterator[None]:
    """Without the policy that refuses forged pods at once: identity does not count on it."""
    kubectl("delete", "-k", GUARD)
    said = ("--labels=agentctl.dev/agent=fake", "--image=agentctl:dev", "--dry-run=server")
    deadline = time.monotonic() + 60
    while True:  # until every API server has heard of it
        try:
            kubectl("run", "fake", "-n", "default", *said)
            break
        except RefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    yield
    kubectl("apply", "-k", GUARD)


async def an_agents_pod(seen: Watching, size: int = 1, **spec: Any) -> Object:
    """A pod of a new fleet `workers`, or with a spec of a new Agent `alone`."""
    name = "alone" if spec else "workers"
    thing = (
        foreign.agent(seen.namespace, name, "work", **spec)
        if spec
        else foreign.fleet(seen.namespace, name, "work", size)
    )
    await seen.cluster.apply(thing, "test")
    await seen.until(lambda: len(seen.ready(name)) == size)
    return seen.ready(name)[0]


async def test_a_token_is_good_for_one_key_of_one_live_pod(kubectl: Kubectl, namespace: str) -> None:
    async with watching(kubectl.kubeconfig, namespace) as seen:
        pod = await an_agents_pod(seen)
        metadata = pod["metadata"]
        with door(kubectl) as identity:
            token, key = token_of(kubectl, pod), new_key()
            certified = await identity.ask(token, key)
            path = f"/ns/{namespace}/agent/workers/pod/{metadata['name']}/{metadata['uid']}"
            assert certified.spiffe_id.endswith(path)
            await identity.ask(token, key)
            with pytest.raises(DeniedError, match="another key"):
                await identity.ask(token)
            for claim in (
                {"component": "coordination"},
                {"user_namespace": namespace},
                {"administrator": True},
            ):
                with pytest.raises(DeniedError):
                    await identity.ask(token_of(kubectl, pod), **claim)
            with pytest.raises(UnauthenticatedError):
                await identity.ask(token_of(kubectl, pod, "https://elsewhere.example"))
            head, claims, _ = token.split(".")
            with pytest.raises(UnauthenticatedError):
                await identity.ask(f"{head}.{claims}.{token_of(kubectl, pod).split('.')[2]}")
            late = token_of(kubectl, pod)
            kubectl("delete", "pod", metadata["name"], "-n", namespace, "--now")
            for used in (
                late,
                token,
            ):  # a review may be remembered for ten seconds; the pod is looked for each time
                with pytest.raises((UnauthenticatedError, DeniedError)):
                    await identity.ask(used, key)


async def test_an_expired_token_is_not_believed(kubectl: Kubectl, namespace: str) -> None:
    """The shortest of a Kubernetes lives ten minutes: this one is signed with the node's own key."""
    path = Place.of(dict(os.environ)).pki / "sa.key"
    if not path.exists():
        pytest.skip("only where the cluster's signing key is at hand: the one-node cluster")
    signer = serialization.load_pem_private_key(path.read_bytes(), None)
    async with watching(kubectl.kubeconfig, namespace) as seen:
        token = token_of(kubectl, await an_agents_pod(seen))
        with door(kubectl) as identity:
            for ended, believed in (
                (-600, True),
                (90, False),
            ):  # Kubernetes allows a minute for skewed clocks
                now = int(time.time())
                again = signed_again(token, signer, iat=now - 700, nbf=now - 700, exp=now - ended)
                if believed:
                    await identity.ask(again)
                else:
                    with pytest.raises(UnauthenticatedError):
                        await identity.ask(again)


def signed_again(token: str, signer: Any, **claims: int) -> str:
    """The same token with other claims."""
    head, said, _ = token.split(".")
    body = json.dumps(decoded(said) | {"jti": f"test-{claims['exp']}"} | claims).encode()
    signing = f"{head}.{urlsafe_b64encode(body).decode().rstrip('=')}"
    assert isinstance(signer, rsa.RSAPrivateKey)
    signature = signer.sign(signing.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signing}.{urlsafe_b64encode(signature).decode().rstrip('=')}"


def decoded(part: str) -> dict[str, Any]:
    return dict(json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def forged(real: Object, name: str, **changes: Any) -> Object:
    """A pod that says that it is as that one, and runs something else, with the least that it can ask for."""
    metadata = {
        key: value for key, value in deepcopy(real["metadata"]).items() if key in ("namespace", "labels")
    }
    container = {"name": "agent", "image": "agentctl:dev", "command": ["sleep", "600"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = metadata | {"name": name} | changes
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def refused(kubectl: Kubectl, seen: Watching, identity: Door, thing: Object) -> Object:
    """The thing made, and denied."""
    made = await seen.cluster.create(thing)
    with pytest.raises(DeniedError, match="not an agent's pod"):
        await identity.ask(token_of(kubectl, made))
    return made


async def test_a_pod_that_only_says_that_it_is_an_agents_gets_nothing(
    kubectl: Kubectl, namespace: str
) -> None:
    async with watching(kubectl.kubeconfig, namespace) as seen:
        real = await an_agents_pod(seen)
        owners, labels = real["metadata"]["ownerReferences"], real["metadata"]["labels"]
        other = {**labels, "pod-template-hash": "0"}
        with door(kubectl) as identity:
            await identity.ask(token_of(kubectl, real))
            await refused(kubectl, seen, identity, forged(real, "bare", labels=other))
            await refused(
                kubectl, seen, identity, forged(real, "owned", labels=other, ownerReferences=owners)
            )
            held = {"finalizers": ["test.example/held"], "ownerReferences": owners}
            try:  # its ReplicaSet has one pod too many, and deletes it
                await refused(kubectl, seen, identity, forged(real, "held", **held))
            finally:
                released = '{"metadata":{"finalizers":null}}'
                kubectl("patch", "pod", "held", "-n", namespace, "--type=merge", "-p", released)


async def test_a_pod_that_its_replica_set_believes_in_gets_nothing(kubectl: Kubectl, namespace: str) -> None:
    """The ReplicaSet wants one more and cannot make it, since a quota counts pods that ask for resources; one
    that asks for none is made by hand, says that it is the ReplicaSet's, and is kept as the one it wanted."""
    async with watching(kubectl.kubeconfig, namespace) as seen:
        real = await an_agents_pod(seen)
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "one", "namespace": namespace},
            "spec": {"hard": {"pods": "1"}, "scopes": ["NotBestEffort"]},
        }
        kubectl.apply(quota)
        kubectl.wait("jsonpath={.status.used.pods}=1", "resourcequota/one", namespace)
        await seen.cluster.apply(foreign.fleet(namespace, "workers", "work", 2), "test")
        await seen.until(lambda: any(map(falls_short, seen.informers[REPLICA_SET].items())))
        owners = real["metadata"]["ownerReferences"]
        with door(kubectl) as identity:
            await refused(kubectl, seen, identity, forged(real, "believed", ownerReferences=owners))
            await seen.until(lambda: all(full(each) for each in seen.informers[REPLICA_SET].items()))
            kubectl.wait("condition=Ready", "pod/believed", namespace)
            kept = kubectl.get("pod", "believed", "-n", namespace)
            assert kept["metadata"]["ownerReferences"] == owners
            assert "deletionTimestamp" not in kept["metadata"]
            with pytest.raises(DeniedError, match="not an agent's pod"):
                await identity.ask(token_of(kubectl, kept))
            await identity.ask(token_of(kubectl, real))


def falls_short(replica_set: Object) -> bool:
    """Whether it says that it could not make a pod."""
    conditions = replica_set.get("status", {}).get("conditions", ())
    return any(each["type"] == "ReplicaFailure" and each["status"] == "True" for each in conditions)


def full(replica_set: Object) -> bool:
    """Whether it has what it wants, and has seen it."""
    return bool(replica_set["status"].get("replicas") == replica_set["spec"]["replicas"] == 2)


async def test_a_deployment_that_says_that_it_is_a_fleets_gets_nothing(
    kubectl: Kubectl, namespace: str
) -> None:
    async with watching(kubectl.kubeconfig, namespace) as seen:
        await an_agents_pod(seen)
        fleet = kubectl.get("agentfleet", "workers", "-n", namespace)
        real = kubectl.get("deployment", "workers", "-n", namespace)
        assert real["metadata"]["ownerReferences"][0]["uid"] == fleet["metadata"]["uid"]
        fake = deepcopy(real)
        label = {"agentctl.dev/agent": "fake"}
        fake["metadata"] = {
            "name": "fake",
            "namespace": namespace,
            "ownerReferences": real["metadata"]["ownerReferences"],
        }
        fake["spec"]["selector"]["matchLabels"] = label
        fake["spec"]["template"]["metadata"]["labels"] |= label
        kubectl.apply({key: fake[key] for key in ("apiVersion", "kind", "metadata", "spec")})
        await seen.until(lambda: seen.ready("fake"))
        with door(kubectl) as identity, pytest.raises(DeniedError, match="not an agent's pod"):
            await identity.ask(token_of(kubectl, seen.ready("fake")[0]))


async def test_the_name_of_a_components_account_is_no_component(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "serviceaccount", "coordination", "-n", namespace)
    async with watching(kubectl.kubeconfig, namespace) as seen:
        part = foreign.agent(namespace, "alone", "work")["spec"]["podTemplate"]
        part["spec"]["serviceAccountName"] = "coordination"
        pod = await an_agents_pod(seen, podTemplate=part)
        assert pod["spec"]["serviceAccountName"] == "coordination"
        with door(kubectl) as identity:
            with pytest.raises(DeniedError):
                await identity.ask(token_of(kubectl, pod), component="coordination")
            certified = await identity.ask(token_of(kubectl, pod))
            assert f"/ns/{namespace}/agent/alone/" in certified.spiffe_id


async def test_an_agents_certificate_works_on_its_own_queue_and_does_nothing_else(
    kubectl: Kubectl, namespace: str, elsewhere: str, tmp_path: Path
) -> None:
    somebody = Person(kubectl, elsewhere, "somebody")
    somebody.bind("agentctl-user")
    foreign_queue = f"{elsewhere}/workers"
    async with (
        somebody.client(tmp_path / "somebody") as theirs,
        watching(kubectl.kubeconfig, namespace) as seen,
    ):
        item = await Producer(theirs, foreign_queue).submit(b"theirs")
        pod = await an_agents_pod(seen)
        identity = Identity(tmp_path / "agent")
        key = pki.own_key(identity.key)
        with door(kubectl) as listener:
            certificate = await listener.ask(token_of(kubectl, pod), key)
        pki.write_identity(identity, certificate.bundle, identity.key.read_bytes(), certificate.chain_pem)
        with (
            kubectl.forwarded("service/coordination", COORDINATION.port, SYSTEM) as coordination,
            kubectl.forwarded("service/operator", OPERATOR.port, SYSTEM) as operator,
        ):
            async with (
                dial(COORDINATION, coordination, identity) as of_work,
                dial(OPERATOR, operator, identity) as of_operator,
            ):
                work: Any = CoordinationServiceStub(of_work)
                control: Any = OperatorServiceStub(of_operator)
                queue = f"{namespace}/workers"
                await work.Claim(work_pb.ClaimRequest(queues=[queue], request_id="own"))
                refused: list[Callable[[], Any]] = [
                    lambda: work.Claim(work_pb.ClaimRequest(queues=[foreign_queue], request_id="foreign")),
                    lambda: work.Claim(
                        work_pb.ClaimRequest(queues=[queue, foreign_queue], request_id="both")
                    ),
                    lambda: work.ConfigureQueue(work_pb.ConfigureQueueRequest(queue=queue)),
                    lambda: work.Purge(work_pb.PurgeRequest(queue=queue, all=True)),
                    lambda: work.PauseQueue(work_pb.PauseQueueRequest(queue=queue)),
                    lambda: control.Reconcile(
                        operator_pb.ReconcileRequest(kind="AgentFleet", namespace=namespace, name="workers")
                    ),
                    lambda: control.GetStatus(operator_pb.GetStatusRequest()),
                ]
                for call in refused:  # a queue of others is not there, for an agent
                    with pytest.raises((DeniedError, NotFoundError)):
                        await call()
        [shown] = (await theirs.stub.GetItems(work_pb.GetItemsRequest(item_ids=[item.id]))).items
        assert shown.state == work_pb2.WORK_STATE_READY


def test_a_person_without_a_role_changes_nothing_and_sees_no_secret(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(foreign.agent(namespace, "alone", "work"), foreign.fleet(namespace, "workers", "work", 0))
    person = Person(kubectl, namespace, "nobody")
    as_nobody = ("--as", f"system:serviceaccount:{namespace}:nobody")
    here = ("-n", namespace, *as_nobody)
    manifest = json.dumps(foreign.agent(namespace, "mine", "work"))
    closed = [
        ("delete", "agent", "alone", *here),
        ("scale", "agentfleet", "workers", "--replicas=3", *here),
        ("get", "agents", *here),
        ("get", "secrets", "-n", SYSTEM, *as_nobody),
        ("get", "secret", "agentctl-ca", "-n", SYSTEM, *as_nobody),
        ("patch", "configmap", "agentctl-denied", "-n", SYSTEM, "--type=merge", "-p", "{}", *as_nobody),
    ]
    for words in closed:
        with pytest.raises(RefusedError, match="forbidden"):
            kubectl(*words)
    with pytest.raises(RefusedError, match="forbidden"):
        kubectl("create", "-f", "-", *here, stdin=manifest)
    assert [each["metadata"]["name"] for each in kubectl.get("agents", "-n", namespace)] == ["alone"]
    assert kubectl.get("agentfleet", "workers", "-n", namespace)["spec"].get("replicas") is None

    person.bind("edit")
    kubectl("create", "-f", "-", *here, stdin=manifest)
    kubectl("scale", "agentfleet", "workers", "--replicas=1", *here)
    recorded = '{"status":{"workloads":[{"kind":"Deployment","name":"alone","uid":"mine"}]}}'
    for words in (
        ("patch", "agent", "alone", "--subresource=status", "--type=merge", "-p", recorded, *here),
        ("get", "secret", "agentctl-ca", "-n", SYSTEM, *as_nobody),
    ):
        with pytest.raises(RefusedError, match="forbidden"):  # who writes status says whose pods are agents'
            kubectl(*words)
