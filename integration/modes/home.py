"""A local home with a scripted model, as tests of modes drive it: by manifests, the plane, and kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agentctl.agent.v1 import agent_service_pb2 as agent_pb
from agentctl.agent.v1.agent_service_pb2_grpc import AgentServiceStub
from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb
from agentctl.coordination.v1 import work_pb2
from agentctl.management.v1.management_service_pb2_grpc import ManagementServiceStub
from agentctl.resource.v1 import resource_service_pb2 as pb
from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceStub
from libs import pki
from libs.documents import document_of
from libs.identity import Identity, Principal
from libs.mesh import AGENT, APISERVER, PLANE
from libs.rpc.client import dial
from libs.state import ADMINISTRATOR, State
from libs.work import Client, Work, connect

from ..machine import Machine, until
from ..scripted import Model, Reply, Script
from ..toolserver import ToolServer

NAMESPACE = "modes"
Json = dict[str, Any]


@dataclass(frozen=True)
class Home:
    """The plane of a machine, and the model of its pools."""

    machine: Machine
    model: Model

    # What people say

    def start(
        self,
        name: str,
        *replies: Reply,
        tools: ToolServer | None = None,
        kind: str = "Agent",
        is_held: bool = False,
        **spec: Any,
    ) -> Script:
        """Applies an agent with a pool of its own, whose model says that; `is_held`: when it is released."""
        script = self.model.script(*replies)
        if is_held:
            script.hold()
        self.apply(*manifests(name, script.url, tools, kind, spec))
        return script

    def apply(self, *things: Json) -> None:
        """`agentctl apply`."""
        self.machine.done("apply", "-f", "-", stdin="\n---\n".join(json.dumps(each) for each in things))

    def delete(self, name: str, kind: str = "agent") -> None:
        """`agentctl delete`."""
        self.machine.done("delete", f"{kind}/{name}", "-n", NAMESPACE)

    def logs(self, name: str) -> str:
        """`agentctl logs`."""
        return self.machine.done("logs", f"agent/{name}", "-n", NAMESPACE)

    def manage(self, method: str, request: Any) -> Any:
        """Calls ManagementService as the administrator."""

        async def call() -> Any:
            address = State(self.machine.state).running()["apiserver"]
            async with dial(APISERVER, address, self._identity) as channel:
                return await getattr(ManagementServiceStub(channel), method)(request)

        return asyncio.run(call())

    def submit(self, queue: str, *texts: str) -> list[str]:
        """Submits an item for each text; their ids."""
        works = [Work(text.encode(), content_type="text/plain") for text in texts]

        async def do() -> None:
            async with self._coordination() as client:
                verdicts = await client.submit_all(queue, works)
                assert not [each for each in verdicts if isinstance(each, Exception)]

        asyncio.run(do())
        return [work.id for work in works]

    # What the plane says

    def items(self, ids: Sequence[str]) -> list[work_pb2.Item]:
        """Where these items stand."""

        async def get() -> list[work_pb2.Item]:
            async with self._coordination() as client:
                answer = await client.stub.GetItems(coordination_pb.GetItemsRequest(item_ids=ids))
                found = {item.id: item for item in answer.items}
                return [found[id] for id in ids]

        return asyncio.run(get())

    def status(self, name: str, kind: str = "Agent") -> Json:
        """The status of an object."""

        async def get() -> Json:
            async with self._plane() as plane:
                found = await plane.Get(pb.GetRequest(kind=kind, namespace=NAMESPACE, name=name))
                return document_of(found.object).get("status") or {}

        return asyncio.run(get())

    def ended(self, name: str, runs: int | None = 1) -> Json:
        """The last run of an agent, when so many have ended; None: however many."""
        found: list[Json] = [{}]

        def is_over() -> bool:
            found.append(self.status(name))
            last = found[-1].get("lastRun") or {}
            is_it = runs is None or found[-1].get("runs", 0) == runs
            return is_it and last.get("outcome") in ("Succeeded", "Failed")

        until(is_over, f"{name} does not end")
        last: Json = found[-1]["lastRun"]
        return last

    def pods(self, name: str) -> Sequence[Json]:
        """Of an agent or a fleet, oldest first, ended ones too."""
        return asyncio.run(self._pods(name))

    def codes(self, name: str) -> list[int]:
        """How the agent in each of its pods ended, oldest first; -1 of those that have not."""
        states = [_container(pod).get("state", {}) for pod in self.pods(name)]
        return [state.get("terminated", {}).get("exitCode", -1) for state in states]

    def restarts(self, name: str) -> int:
        """How often the agent was started again within its pods."""
        return sum(int(_container(pod).get("restartCount", 0)) for pod in self.pods(name))

    def wait(self, name: str) -> None:
        """Returns when all its pods are ready."""

        def is_ready() -> bool:
            pods = self.pods(name)
            return bool(pods) and all(_container(pod).get("ready") for pod in pods)

        until(is_ready, f"{name} is not ready")

    def told(self, name: str) -> agent_pb.GetStatusResponse:
        """What the only agent of that name says of itself (`AgentService.GetStatus`)."""

        async def ask() -> agent_pb.GetStatusResponse:
            [pod] = await self._pods(name)
            me, metadata = pki.own(self._identity), pod["metadata"]
            own = f"/ns/{NAMESPACE}/agent/{name}/pod/{metadata['name']}/{metadata['uid']}"
            server = Principal.parse(f"spiffe://{me.domain}{own}")
            address = f"{pod['status']['podIP']}:{AGENT.port}"
            async with dial(AGENT, address, self._identity, server=server) as channel:
                return await AgentServiceStub(channel).GetStatus(agent_pb.GetStatusRequest())

        return asyncio.run(ask())

    def last_words(self, name: str, act: Callable[[], None]) -> Json:
        """Does what ends the only pod of an agent; the state of the agent in it when it was gone."""

        async def watch() -> Json:
            async with self._plane() as plane:
                chosen: Json = {"kind": "Pod", "namespace": NAMESPACE, "label_selector": _selector(name)}
                revision = (await plane.List(pb.ListRequest(**chosen))).revision
                changes = plane.Watch(pb.WatchRequest(**chosen, revision=revision))
                acting = asyncio.create_task(asyncio.to_thread(act))
                async with asyncio.timeout(30):
                    async for change in changes:
                        if change.type == pb.CHANGE_TYPE_DELETED:
                            await acting
                            return _container(document_of(change.object))
            raise AssertionError(f"the pod of {name} does not go")

        return asyncio.run(watch())

    # What happens to agents

    def kill(self, name: str) -> None:
        """kill -9 of the only process of an agent."""
        [pid] = self.processes(name).values()
        os.kill(pid, signal.SIGKILL)

    def processes(self, name: str) -> dict[str, int]:
        """Those that run, by their pods."""
        found = {}
        for pod in self.pods(name):
            container = _container(pod)
            if "running" in container.get("state", {}):
                found[pod["metadata"]["name"]] = int(container["containerID"].removeprefix("process://"))
        return found

    @property
    def _identity(self) -> Identity:
        return Identity(State(self.machine.state).identity(ADMINISTRATOR))

    @asynccontextmanager
    async def _plane(self) -> AsyncIterator[Any]:
        async with dial(PLANE, State(self.machine.state).running()["plane"], self._identity) as channel:
            yield ResourceServiceStub(channel)

    @asynccontextmanager
    async def _coordination(self) -> AsyncIterator[Client]:
        address = State(self.machine.state).running()["coordination"]
        async with connect(address, self._identity) as client:
            yield client

    async def _pods(self, name: str) -> Sequence[Json]:
        async with self._plane() as plane:
            chosen = pb.ListRequest(kind="Pod", namespace=NAMESPACE, label_selector=_selector(name))
            pods = [document_of(each) for each in (await plane.List(chosen)).objects]
        return sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], _began(pod)))


def manifests(
    name: str, endpoint: str, tools: ToolServer | None = None, kind: str = "Agent", spec: Json | None = None
) -> Sequence[Json]:
    """An agent or fleet, its pool, and its tool servers."""
    spec = deepcopy(spec or {})
    part = spec.setdefault("template", {}) if kind == "AgentFleet" else spec
    part.setdefault("model", {"pool": name})
    things = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        _thing("ModelPool", name, {"endpoint": endpoint, "models": ["scripted"]}),
    ]
    if tools:
        part["mcpServers"] = [name]
        things.append(
            _thing("MCPServerSet", name, {"servers": [{"name": "tools", "endpoint": tools.endpoint}]})
        )
    return [*things, _thing(kind, name, spec)]


def _thing(kind: str, name: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "agentctl.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _selector(name: str) -> str:
    return f"agentctl.dev/agent={name}"


def _container(pod: Json) -> Json:
    """The agent's entry in the pod's status; {} before there is one."""
    found = pod.get("status", {}).get("containerStatuses") or [{}]
    first: Json = found[0]
    return first


def _began(pod: Json) -> str:
    state = _container(pod).get("state", {})
    return str((state.get("running") or state.get("terminated") or {}).get("startedAt", "~"))
