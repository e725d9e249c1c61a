"""Who gets a certificate over the wire, and who does not."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from libs.cluster.kinds import AGENT_FLEET, POD
from libs.errors import DeniedError, ExhaustedError, InvalidError, UnauthenticatedError, UnavailableError
from libs.pki.certificates import new_key
from libs.pki.request import new_request
from services.operator.identity.office import open_office
from services.operator.identity.rates import Rate
from services.operator.identity.server import AUDIENCE

from .conftest import SYSTEM, asking, dns_names, leaf, listening, named, owner

pytestmark = pytest.mark.anyio


async def test_an_agents_pod_gets_its_id_for_an_hour(world, ask):
    pod = await world.pod(await world.fleet())
    answer = await ask(await world.token(pod))
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    assert answer.spiffe_id == f"spiffe://mesh.test/ns/demo/agent/worker/pod/{name}/{uid}"
    assert 3500 < answer.expires_at.seconds - time.time() <= 3600
    assert 0.56 * 3600 - 5 < answer.renew_at.seconds - time.time() <= 2400
    assert dns_names(answer) == [f"{uid}.worker.agent.demo.ns.mesh.test"]
    usages = leaf(answer).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


async def test_what_a_pod_asks_to_be_called_does_not_count(world, ask):
    pod = await world.pod(await world.fleet())
    wanted = ["coordination.cp.mesh.test", "another.worker.agent.demo.ns.mesh.test", "localhost"]
    names = x509.SubjectAlternativeName([x509.DNSName(each) for each in wanted])
    builder = x509.CertificateSigningRequestBuilder(x509.Name([])).add_extension(names, critical=False)
    csr = builder.sign(ask.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    answer = await ask(await world.token(pod), certificate_request=csr)
    assert dns_names(answer) == [f"{pod['metadata']['uid']}.worker.agent.demo.ns.mesh.test"]


async def test_a_fleets_coordinator_is_an_agent_of_its_own(world, ask):
    pod = await world.pod(await world.fleet(workload="worker-coordinator"))
    answer = await ask(await world.token(pod))
    assert "/ns/demo/agent/worker-coordinator/pod/" in answer.spiffe_id


@pytest.mark.parametrize("above", ["ReplicaSet", "Job", "CronJob"])
async def test_the_chains_of_kubernetes_lead_to_the_agent_too(world, ask, above):
    deployment = await world.fleet()
    spec, meta = deployment["spec"], {"ownerReferences": owner(await world.fleet_of())}
    if above == "ReplicaSet":
        workload, links = deployment, [("apps/v1", "ReplicaSet")]
    else:
        job_spec = {"template": spec["template"]}
        full = {"schedule": "@daily", "jobTemplate": {"spec": job_spec}} if above == "CronJob" else job_spec
        workload = await world.cluster.apply(
            named("batch/v1", above, "demo", "worker", metadata=meta, spec=full), "test"
        )
        await world.record("demo", "worker", workload)
        links, spec = [("batch/v1", "Job")] if above == "CronJob" else [], job_spec
    nearest = workload
    for api_version, kind in links:
        nearest = await world.cluster.apply(
            named(
                api_version, kind, "demo", "worker-5",
                metadata={"ownerReferences": owner(nearest)}, spec=spec,
            ),
            "test",
        )  # fmt: skip
    pod = await world.pod(workload, owners=owner(nearest))
    assert "/agent/worker/pod/" in (await ask(await world.token(pod))).spiffe_id


async def test_forged_tokens_are_not_believed(world, ask):
    await world.bound_token()
    pod = (await world.cluster.list(POD, "demo")).items[0]
    forged = world.forger("another.key").issue("demo", "default", AUDIENCE, 3600, pod)
    for token in (forged, "nonsense", "a.b.c"):
        with pytest.raises(UnauthenticatedError, match="not believed"):
            await ask(token)


async def test_expired_tokens_are_not_believed(world, ask):
    pod = await world.pod(await world.fleet())
    old = world.forger(clock=lambda: time.time() - 7200).issue("demo", "default", AUDIENCE, 3600, pod)
    with pytest.raises(UnauthenticatedError, match="not believed"):
        await ask(old)


async def test_tokens_for_another_audience_are_not_believed(world, ask):
    pod = await world.pod(await world.fleet())
    with pytest.raises(UnauthenticatedError, match="not believed"):
        await ask(await world.cluster.issue_pod_token(pod, "kubernetes", 3600))


async def test_the_token_of_a_deleted_pod_is_not_believed(world, ask):
    pod = await world.pod(await world.fleet())
    token = await world.token(pod)
    await ask(token)
    await world.cluster.delete(POD, "demo", pod["metadata"]["name"])
    with pytest.raises(UnauthenticatedError, match="not believed"):
        await ask(token)


async def test_a_pod_that_ended_gets_nothing(world, ask):
    pod = await world.pod(await world.fleet())
    token = await world.token(pod)
    ended = named("v1", "Pod", "demo", pod["metadata"]["name"], status={"phase": "Succeeded"})
    await world.cluster.apply(ended, "test", subresource="status")
    with pytest.raises(DeniedError, match="not an agent's pod"):
        await ask(token)


async def test_a_pod_that_drains_renews_until_its_grace_is_over(world, ask):
    pod = await world.pod(await world.fleet(), more={"terminationGracePeriodSeconds": 7200})
    held = await world.cluster.replace({**pod, "metadata": {**pod["metadata"], "finalizers": ["test/node"]}})
    token = await world.token(held, 4 * 3600)
    first = await ask(token)
    await world.cluster.delete(POD, "demo", pod["metadata"]["name"])
    for world.clock in (0.0, 3600.0, 7200.0):
        assert (await ask(token)).spiffe_id == first.spiffe_id
    world.clock = 7200.0 + 65
    with pytest.raises(DeniedError, match="not an agent's pod"):
        await ask(token)


async def test_one_token_serves_one_key(world, ask):
    token = await world.bound_token()
    first = await ask(token)
    assert (await ask(token)).spiffe_id == first.spiffe_id, "the same key may come again"
    with pytest.raises(DeniedError, match="another key"):
        await ask(token, new_key())


async def test_a_restart_does_not_forget_the_key_of_a_token(world, ask, charter):
    token = await world.bound_token()
    await ask(token)
    async with (
        open_office(world.cluster, charter, world.now) as again,
        listening(again) as served,
        asking(again, served) as other,
    ):
        with pytest.raises(DeniedError, match="another key"):
            await other(token)
        await other(token, ask.key)


def forgeries():
    """What somebody who may create pods in the namespace can write into one."""
    return {
        "no owner": {"owners": []},
        "another uid": {"changes": {"uid": "00000000-0000-0000-0000-000000000000"}},
        "not the controller": {"changes": {"controller": False}},
        "a name that is not there": {"changes": {"name": "nobody"}},
        "a strange kind": {"changes": {"kind": "Widget"}},
        "no label": {"labels": {}},
        "another agent's label": {"labels": {"agentctl.dev/agent": "boss"}},
        "another image": {"image": "evil"},
        "another container": {"more": {"initContainers": [{"name": "first", "image": "evil"}]}},
        "the host's network": {"more": {"hostNetwork": True}},
    }


@pytest.mark.parametrize("forgery", forgeries())
async def test_a_forged_pod_gets_nothing(world, ask, forgery):
    deployment = await world.fleet()
    wrong = dict(forgeries()[forgery])
    changes = wrong.pop("changes", {})
    pod = await world.pod(deployment, **{"owners": owner(deployment, **changes), **wrong})
    with pytest.raises((DeniedError, UnauthenticatedError)) as refused:
        await ask(await world.token(pod))
    assert str(refused.value) in ("this token's pod is not an agent's pod",) or "not believed" in str(
        refused.value
    )


async def test_a_workload_that_the_operator_did_not_record_gives_no_identity(world, ask):
    deployment = await world.fleet(recorded=False)
    token = await world.token(await world.pod(deployment))
    with pytest.raises(UnavailableError, match="not on record yet"):
        await ask(token)
    world.clock += 600
    with pytest.raises(DeniedError, match="not an agent's pod"):
        await ask(token)


async def test_a_record_of_a_workload_that_was_made_again_counts_no_more(world, ask):
    deployment = await world.fleet()
    another = {**deployment, "metadata": deployment["metadata"] | {"uid": "gone"}}
    await world.record("demo", "worker", another)
    world.clock += 600
    with pytest.raises(DeniedError):
        await ask(await world.token(await world.pod(deployment)))


async def test_a_workload_of_another_namespace_gives_no_identity(world, ask):
    deployment = await world.fleet("demo")
    await world.namespace("other")
    pod = await world.pod(deployment, namespace="other")
    with pytest.raises((DeniedError, UnauthenticatedError)):
        await ask(await world.token(pod))


async def test_a_pod_of_the_system_namespace_is_no_agent(world, ask):
    deployment = await world.fleet("demo")
    pod = await world.pod(deployment, namespace=SYSTEM, owners=[])
    with pytest.raises(DeniedError, match="not an agent's pod"):
        await ask(await world.token(pod))


async def test_a_deleted_fleet_takes_the_identity_along(world, ask):
    pod = await world.pod(await world.fleet())
    token = await world.token(pod)
    await world.cluster.delete(AGENT_FLEET, "demo", "worker", propagation="Orphan")
    with pytest.raises(DeniedError):
        await ask(token)


async def test_pods_of_the_last_revision_stay_who_they_are(world, ask):
    old = await world.pod(await world.fleet())
    unknown = await world.pod(await world.fleet())
    first = await ask(await world.token(old))
    await world.fleet(image="agentctl:next")
    assert (await ask(await world.token(old))).spiffe_id == first.spiffe_id
    with pytest.raises(DeniedError):
        await ask(await world.token(unknown), new_key())


async def component_token(world, account, namespace=SYSTEM):
    await world.account(namespace, account)
    return await world.cluster.issue_token(namespace, account, AUDIENCE, 3600)


async def test_a_component_gets_its_id_and_the_names_of_its_service(world, ask):
    answer = await ask(await component_token(world, "coordination"), component="coordination")
    assert answer.spiffe_id == "spiffe://mesh.test/cp/coordination"
    assert dns_names(answer) == [
        "coordination.cp.mesh.test",
        "coordination.agentctl-system.svc",
        "coordination.agentctl-system.svc.cluster.local",
        "localhost",
    ]


@pytest.mark.parametrize(
    ("account", "namespace", "component"),
    [
        ("coordination", "demo", "coordination"),
        ("coordination", SYSTEM, "provider"),
        ("default", SYSTEM, "coordination"),
        ("modelgateway", SYSTEM, "mcpgateway"),
        ("plane", SYSTEM, "operator"),
        ("coordination", SYSTEM, "coordination/pod"),
    ],
)
async def test_a_component_is_exactly_its_account(world, ask, account, namespace, component):
    with pytest.raises(DeniedError, match="not one of the component"):
        await ask(await component_token(world, account, namespace), component=component)


async def test_an_agents_pod_is_no_component_and_no_person(world, ask):
    token = await world.bound_token()
    for claim in ({"component": "coordination"}, {"producer_namespace": "demo"}, {"administrator": True}):
        with pytest.raises(DeniedError):
            await ask(token, **claim)


async def test_people_are_who_rbac_says(world, ask):
    token = await component_token(world, "ci", "demo")
    assert (
        await ask(token, producer_namespace="demo")
    ).spiffe_id == "spiffe://mesh.test/ns/demo/producer/demo.ci"
    assert (await ask(token, user_namespace="demo")).spiffe_id == "spiffe://mesh.test/ns/demo/user/demo.ci"
    for claim in ({"producer_namespace": "other"}, {"user_namespace": "other"}, {"administrator": True}):
        with pytest.raises(DeniedError, match="RBAC"):
            await ask(token, **claim)
    root = await world.cluster.issue_token(SYSTEM, "administrator", AUDIENCE, 600)
    answer = await ask(root, administrator=True)
    assert answer.spiffe_id == "spiffe://mesh.test/user/agentctl-system.administrator"
    with pytest.raises(InvalidError, match="producer_namespace"):
        await ask(token, producer_namespace="../../cp/operator")


async def test_a_token_without_a_pod_is_no_agents(world, ask):
    with pytest.raises(DeniedError, match="not an agent's pod"):
        await ask(await component_token(world, "ci", "demo"))


async def test_a_token_that_outlives_the_memory_of_it_is_refused(world, ask):
    await world.account("demo", "ci")
    token = await world.cluster.issue_token("demo", "ci", AUDIENCE, 3 * 86400)
    with pytest.raises(DeniedError, match="longer than 24 h"):
        await ask(token, producer_namespace="demo")


async def test_malformed_requests_are_refused_before_anything_is_asked(world, ask):
    token = await world.bound_token()
    small = new_request(new_key()).decode()
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"certificate_request": ""}, "certificate_request"),
        ({"certificate_request": "x" * 20_000}, "certificate_request"),
        ({"certificate_request": small[:200]}, "certificate_request"),
        ({"administrator": False}, "administrator"),
    ]
    for wrong, field in wrongs:
        with pytest.raises(InvalidError, match=field):
            await ask(token, **wrong)
    for size in (0, 16 * 1024 + 1):
        with pytest.raises(InvalidError, match="token"):
            await ask("x" * size)
    with pytest.raises(InvalidError, match="256 bits"):
        await ask(token, ec.generate_private_key(ec.SECP192R1()))
    with pytest.raises(ExhaustedError):
        await ask("x" * 100_000)


async def test_no_token_and_no_key_is_logged(world, ask, caplog):
    token = await world.bound_token()
    with caplog.at_level(logging.DEBUG):
        await ask(token)
        with pytest.raises(DeniedError):
            await ask(token, new_key())
        with pytest.raises(UnauthenticatedError):
            await ask(token[:-4] + "AAAA")
    signature = token.rpartition(".")[2]
    assert "certified" in caplog.text
    assert all(signature[:20] not in str(vars(record)) for record in caplog.records)


async def test_requests_are_limited(world, charter):
    slow = type(charter)(charter.domain, charter.tls_dir, peer=Rate(0.0, 3))
    async with (
        open_office(world.cluster, slow, world.now) as office,
        listening(office) as served,
        asking(office, served) as ask,
    ):
        for _ in range(3):
            with pytest.raises(UnauthenticatedError):
                await ask("nonsense")
        with pytest.raises(ExhaustedError, match="from this address"):
            await ask("nonsense")


async def test_who_is_denied_gets_no_certificate(world, office, ask):
    pod = await world.pod(await world.fleet())
    token = await world.token(pod)
    spiffe_id = (await ask(token)).spiffe_id
    denied = named("v1", "ConfigMap", SYSTEM, "agentctl-denied", data={"why": spiffe_id})
    await world.cluster.apply(denied, "test")
    await office.look()
    with pytest.raises(DeniedError, match="deny list"):
        await ask(token)
