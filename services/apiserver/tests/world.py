"""A cluster with agents that answer over real mTLS, and whoever steers them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import anyio

from agentctl.agent.v1.agent_service_pb2_grpc import add_AgentServiceServicer_to_server
from agentctl.management.v1 import management_service_pb2_grpc as pb_grpc
from libs import pki
from libs.cluster import Bearer, Cluster, Object
from libs.cluster.bearers import bearer_of
from libs.cluster.kinds import AGENT, AGENT_FLEET, DEPLOYMENT, POD, REPLICA_SET, Kind
from libs.contract.agent import Condition, Draining
from libs.contract.run import Run, State
from libs.contract.servicer import AgentServicer
from libs.contract.serving import agent_serving
from libs.contract.tests.memory_agent import MemoryAgent
from libs.identity import Identity
from libs.mesh import AGENT as AGENT_COMPONENT
from libs.mesh import APISERVER
from libs.places import Places
from libs.rpc.server import serving
from libs.testing import ca
from libs.testing.mesh import NAMESPACE, Mesh
from services.apiserver import verbs
from services.apiserver.agents import Dial, by_mesh
from services.apiserver.management import Management
from services.apiserver.pods import Pod
from services.apiserver.server import ManagementServer

BEGAN = "2026-01-01T00:00:00Z"
USER = f"user/{NAMESPACE}.ann"


class DoubleAgent(MemoryAgent):
    """An agent in memory that can be told to hang, to come to no step, or to be slow to get ready."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.holds_at_once = True
        self.ready_at_once = True
        self.called = anyio.Event()
        """Set by the first verb."""

    async def condition(self) -> Condition:
        await self._hang()
        return await super().condition()

    async def drain(self, deadline: timedelta | None) -> Draining:
        await self._begin()
        return await super().drain(deadline)

    async def lame_duck(self, enabled: bool) -> Condition:
        await self._begin()
        self.asked.append(("lame-duck", enabled))
        condition = await super().lame_duck(enabled)
        if not enabled and not self.ready_at_once:
            self.now = replace(self.now, ready=False, not_ready_reason="warming up")
            return self.now
        return condition

    async def cancel(self, run_id: str, reason: str) -> Sequence[Run]:
        await self._begin()
        return await super().cancel(run_id, reason)

    async def pause(self, run_id: str, wait: timedelta) -> Sequence[Run]:
        await self._begin()
        self.now = replace(self.now, paused=not run_id)
        if self.holds_at_once:
            return await super().pause(run_id, wait)
        self.asked.append(("pause", run_id, wait))
        return self._concerned(run_id)

    async def resume(self, run_id: str) -> Sequence[Run]:
        await self._begin()
        self.asked.append(("resume", run_id))
        self.now = replace(self.now, paused=False)
        return await super().resume(run_id)

    async def hold(self, run_id: str) -> None:
        """The run comes to its step."""
        await self.put(replace(self.run(run_id), state=State.PAUSED))

    async def _begin(self) -> None:
        self.called.set()
        await self._hang()

    async def _hang(self) -> None:
        if self.hangs:
            await anyio.sleep_forever()


class Mute(AgentServicer):
    """An agent that is past helping."""

    async def GetRun(self, request: Any, context: object) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError


