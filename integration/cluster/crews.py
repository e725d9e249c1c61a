"""A claim fleet whose work is held at gates, and ways besides kubectl to steer it: gRPC and the CLI."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentctl.coordination.v1 import coordination_service_pb2 as coordination_pb2
from agentctl.coordination.v1 import work_pb2
from agentctl.management.v1 import management_service_pb2 as pb
from agentctl.management.v1.management_service_pb2_grpc import ManagementServiceStub
from libs.cluster import Object
from libs.identity import Identity, Principal
from libs.mesh import APISERVER
from libs.rpc.client import dial
from libs.work import Work, connect

from .kubectl import SYSTEM, Kubectl
from .person import Person
from .world import World, is_ready, restarts, script, work

NAME = "crew"
API = "/apis/management.agentctl.dev/v1alpha1"


@dataclass(frozen=True)
class Crew:
    """A fleet of two agents, each with one slot."""

    world: World
    identity: Identity
    """Of somebody who submits work."""
    coordination: str
    """Its address."""

    @property
    def api(self) -> str:
        """Where its verbs are."""
        return f"{API}/namespaces/{self.world.namespace}/agentfleets/{NAME}"

    # --- its work

    def submit(self, *scripts: str) -> list[str]:
        """The ids of these items."""
        works = [Work(each.encode()) for each in scripts]

        async def do() -> None:
            async with connect(self.coordination, self.identity) as client:
                verdicts = await client.submit_all(f"{self.world.namespace}/{NAME}", works)
                assert not [each for each in verdicts if isinstance(each, Exception)]

        asyncio.run(do())
        return [each.id for each in works]

    def begin(self, *names: str) -> list[str]:
        """Items of which each is in a call of the tool, at the gate of its name."""
        ids = self.submit(*(script(work(name, wait=name), {"say": f"{name} done"}) for name in names))
        for name in names:
            self.world.at(name)
        return ids

    def items(self, ids: Sequence[str]) -> list[work_pb2.Item]:
        """Where these stand."""

        async def do() -> list[work_pb2.Item]:
            async with connect(self.coordination, self.identity) as client:
                request = coordination_pb2.GetItemsRequest(item_ids=ids)
                found = {item.id: item for item in (await client.stub.GetItems(request)).items}
            return [found[id] for id in ids]

        return asyncio.run(do())

    def item(self, id: str) -> work_pb2.Item:
        """Where it stands."""
        return self.items([id])[0]

    def settled(self, *ids: str) -> list[work_pb2.Item]:
        """These, when all have come to an end."""
        ended = (work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD)

        def all_of() -> list[work_pb2.Item] | None:
            items = self.items(ids)
            return items if all(item.state in ended for item in items) else None

        return self.world.until(all_of)

    def holder(self, id: str) -> str:
        """The pod that has it, or had it last."""
        return Principal.parse(self.item(id).holder).pod

    # --- its pods

    def pods(self) -> dict[str, Object]:
        """Those that stay, by name."""
        found = [pod for pod in self.world.pods(NAME) if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: pod for pod in found}

    def other(self, than: str) -> str:
        """The second pod."""
        [name] = self.pods().keys() - {than}
        return name

    def told(self) -> dict[str, Any]:
        """What its agents say of themselves, by pod."""
        answer = json.loads(self.world.kubectl("get", "--raw", f"{self.api}/status"))
        return {each["pod"]: each.get("status", {}) for each in answer["pods"]}

    def await_ready(self, pod: str, ready: bool) -> None:
        """Returns when Kubernetes says so."""
        self.world.until(lambda: is_ready(self.pods()[pod]) is ready)

    def exit_of(self, pod: str) -> tuple[int, int]:
        """How often its process was started again, and with what the one before ended, when there is one."""

        def ended() -> tuple[int, int] | None:
            found = self.pods()[pod]
            [status] = found["status"]["containerStatuses"]
            state = status["lastState"].get("terminated")
            return state and (restarts(found), int(state["exitCode"]))

        return self.world.until(ended)

    def anew(self) -> None:
        """Idle, ready, and of processes that were never ended: the kubelet lets others wait."""
        for gate, count in self.world.seen()["waiting"].items():
            if count:
                self.world.open(gate)
        self.world.kubectl.post(f"{self.api}/resume")
        self.world.kubectl.post(f"{self.api}/lame-duck", undo=True)
        for name, pod in self.pods().items():
            if restarts(pod):
                self.world.kubectl("delete", "pod", name, "-n", self.world.namespace)

        def is_so() -> bool:
            pods = self.pods().values()
            return len(pods) == 2 and all(is_ready(pod) and not restarts(pod) for pod in pods)

        self.world.until(is_so)


@contextmanager
def crew(world: World, folder: Path) -> Iterator[Crew]:
    """The fleet, while the block runs."""
    world.kubectl.apply(world.fleet(NAME, 2))
    world.kubectl.wait("condition=Ready", f"agentfleet/{NAME}", world.namespace)
    person = Person(world.kubectl, world.namespace, "producer")
    person.bind("agentctl-user")
    identity = asyncio.run(person.certified(folder))
    with world.kubectl.forwarded("service/coordination", 7410, SYSTEM) as address:
        yield Crew(world, identity, address)


# --- ways to steer it


@dataclass(frozen=True)
class Stub:
    """ManagementService, at an address."""

    identity: Identity
    address: str
    namespace: str

    def __call__(self, verb: str, *, pod: str = "", until: str = "accepted", **said: Any) -> bool:
        """Whether all pods came so far. `run_id`, `undo`, and what is of one verb. Errors of the mesh."""
        terms = pb.Terms(until=pb.Stage.Value(f"STAGE_{until.upper().replace('-', '_')}"))
        terms.deadline.FromSeconds(40)
        rpc = "".join(map(str.capitalize, verb.split("-")))
        target = pb.Target(namespace=self.namespace, fleet=NAME, pod=pod)
        request = getattr(pb, f"{rpc}Request")(target=target, terms=terms, **said)

        async def do() -> bool:
            async with dial(APISERVER, self.address, self.identity) as channel:
                report: pb.Report = (
                    await getattr(ManagementServiceStub(channel), rpc)(request, timeout=50)
                ).report
                return bool(0 < report.done_count == len(report.outcomes))

        return asyncio.run(do())


@dataclass(frozen=True)
class Program:
    """`agentctl`, with these options."""

    options: Sequence[str]
    namespace: str
    folder: Path
    """In which no plane runs."""

    def __call__(
        self, verb: str, *, pod: str = "", until: str = "accepted", run_id: str = "", undo: bool = False
    ) -> bool:
        """Whether it exited with 0."""
        words = [verb, f"fleet/{NAME}", "-n", self.namespace, "--until", until, "--deadline", "40s"]
        words += ["--pod", pod] if pod else []
        words += ["--run", run_id] if run_id else []
        words += ["--undo"] if undo else []
        return agentctl(self.folder, *words, *self.options).returncode == 0


def agentctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The program, with its state in that folder."""
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *words, "--state-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def entered(kubectl: Kubectl, account: str, folder: Path) -> Path:
    """A certificate folder by `agentctl login`, for a ServiceAccount NAMESPACE/NAME that may have one."""
    namespace = account.partition("/")[0]
    with kubectl.forwarded("service/operator", 7412, SYSTEM) as address:
        words = ("login", "--user", namespace, "--service-account", account, "--identity-address", address)
        where = ("--kubeconfig", str(kubectl.kubeconfig), "--tls-dir", str(folder))
        done = agentctl(folder, *words, *where)
    assert done.returncode == 0, done
    return folder
