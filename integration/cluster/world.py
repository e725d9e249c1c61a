"""What agents of a test have around them: the double of a model and a tool server, and who may steer them."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentctl.agent.v1 import agent_service_pb2_grpc as agent_grpc
from libs import mesh, pki
from libs.cluster import Object
from libs.identity import Identity, Principal
from libs.pki import Authority, kept
from libs.pki.certificates import new_key, private_pem
from libs.rpc.client import dial

from .kubectl import SYSTEM, Kubectl

if TYPE_CHECKING:
    from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

_PROGRAM = Path(__file__).with_name("double.py")
_NAME = "double"
_FOLDER = "/etc/double"
_USER = 65532

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """A namespace with the double in it, a ModelPool `double` and an MCPServerSet `double`."""

    kubectl: Kubectl
    namespace: str
    authority: Authority
    """That of the installation, which the administrator of the cluster can read."""

    # --- the double

    def seen(self) -> Any:
        """`calls` of the tool, how often the model was `asked`, and how many are `waiting` at each gate."""
        return json.loads(self.kubectl("get", "--raw", f"{self._proxy}/seen"))

    def calls(self, say: str) -> list[Any]:
        """Those of the tool that were to say this, in order."""
        return [call for call in self.seen()["calls"] if call["arguments"].get("say") == say]

    def at(self, gate: str) -> None:
        """Returns when somebody waits there."""
        self.until(lambda: self.seen()["waiting"].get(gate, 0))

    def open(self, gate: str) -> None:
        """For who waits there, and for all who come later."""
        self.kubectl("create", "--raw", f"{self._proxy}/open/{gate}", "-f", "-", stdin="{}")

    def change(self, text: str) -> None:
        """The resource `desk://top`."""
        self.kubectl("create", "--raw", f"{self._proxy}/change", "-f", "-", stdin=json.dumps({"text": text}))

    @property
    def _proxy(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{_NAME}:8080/proxy"

    # --- agents

    def agent(self, name: str, mode: str, *turns: Object, **spec: Any) -> Object:
        """An Agent whose model says these turns. What is None in its spec is left out."""
        part = {"mode": mode, **told(*turns), **spec}
        return self.thing("Agent", name, {key: value for key, value in part.items() if value is not None})

    def fleet(self, name: str, size: int, **template: Any) -> Object:
        """Agents whose model says what is in each item."""
        scaling = {"minReplicas": size, "maxReplicas": size}
        work = {"slots": 1, "lease": "5s"}
        part = {**told(), "instruction": "Do what the script says.", **template}
        return self.thing("AgentFleet", name, {"template": part, "scaling": scaling, "work": work})

    def thing(self, kind: str, name: str, spec: Object) -> Object:
        """An object of one of our kinds."""
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "agentctl.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}

    def pods(self, agent: str) -> list[Object]:
        """All of its pods, oldest first, also those that have ended."""
        found = self.kubectl.get("pods", "-n", self.namespace, "-l", f"agentctl.dev/agent={agent}")
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def running(self, agent: str) -> Object:
        """Its one pod that has not ended."""
        pods = [pod for pod in self.pods(agent) if pod["status"]["phase"] in ("Pending", "Running")]
        [pod] = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return pod

    def said(self, agent: str, container: str = "agent") -> list[str]:
        """The lines of its newest pod."""
        name = self.pods(agent)[-1]["metadata"]["name"]
        return self.kubectl("logs", name, "-c", container, "-n", self.namespace).splitlines()

    def get(self, kind: str, name: str) -> Any:
        """An object of the namespace."""
        return self.kubectl.get(kind, name, "-n", self.namespace)

    def ended(self, name: str, runs: int = 1) -> Object:
        """Its last run, when so many have ended."""

        def last() -> Object | None:
            said = self.get("agent", name).get("status", {})
            return said.get("lastRun") if said.get("runs", 0) >= runs else None

        return self.until(last, 120)

    def until(self, ask: Callable[[], T | None], seconds: float = 90) -> T:
        """The first answer that is something, asked again and again. AssertionError when time is up."""
        deadline = time.monotonic() + seconds
        while not (answer := ask()):
            assert time.monotonic() < deadline, f"did not come to be so within {seconds} s"
            time.sleep(0.2)
        return answer

    # --- the agents' gRPC

    def identity(self, path: str, folder: Path) -> Identity:
        """A certificate for an id under the trust domain, such as `/cp/apiserver`."""
        return self.authority.issue(f"spiffe://{self.authority.domain}{path}", folder)

    @asynccontextmanager
    async def calling(
        self, pod: Object, agent: str, identity: Identity
    ) -> AsyncIterator[AgentServiceAsyncStub]:
        """AgentService of exactly this pod, over the cluster's network."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        path = f"/ns/{self.namespace}/agent/{agent}/pod/{name}/{uid}"
        server = Principal.parse(f"spiffe://{self.authority.domain}{path}")
        relay = self.kubectl(
            "get", "--raw", f"{self._proxy}/relay/{pod['status']['podIP']}/{mesh.AGENT.port}"
        )
        with self.kubectl.forwarded(f"pod/{_NAME}", int(relay), self.namespace) as address:
            async with dial(mesh.AGENT, address, identity, server=server) as channel:
                yield agent_grpc.AgentServiceStub(channel)


