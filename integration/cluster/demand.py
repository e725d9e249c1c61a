"""Demand for a Deployment of pods that do nothing, and what KEDA makes of it; the work is the test's own."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from prometheus_client.parser import text_string_to_metric_families

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from libs.cluster import Object
from libs.cluster.kinds import DEPLOYMENT
from libs.identity import Identity
from libs.pki import Authority
from libs.work import Client, Work, connect, new_id

from .kubectl import SYSTEM, Kubectl
from .watching import Watching, watching

NAME = "docs"
AUTHENTICATION = "test-scaler"
KEDA = "keda"
CALLS = "agentctl_rpc_server_duration_seconds_count"
"""A metric: how many a scaler has answered."""
SCALER = "scaler.agentctl-system.svc:7417"


@dataclass
class Demand:
    """Work for a Deployment of that name, in a namespace."""

    kubectl: Kubectl
    seen: Watching
    submitter: Client
    worker: Client
    replicas: list[int] = field(default_factory=list)
    """Each number that the Deployment ever asked for, in order."""

    @property
    def queue(self) -> str:
        return f"{self.seen.namespace}/{NAME}"

    async def grows(self, items: int) -> None:
        """By so many, at once."""
        works = [Work(b"x") for _ in range(items)]
        assert not any(
            isinstance(each, Exception) for each in await self.submitter.submit_all(self.queue, works)
        )

    async def shrinks(self, items: int) -> None:
        """By so many, which are done."""
        done = 0
        while done < items:
            request = pb.ClaimRequest(queues=[self.queue], max_items=items - done, request_id=new_id())
            grants = (await self.worker.stub.Claim(request)).grants
            acks = [pb.Ack(item_id=each.item_id, token=each.token) for each in grants]
            await self.worker.stub.Ack(pb.AckRequest(acks=acks))
            done += len(acks)

    async def asked(self, times: int, code: str) -> None:
        """Returns when KEDA has asked for metrics so many times more, and was answered so."""

        def told() -> float:
            return metric(self.kubectl, CALLS, method="GetMetrics", code=code)

        before = told()
        await _until(lambda: told() >= before + times)

    async def streams(self, count: int) -> None:
        """Returns when KEDA listens for so many."""
        await _until(
            lambda: metric(self.kubectl, "agentctl_scaler_streams", method="StreamIsActive") == count
        )

    async def has(self, replicas: int, seconds: float = 90) -> None:
        """Returns when the Deployment asks for so many."""
        await self.seen.until(lambda: self.replicas[-1] == replicas, seconds)

    def scaled(self, **spec: Any) -> None:
        """What KEDA is told; again: changed. `trigger` is of the one trigger, `metadata` of that."""
        namespace = self.seen.namespace
        self.kubectl.apply(scaled_object(namespace, **spec))
        self.kubectl.wait("condition=Ready", f"scaledobject/{NAME}", namespace)

    def _heard(self, _: Object | None, new: Object | None) -> None:
        if new and new["metadata"]["name"] == NAME and [new["spec"]["replicas"]] != self.replicas[-1:]:
            self.replicas.append(new["spec"]["replicas"])


def scaled_object(
    namespace: str, *, metadata: dict[str, str] | None = None, trigger: Object | None = None, **spec: Any
) -> Object:
    one = {
        "type": "external-push",
        "metadata": {"scalerAddress": SCALER, "target": "1", **(metadata or {})},
        "authenticationRef": {"name": AUTHENTICATION, "kind": "ClusterTriggerAuthentication"},
        **(trigger or {}),
    }
    up = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 9, "periodSeconds": 15}]}
    behavior = {"scaleUp": up, "scaleDown": {"stabilizationWindowSeconds": 0}}
    told = {
        "scaleTargetRef": {"name": NAME},
        "minReplicaCount": 0,
        "maxReplicaCount": 5,
        "pollingInterval": 2,
        "cooldownPeriod": 4,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": [one],
        **spec,
    }
    named = {"name": NAME, "namespace": namespace}
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": named, "spec": told}


@asynccontextmanager
async def demand(
    kubectl: Kubectl, authority: Authority, namespace: str, folder: Path
) -> AsyncIterator[Demand]:
    """A Deployment of no pods, and nothing to do for it."""
    kubectl.apply(_deployment(namespace))
    domain = f"spiffe://{authority.domain}/ns/{namespace}"
    paths = {"user": f"{domain}/user/tester", "agent": f"{domain}/agent/{NAME}/pod/{NAME}-0/uid-0"}
    user, agent = (authority.issue(path, folder / f"{namespace}-{who}") for who, path in paths.items())
    async with AsyncExitStack() as stack:
        seen = await stack.enter_async_context(watching(kubectl.kubeconfig, namespace))
        address = stack.enter_context(kubectl.forwarded("service/coordination", 7410, SYSTEM))
        submitter, worker = [await stack.enter_async_context(connect(address, who)) for who in (user, agent)]
        made = Demand(kubectl, seen, submitter, worker)
        seen.informers[DEPLOYMENT].subscribe(made._heard)
        yield made


async def _until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(120):
        while not true():  # noqa: ASYNC110
            await anyio.sleep(0.5)


def metric(kubectl: Kubectl, name: str, component: str = "scaler", **labels: str) -> float:
    """Of all pods of it that are to stay, where labels end so."""
    total = 0.0
    pods = kubectl.get("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/component={component}")
    for pod in (pod for pod in pods if "deletionTimestamp" not in pod["metadata"]):
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}:9090/proxy/metrics"
        for family in text_string_to_metric_families(kubectl("get", "--raw", path)):
            for each in family.samples:
                is_so = all(each.labels.get(label, "").endswith(end) for label, end in labels.items())
                total += each.value * (each.name == name and is_so)
    return total


def authenticated(kubectl: Kubectl, identity: Identity) -> None:
    """KEDA shows this certificate to the scaler, from the next time on that it looks."""
    files = {"ca.crt": identity.root, "tls.crt": identity.certificate, "tls.key": identity.key}
    data = {name: b64encode(path.read_bytes()).decode() for name, path in files.items()}
    parameters = {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
    references = [
        {"parameter": parameter, "name": AUTHENTICATION, "key": key} for parameter, key in parameters.items()
    ]
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": AUTHENTICATION, "namespace": KEDA},
            "data": data,
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ClusterTriggerAuthentication",
            "metadata": {"name": AUTHENTICATION},
            "spec": {"secretTargetRef": references},
        },
    )


def _deployment(namespace: str) -> Object:
    labels = {"app": NAME}
    container = {"name": "idle", "image": "agentctl:dev", "command": ["sleep", "infinity"]}
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