@dataclass
class World:
    """`management` acts on what was made here."""

    cluster: Cluster
    mesh: Mesh
    stack: AsyncExitStack
    addresses: dict[str, str] = field(default_factory=dict)
    places: Places | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def management(self) -> Management:
        return Management(self.cluster, self.dial, self.places)

    @property
    def dial(self) -> Dial:
        """A connection for each time."""
        return by_mesh(self.mesh.identity("cp/apiserver"), self._address)

    def bearer(self, role: str = USER) -> Bearer:
        """Whom RBAC takes a caller of that role for."""
        return bearer_of(self.mesh.principal(role))

    @asynccontextmanager
    async def stub(self, role: str = USER, namespace: str = NAMESPACE) -> AsyncIterator[Any]:
        """ManagementService, over the wire, as that caller sees it."""
        servicer = ManagementServer(self.management)
        async with (
            self.mesh.serve(
                lambda server: pb_grpc.add_ManagementServiceServicer_to_server(servicer, server), APISERVER
            ) as served,
            self.mesh.dial_as(role, served, APISERVER, namespace=namespace) as channel,
        ):
            yield pb_grpc.ManagementServiceStub(channel)

    # --- What people and the operator do ---

    async def agent(self, name: str = "writer") -> Object:
        """An Agent with its Deployment on record; that, to be the owner of pods."""
        spec = {
            "mode": "loop",
            "image": "registry.test/x",
            "loop": {"interval": "30s"},
            "instruction": "look",
        }
        return await self._declared(AGENT, name, spec)

    async def fleet(self, name: str = "workers") -> Object:
        """An AgentFleet, likewise."""
        return await self._declared(AGENT_FLEET, name, {"template": {"image": "registry.test/x"}})

    async def _declared(self, kind: Kind, name: str, spec: Object) -> Object:
        thing = await self.cluster.create(_object(kind, name, spec=spec))
        workload = await self.cluster.create(
            _object(
                DEPLOYMENT,
                name,
                thing,
                spec={"selector": {"matchLabels": {"a": name}}, "template": _template(name)},
            )
        )
        recorded = {"kind": "Deployment", "name": name, "uid": workload["metadata"]["uid"]}
        await self.report(thing, {"workloads": [recorded]})
        return workload

    # --- What the rest of a cluster does ---

    async def replica_set(self, deployment: Object) -> Object:
        """One between a Deployment and its pods, as on Kubernetes."""
        name = deployment["metadata"]["name"]
        spec = {"selector": {"matchLabels": {"a": name}}, "template": _template(name)}
        return await self.cluster.create(_object(REPLICA_SET, f"{name}-5d8f", deployment, spec=spec))

    async def pod(
        self, owner: Object | None, agent: str, *, fleet: str = "", phase: str = "Running"
    ) -> Object:
        """A pod with an agent's labels; without an owner, by somebody who may create pods."""
        name = f"{agent}-{next(self._numbers)}"
        pod = _object(POD, name, owner, spec={"containers": [{"name": "agent", "image": "registry.test/x"}]})
        pod["metadata"]["labels"] = {"agentctl.dev/agent": agent} | (
            {"agentctl.dev/fleet": fleet} if fleet else {}
        )
        made = await self.cluster.create(pod)
        return await self.report(made, {"phase": phase, **(_running() if phase == "Running" else {})})

    async def report(self, thing: Object, status: Object) -> Object:
        """Its status, as whoever runs it says it."""
        metadata = {name: thing["metadata"][name] for name in ("name", "namespace")}
        said = {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "metadata": metadata}
        return await self.cluster.apply({**said, "status": status}, "kubelet", subresource="status")

    async def begins_to_go(self, pod: Object) -> None:
        """It is deleted, and its process has not ended yet."""
        name = pod["metadata"]["name"]
        there = await self.cluster.get(POD, NAMESPACE, name)
        await self.cluster.replace({**there, "metadata": {**there["metadata"], "finalizers": ["test/node"]}})
        await self.cluster.delete(POD, NAMESPACE, name)

    async def exits(self, pod: Object, code: int) -> None:
        """Its agent's process ends, and is started again."""
        ended = {"terminated": {"exitCode": code, "startedAt": BEGAN, "finishedAt": BEGAN, "reason": "Done"}}
        await self.report(pod, {"phase": "Running", **_running("2026-01-02T00:00:00Z", ended)})

    async def serve(self, pod: Object, workload: str) -> DoubleAgent:
        """The agent in a pod, with the certificate of that pod."""
        agent, identity = DoubleAgent(), self._identity(pod, workload)
        served = await self.stack.enter_async_context(agent_serving(agent, identity, port=0))
        self.addresses[pod["metadata"]["uid"]] = served.address
        return agent

    async def mute(self, pod: Object, workload: str) -> None:
        """In that pod calls come in and are never answered."""
        identity = self._identity(pod, workload)
        register = partial(add_AgentServiceServicer_to_server, Mute(MemoryAgent(), pki.own(identity)))
        served = await self.stack.enter_async_context(serving(AGENT_COMPONENT, identity, register))
        self.addresses[pod["metadata"]["uid"]] = served.address

    async def running(self, owner: Object, workload: str, *, fleet: str = "") -> tuple[Object, DoubleAgent]:
        """A pod with its agent."""
        pod = await self.pod(owner, workload, fleet=fleet)
        return pod, await self.serve(pod, workload)

    def _identity(self, pod: Object, workload: str) -> Identity:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        path = f"/ns/{NAMESPACE}/agent/{workload}/pod/{name}/{uid}"
        return ca.identity(self.mesh.authority, self.mesh.folder, path)

    def _address(self, pod: Pod) -> str:
        return self.addresses.get(pod.uid, "127.0.0.1:1")


def order(verb: verbs.Verb, kind: verbs.Kind, name: str, **rest: Any) -> verbs.Order:
    """A verb on an object of the namespace; `pod` is the target's, all else the order's."""
    return verbs.Order(verb, verbs.Target(kind, NAMESPACE, name, rest.pop("pod", "")), **rest)


def _object(kind: Kind, name: str, owner: Object | None = None, **rest: Any) -> Object:
    metadata: Object = {"name": name, "namespace": NAMESPACE}
    if owner:
        metadata["ownerReferences"] = [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **rest}


def _template(name: str) -> Object:
    containers = [{"name": "agent", "image": "registry.test/x"}]
    return {"metadata": {"labels": {"a": name}}, "spec": {"containers": containers}}


def _running(began: str = BEGAN, last: Object | None = None) -> Object:
    container = {
        "name": "agent", "restartCount": 1 if last else 0, "state": {"running": {"startedAt": began}},
        "lastState": last or {},
    }  # fmt: skip
    return {"podIP": "127.0.0.1", "containerStatuses": [container]}