def told(*turns: Object) -> Object:
    """What an agent needs to be told to have the double's model and tool, and these turns."""
    return {"instruction": script(*turns), "model": {"pool": _NAME}, "mcpServers": [_NAME]}


def script(*turns: Object) -> str:
    """For an instruction, or for an item."""
    return f"script: {json.dumps(turns)}"


def work(say: str, wait: str = "") -> Object:
    """A turn that has the tool called, to say this, when that gate is open."""
    return {"call": "work", "with": {"say": say} | ({"wait": wait} if wait else {})}


def restarts(pod: Object, container: str = "agent") -> int:
    """How often the kubelet started it again."""
    status = pod["status"]
    known = [*status["containerStatuses"], *status.get("initContainerStatuses", ())]
    return next(int(each["restartCount"]) for each in known if each["name"] == container)


def is_ready(pod: Object) -> bool:
    """Whether it is."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"]["conditions"])


def world(kubectl: Kubectl, namespace: str) -> World:
    """With the double at work in the namespace; it goes with that."""
    made = World(kubectl, namespace, authority_of(kubectl))
    kubectl.apply(*_double(made))
    kubectl.wait("condition=Ready", f"pod/{_NAME}", namespace)
    return made


def authority_of(kubectl: Kubectl) -> Authority:
    """That of the installation, which the administrator of the cluster can read."""
    secret = kubectl.get("secret", "agentctl-ca", "-n", SYSTEM)
    return kept.load(b64decode(secret["data"]["keyring.json"]).decode()).authority(datetime.now(UTC))


def _double(world: World) -> Sequence[Object]:
    host = f"{_NAME}.{world.namespace}.svc"
    base = f"https://{host}:8443"
    key = new_key()
    chain = world.authority.sign(
        pki.new_request(key), f"spiffe://{world.authority.domain}/cp/{_NAME}", dns_names=[host]
    )
    files = {
        "tls.crt": chain.decode(),
        "tls.key": private_pem(key).decode(),
        "ca.crt": world.kubectl.get("configmap", "agentctl-trust", "-n", SYSTEM)["data"]["ca.crt"],
        "double.py": _PROGRAM.read_text(),
    }
    metadata = {"name": _NAME, "namespace": world.namespace, "labels": {"app": _NAME}}
    ports = [{"name": "inside", "port": 8443}]
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": files},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": {"app": _NAME}, "ports": ports},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod()},
        world.thing("ModelPool", _NAME, {"endpoint": f"{base}/v1", "models": ["m"]}),
        world.thing("MCPServerSet", _NAME, {"servers": [{"name": "desk", "endpoint": f"{base}/mcp"}]}),
    ]


def _pod() -> Object:
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": _NAME,
                "image": "agentctl:dev",
                "command": ["python", f"{_FOLDER}/double.py"],
                # Once ready it stays so: a busy node is no reason to be away.
                "readinessProbe": {
                    "httpGet": {"path": "/seen", "port": 8080},
                    "periodSeconds": 1,
                    "timeoutSeconds": 5,
                    "failureThreshold": 60,
                },
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "files", "mountPath": _FOLDER}],
            }
        ],
        "volumes": [{"name": "files", "secret": {"secretName": _NAME}}],
    }
