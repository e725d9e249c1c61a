"""What coordination is told, and what it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, CRON_JOB, DEPLOYMENT, POD
from libs.errors import ExhaustedError, InvalidError, UnavailableError
from libs.testing.mesh import Mesh
from services.operator.key import Key
from services.operator.plan import Queue
from services.operator.pods import Ended, ended
from services.operator.queues import Queues, Remote

from .world import IMAGE, World


@dataclass
class Told:
    """A coordination that keeps what it was told."""

    queues: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    configured: int = 0
    released: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False
    refuses: str = ""

    async def configure(self, queue: str, max_attempts: int, agents: tuple[str, ...]) -> bool:
        if self.down:
            raise UnavailableError("down")
        if self.refuses:
            raise ExhaustedError(self.refuses)
        changed = self.queues.get(queue) != (max_attempts, agents)
        self.queues[queue] = max_attempts, agents
        self.configured += changed
        return changed

    async def release(self, namespace: str, pod_uid: str, reason: str) -> None:
        self.released.append((namespace, pod_uid))
        if self.refuses:
            raise InvalidError(self.refuses)


@dataclass
class Denied:
    """Identities of which only the denials matter."""

    pods: list[Ended] = field(default_factory=list)

    async def publish(self, namespace: str) -> None: ...

    async def deny(self, ended: Ended) -> None:
        self.pods.append(ended)

    async def lead(self) -> None: ...


async def test_a_fleets_queue_is_configured_and_shared(local: World):
    told = Told()
    async with local.operator(coordination=told):
        await local.apply(local.fleet("f", work={"maxAttempts": 7}))
        await local.until(lambda: told.queues.get("demo/f") == (7, ("f",)))
        await local.apply(
            local.fleet("f", work={"maxAttempts": 7}, coordinator={"template": {"image": IMAGE}})
        )
        await local.until(lambda: told.queues.get("demo/f") == (7, ("f", "f-coordinator")))
        await local.apply(local.fleet("g", work={"queue": "f", "maxAttempts": 9}))
        await local.until(lambda: told.queues.get("demo/f") == (9, ("f", "f-coordinator", "g")))
        await local.cluster.delete(AGENT_FLEET, local.namespace, "g")
        await local.until(lambda: told.queues.get("demo/f") == (7, ("f", "f-coordinator")))


async def test_a_coordination_that_is_down_holds_up_no_agent(local: World):
    told = Told(down=True)
    async with local.operator(coordination=told) as operator:
        await local.apply(local.fleet("f"))
        await local.accepted(AGENT_FLEET, "f", status="True")
        await local.until(lambda: "Queue demo/f" in {str(work) for work in operator.controller.failing})
        told.down = False
        await local.until(lambda: "demo/f" in told.queues)
        await local.until(lambda: not operator.controller.failing)


async def test_a_fleet_says_that_its_queue_is_refused_for_as_long_as_it_is(local: World):
    told = Told(refuses="namespace demo has its most queues (1)")
    async with local.operator(coordination=told):
        await local.apply(local.fleet("f"))
        said = await local.condition(AGENT_FLEET, "f", "QueueConfigured", "QueueRefused", "False")
        assert said["message"] == "queue f: namespace demo has its most queues (1)"
        told.refuses = ""
        await local.until(lambda: "demo/f" in told.queues)

        async def is_well() -> bool:
            conditions = (await local.get(AGENT_FLEET, "f"))["status"]["conditions"]
            return "QueueConfigured" not in {each["type"] for each in conditions}

        await local.until(is_well)


def test_agents_for_which_a_queue_has_no_room_are_named():
    told: list[Key] = []
    queues = Queues(lambda namespace, name: None, told.append)
    fleets = [Key(AGENT_FLEET, "demo", f"f{number:02}") for number in range(66)]
    for fleet in fleets:
        queues.set(fleet, Queue("q", 3, (fleet.name,)))
    queues.settle("demo", "q", "")
    assert told == fleets[64:]
    assert queues.trouble(fleets[65]) == "queue q: it has its 64 agents without f65"
    assert queues.trouble(fleets[0]) == ""
    queues.set(fleets[0], None)
    queues.settle("demo", "q", "")
    assert (told[2:], queues.trouble(fleets[64])) == ([fleets[64]], "")


async def test_a_pod_whose_end_coordination_refuses_does_not_fail_for_ever(local: World):
    told = Told()
    async with local.operator(coordination=told, identities=Denied()) as operator:
        await local.apply(local.fleet("f"))
        pod = await local.pod(await local.there(DEPLOYMENT, "f"), "f", fleet="f")
        await local.until(lambda: told.queues)
        told.refuses = "no such pod"
        await local.report(pod, {"phase": "Failed"})
        await local.until(lambda: told.released)
        await local.settle(operator, AGENT_FLEET, ["f"])
        assert not operator.controller.failing


async def test_what_a_pod_held_comes_back_once_its_node_says_that_it_ended(local: World):
    told, denied = Told(), Denied()
    async with local.operator(coordination=told, identities=denied):
        await local.apply(local.fleet("f"))
        pod = await local.pod(await local.there(DEPLOYMENT, "f"), "f", fleet="f")
        await local.until(lambda: told.queues)
        await local.report(pod, {"phase": "Failed"})
        uid = pod["metadata"]["uid"]
        await local.until(lambda: told.released == [("demo", uid)])
        assert [(each.agent, each.uid, each.certain) for each in denied.pods] == [("f", uid, True)]


async def test_a_pod_deleted_by_force_is_denied_and_keeps_its_leases(local: World):
    told, denied = Told(), Denied()
    async with local.operator(coordination=told, identities=denied):
        await local.apply(local.fleet("f"))
        pod = await local.pod(await local.there(DEPLOYMENT, "f"), "f", fleet="f")
        await local.accepted(AGENT_FLEET, "f", status="True")
        await local.cluster.delete(POD, local.namespace, pod["metadata"]["name"])
        await local.bury(pod["metadata"]["name"])
        await local.until(lambda: [each.uid for each in denied.pods] == [pod["metadata"]["uid"]])
        assert told.released == []


async def test_whom_to_trust_is_published_where_there_are_agents_and_again_if_it_is_gone(local: World):
    class Publishing(Denied):
        published = 0

        async def publish(self, namespace: str) -> None:
            self.published += 1
            metadata = {
                "name": "agentctl-trust",
                "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": "agentctl"},
            }
            thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
            await local.cluster.apply(thing, "agentctl-operator")

    identities = Publishing()
    async with local.operator(identities=identities) as operator:
        assert identities.published == 0
        await local.apply(local.agent("x", "schedule"))
        await local.there(CRON_JOB, "x")
        await local.settle(operator, AGENT, ["x"])
        assert identities.published == 1
        await local.cluster.delete(CONFIG_MAP, local.namespace, "agentctl-trust")
        await local.apply(local.agent("y", "schedule"))
        await local.there(CONFIG_MAP, "agentctl-trust")


def _pod(phase: str, **status: object) -> dict[str, object]:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": {"agentctl.dev/agent": "a"}}
    return {"metadata": metadata, "status": {"phase": phase, **status}}


_LOST = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]
_EVICTED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]


@pytest.mark.parametrize(
    ("old", "new", "certain"),
    [
        (None, _pod("Running"), None),
        (None, _pod("Failed"), None),  # before our time
        (_pod("Running"), _pod("Running"), None),
        (_pod("Running"), _pod("Failed"), True),
        (_pod("Running"), _pod("Succeeded"), True),
        (_pod("Failed"), _pod("Failed"), None),  # was told already
        (_pod("Running"), _pod("Failed", conditions=_LOST), False),
        (_pod("Running"), _pod("Failed", conditions=_EVICTED), True),
        (_pod("Running"), None, False),  # deleted by force
        (_pod("Failed"), None, True),
        (_pod("Failed", conditions=_LOST), None, False),
    ],
)
def test_when_a_pod_has_ended(old, new, certain):
    end = ended(old, new)
    assert (end and end.certain) == certain


class _Servicer(pb_grpc.CoordinationServiceServicer):
    """The three methods, as coordination documents them: absent fields of a policy keep their value."""

    def __init__(self) -> None:
        self.policies: dict[str, work_pb2.QueuePolicy] = {}
        self.requests: list[object] = []

    async def GetQueues(self, request, context):
        self.requests.append(request)
        found = [work_pb2.Queue(name=name, policy=self.policies[name]) for name in request.queues
                 if name in self.policies]  # fmt: skip
        return pb.GetQueuesResponse(queues=found)

    async def ConfigureQueue(self, request, context):
        self.requests.append(request)
        policy = self.policies.setdefault(request.queue, work_pb2.QueuePolicy())
        if request.policy.HasField("agents"):
            policy.ClearField("agents")
        policy.MergeFrom(request.policy)
        return pb.ConfigureQueueResponse(queue=work_pb2.Queue(name=request.queue, policy=policy))

    async def ReleaseWorker(self, request, context):
        self.requests.append(request)
        return pb.ReleaseWorkerResponse()


@asynccontextmanager
async def _remote(folder) -> AsyncIterator[tuple[Remote, _Servicer]]:
    mesh = Mesh(folder)
    servicer = _Servicer()  # type: ignore[abstract]  # the other methods are not called
    async with (
        mesh.serve(lambda server: pb_grpc.add_CoordinationServiceServicer_to_server(servicer, server)) as up,
        mesh.dial_as("cp/operator", up) as channel,
    ):
        yield Remote(pb_grpc.CoordinationServiceStub(channel)), servicer


async def test_only_what_differs_is_configured_and_only_what_a_fleet_declares(tmp_path):
    async with _remote(tmp_path) as (remote, servicer):
        servicer.policies["demo/f"] = work_pb2.QueuePolicy(max_attempts=3, max_backlog=17)
        with anyio.fail_after(10):
            assert await remote.configure("demo/f", 5, ("f",))
            assert servicer.policies["demo/f"].max_backlog == 17  # somebody else's, and still there
            assert servicer.policies["demo/f"].max_attempts == 5
            servicer.requests.clear()
            assert not await remote.configure("demo/f", 5, ("f",))
            assert [type(request) for request in servicer.requests] == [pb.GetQueuesRequest]
            assert await remote.configure("demo/new", 3, ("f",))  # and one that is not there yet
            await remote.release("demo", "uid-1", "why")
        assert servicer.requests[-1] == pb.ReleaseWorkerRequest(
            namespace="demo", pod_uid="uid-1", reason="why"
        )


async def test_an_agent_has_no_queue(local: World):
    told = Told()
    async with local.operator(coordination=told) as operator:
        await local.apply(local.agent("x", "schedule"))
        await local.there(CRON_JOB, "x")
        await local.settle(operator, AGENT, ["x"])
    assert told.queues == {}
