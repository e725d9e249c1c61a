"""A world with agents in it, an office for it, and its listener."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from agentctl.identity.v1 import identity_service_pb2 as pb
from agentctl.identity.v1 import identity_service_pb2_grpc as pb_grpc
from libs.cluster.kinds import AGENT_FLEET, CONFIG_MAP
from libs.cluster.local import LocalCluster, open_local
from libs.cluster.local.tokens import Tokens, signing_key
from libs.mesh import IDENTITY
from libs.pki.certificates import new_key
from libs.pki.request import new_request
from libs.rpc.server import serving
from libs.rpc.status import error_of
from services.operator.identity.office import LIMITS, Charter, Office, open_office
from services.operator.identity.publication import NAME
from services.operator.identity.server import AUDIENCE

DOMAIN = "mesh.test"
SYSTEM = "agentctl-system"
IMAGE = "agentctl"


def owner(thing, **changes):
    reference = {
        "apiVersion": thing["apiVersion"],
        "kind": thing["kind"],
        "name": thing["metadata"]["name"],
        "uid": thing["metadata"]["uid"],
        "controller": True,
    }
    return [reference | changes]


def named(api_version, kind, namespace, name, **rest):
    metadata = {"name": name, "namespace": namespace, **rest.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def template(name, image=IMAGE):
    container = {"name": "agent", "image": image, "command": ["agentctl-agent"]}
    return {"metadata": {"labels": {"agentctl.dev/agent": name}}, "spec": {"containers": [container]}}


@dataclass
class World:
    """Objects as the operator makes them; everything may be made a little wrong."""

    cluster: LocalCluster
    folder: Path
    clock: float = 0.0  # seconds from the true time
    pods: int = field(default=0)

    def now(self) -> float:
        return time.time() + self.clock

    async def namespace(self, name):
        await self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, "test"
        )

    async def account(self, namespace, name):
        await self.namespace(namespace)
        await self.cluster.apply(named("v1", "ServiceAccount", namespace, name), "test")

    async def fleet(self, namespace="demo", name="worker", *, recorded=True, workload="", image=IMAGE):
        """An AgentFleet and its Deployment."""
        await self.namespace(namespace)
        spec = {"template": {"instruction": "work", "model": {"pool": "models"}}}
        fleet = await self.cluster.apply(
            named("agentctl.dev/v1alpha1", "AgentFleet", namespace, name, spec=spec), "test"
        )
        workload = workload or name
        deployment = await self.cluster.apply(
            named(
                "apps/v1", "Deployment", namespace, workload,
                metadata={"ownerReferences": owner(fleet)},
                spec={
                    "selector": {"matchLabels": {"agentctl.dev/agent": workload}},
                    "template": template(workload, image),
                },
            ),
            "test",
        )  # fmt: skip
        if recorded:
            await self.record(namespace, name, deployment)
        return deployment

    async def record(self, namespace, name, *workloads):
        known = [
            {"kind": each["kind"], "name": each["metadata"]["name"], "uid": each["metadata"]["uid"]}
            for each in workloads
        ]
        status = named("agentctl.dev/v1alpha1", "AgentFleet", namespace, name, status={"workloads": known})
        await self.cluster.apply(status, "test", subresource="status")

    async def pod(
        self, workload, *, owners=None, labels=None, image=IMAGE, namespace="", account="default", more=None
    ):
        self.pods += 1
        metadata = workload["metadata"]
        name = metadata["name"]
        return await self.cluster.create(
            named(
                "v1", "Pod", namespace or metadata["namespace"], f"{name}-{self.pods}",
                metadata={
                    "labels": {"agentctl.dev/agent": name} if labels is None else labels,
                    "ownerReferences": owner(workload) if owners is None else owners,
                },
                spec={"serviceAccountName": account, **template(name, image)["spec"], **(more or {})},
            )
        )  # fmt: skip

    async def token(self, pod, seconds=3600):
        return await self.cluster.issue_pod_token(pod, AUDIENCE, seconds)

    async def bound_token(self):
        """The token of a pod that is all right."""
        return await self.token(await self.pod(await self.fleet()))

    def forger(self, name="token.key", clock=time.time):
        """Issues tokens with the key in that file of the home, by this clock."""
        return Tokens(signing_key(self.folder / name), self.cluster._store.read, clock)

    async def published(self, namespace=SYSTEM):
        return (await self.cluster.get(CONFIG_MAP, namespace, NAME))["data"]

    async def fleet_of(self, namespace="demo", name="worker"):
        return await self.cluster.get(AGENT_FLEET, namespace, name)


@pytest.fixture
async def world(tmp_path):
    async with open_local(tmp_path / "home") as cluster:
        yield World(cluster, tmp_path / "home")


@pytest.fixture
def charter(tmp_path):
    return Charter(DOMAIN, tmp_path / "operator-tls")


@pytest.fixture
async def office(world, charter):
    async with open_office(world.cluster, charter, world.now) as office:
        yield office


@asynccontextmanager
async def listening(office: Office, **options):
    """The identity listener of an office."""
    async with serving(IDENTITY, office.identity, office.register, limits=LIMITS, **options) as served:
        yield served


class Asker:
    """Asks IdentityService without a certificate, and remembers its key."""

    def __init__(self, channel):
        self.stub = pb_grpc.IdentityServiceStub(channel)
        self.key = new_key()

    async def __call__(self, token, key=None, **claim):
        request = claim.pop("certificate_request", new_request(key or self.key).decode())
        try:
            return await self.stub.IssueCertificate(
                pb.IssueCertificateRequest(token=token, certificate_request=request, **claim), timeout=10
            )
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error


@asynccontextmanager
async def asking(office: Office, served):
    credentials = grpc.ssl_channel_credentials(office.identity.root.read_bytes())
    name = (("grpc.ssl_target_name_override", f"operator.cp.{DOMAIN}"),)
    async with grpc.aio.secure_channel(served.address, credentials, name) as channel:
        yield Asker(channel)


@pytest.fixture
async def ask(office):
    async with listening(office) as served, asking(office, served) as asker:
        yield asker


def leaf(answer):
    return x509.load_pem_x509_certificates(answer.certificate_chain.encode())[0]


def dns_names(answer):
    names = leaf(answer).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)
