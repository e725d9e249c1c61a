"""What coordination is told, and what it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import coordination_service_pb2_grpc as pb_grpc
from agentctl.coordination.v1 import work_pb2
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, CRON_JOB, DEPLOYMENT, POD
from libs.cluster.lease import NotLeadingError
from libs.errors import MeshError, QueueInUseError, StaleShardError
from libs.testing.mesh import Mesh
from services.operator.key import Key
from services.operator.plan import Queue, Shards
from services.operator.pods import Ended, ended
from services.operator.queues import Heard, Queues, Remote, Rules

from .world import IMAGE, Told, World


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


_GOING = {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}
_LOST = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]
_EVICTED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]


@pytest.mark.parametrize(
    ("old", "new", "certain"),
    [
        (None, _pod("Running"), None),
        (None, _pod("Failed"), None),  # before our time
        (_pod("Running"), _pod("Running"), None),
        (_pod("Running"), {**_pod("Running"), "metadata": _GOING}, None),  # it drains
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
        self.divided: list[int] = []
        self.refuses: MeshError | None = None
        """Why it divides none."""
        self.meanwhile: Callable[[str], None] = lambda queue: None
        """Called with each queue before it is configured."""

    async def GetQueues(self, request, context):
        self.requests.append(request)
        found = [work_pb2.Queue(name=name, policy=self.policies[name]) for name in request.queues
                 if name in self.policies]  # fmt: skip
        return pb.GetQueuesResponse(queues=found)

    async def ConfigureQueue(self, request, context):
        self.requests.append(request)
        self.meanwhile(request.queue)
        policy = self.policies.setdefault(request.queue, work_pb2.QueuePolicy())
        if request.policy.HasField("agents"):
            policy.ClearField("agents")
        before, count = policy.shards, request.policy.shards.count
        if request.policy.HasField("shards") and count != before.count:
            if self.refuses:
                raise self.refuses
            if request.policy.shards.epoch not in (0, before.epoch):
                raise StaleShardError("it is another one by now")
            self.divided.append(count)
            policy.shards.CopyFrom(work_pb2.Sharding(count=count, epoch=before.epoch + 1))
        request.policy.ClearField("shards")
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


def leading() -> None:
    """Raises nothing."""


async def test_only_what_differs_is_configured_and_only_what_a_fleet_declares(tmp_path):
    async with _remote(tmp_path) as (remote, servicer):
        servicer.policies["demo/f"] = work_pb2.QueuePolicy(max_attempts=3, max_backlog=17)
        with anyio.fail_after(10):
            assert (await remote.configure("demo/f", Rules(5, ("f",)), leading))[0]
            assert servicer.policies["demo/f"].max_backlog == 17  # somebody else's, and still there
            assert servicer.policies["demo/f"].max_attempts == 5
            servicer.requests.clear()
            assert await remote.configure("demo/f", Rules(5, ("f",)), leading) == (False, Shards(0, 0))
            assert [type(request) for request in servicer.requests] == [pb.GetQueuesRequest]
            # and one that is not there yet
            assert (await remote.configure("demo/new", Rules(3, ("f",)), leading))[0]
            await remote.release("demo", "uid-1", "why")
        assert servicer.requests[-1] == pb.ReleaseWorkerRequest(
            namespace="demo", pod_uid="uid-1", reason="why"
        )


async def test_a_division_that_is_not_the_one_that_was_seen_stays(tmp_path):
    def divide(queue: str) -> None:
        servicer.policies[queue] = work_pb2.QueuePolicy(
            max_attempts=3,
            agents=work_pb2.AgentList(names=["f"]),
            shards=work_pb2.Sharding(count=7, epoch=9),
        )

    async with _remote(tmp_path) as (remote, servicer):
        with anyio.fail_after(10):
            await remote.configure("demo/f", Rules(3, ("f",), 4), leading)
            servicer.meanwhile = divide  # between our question and our answer
            with pytest.raises(StaleShardError):
                await remote.configure("demo/f", Rules(3, ("f",), 5, 1), leading)
            servicer.meanwhile = lambda queue: None
            assert await remote.configure("demo/f", Rules(3, ("f",), 5, 1), leading) == (False, Shards(7, 9))
            assert await remote.configure("demo/f", Rules(3, ("f",), 5), leading) == (False, Shards(7, 9))
            assert await remote.configure("demo/f", Rules(3, ("f",), 5, 9), leading) == (True, Shards(5, 10))


async def test_a_queue_that_is_in_use_has_its_other_rules_all_the_same(tmp_path):
    async with _remote(tmp_path) as (remote, servicer):
        servicer.refuses = QueueInUseError("2 items are held")
        with anyio.fail_after(10):
            with pytest.raises(QueueInUseError, match="2 items are held"):
                await remote.configure("demo/f", Rules(5, ("f",), 4), leading)
            assert await remote.configure("demo/f", Rules(5, ("f",)), leading) == (False, Shards(0, 0))


async def test_who_does_not_lead_changes_nothing(tmp_path):
    def refuse() -> None:
        raise NotLeadingError("another one leads")

    async with _remote(tmp_path) as (remote, servicer):
        with anyio.fail_after(10):
            await remote.configure("demo/f", Rules(3, ("f",)), leading)
            servicer.requests.clear()
            for rules in (Rules(5, ("f",)), Rules(3, ("f",), 4)):
                with pytest.raises(NotLeadingError):
                    await remote.configure("demo/f", rules, refuse)
            assert {type(request) for request in servicer.requests} == {pb.GetQueuesRequest}
            assert await remote.configure("demo/f", Rules(3, ("f",)), refuse) == (False, Shards(0, 0))


async def test_shards_are_named_only_when_they_are_to_change(tmp_path):
    async with _remote(tmp_path) as (remote, servicer):
        with anyio.fail_after(10):
            assert await remote.configure("demo/f", Rules(3, ("f",), 4), leading) == (True, Shards(4, 1))
            assert await remote.configure("demo/f", Rules(3, ("f",), 4), leading) == (False, Shards(4, 1))
            assert await remote.configure("demo/f", Rules(3, ("f",)), leading) == (False, Shards(4, 1))
            assert await remote.configure("demo/f", Rules(5, ("f",)), leading) == (True, Shards(4, 1))
            assert await remote.configure("demo/f", Rules(5, ("f",), 0, 1), leading) == (True, Shards(0, 2))
    assert servicer.divided == [4, 0]


def _told(**fleets: Queue) -> tuple[Queues, list[str]]:
    """Fleets in the order of their age, and those of which something else is known now, as they are told."""
    told: list[str] = []
    queues = Queues(lambda namespace, name: None, lambda fleet: told.append(fleet.name))
    for born, (name, queue) in enumerate(fleets.items()):
        queues.set(Key(AGENT_FLEET, "demo", name), queue, str(born))
    return queues, told


def test_a_queue_with_shards_is_that_of_the_oldest_fleet():
    for second in (Queue("q", 9, ("a",), shards=2, reshards=True), Queue("q", 9, ("a",))):
        queues, _ = _told(b=Queue("q", 3, ("b",), shards=3, reshards=True), a=second)
        assert queues.rules("demo", "q") == Rules(3, ("b",), 3)
        queues.settle("demo", "q", "", Shards(3, 1))
        why = "queue q: fleet b has it, and shards are not shared"
        assert queues.trouble(Key(AGENT_FLEET, "demo", "a")) == why
        assert queues.trouble(Key(AGENT_FLEET, "demo", "b")) == ""
        assert queues.heard(Key(AGENT_FLEET, "demo", "b"), "q").shards == Shards(3, 1)
        other = queues.heard(Key(AGENT_FLEET, "demo", "a"), "q")
        assert (other.shards, other.owner) == (None, "b")


def test_a_fleet_that_wants_shards_does_not_divide_the_queue_of_an_older_one():
    queues, told = _told(b=Queue("q", 3, ("b",)), a=Queue("q", 9, ("a",), shards=3, reshards=True))
    assert queues.rules("demo", "q") == Rules(3, ("b",))
    queues.settle("demo", "q", "", Shards(0, 0))
    assert told == ["a"]
    queues.set(Key(AGENT_FLEET, "demo", "b"), None)
    assert queues.rules("demo", "q") == Rules(9, ("a",), 3)
    queues.settle("demo", "q", "", Shards(3, 1))
    assert (told, queues.trouble(Key(AGENT_FLEET, "demo", "a"))) == (["a", "a"], "")


def test_an_older_fleet_without_shards_goes_on_sharing_with_those_that_want_none():
    queues, _ = _told(a=Queue("q", 3, ("a",)), b=Queue("q", 3, ("b",), shards=3), c=Queue("q", 9, ("c",)))
    assert queues.rules("demo", "q") == Rules(9, ("a", "c"))
    queues.settle("demo", "q", "", Shards(0, 0))
    troubles = [queues.trouble(Key(AGENT_FLEET, "demo", name)) for name in "abc"]
    assert troubles == ["", "queue q: fleet a has it, and shards are not shared", ""]


def test_a_queue_on_which_others_are_at_work_is_not_divided():
    woken: list[str] = []
    queues = Queues(lambda namespace, name: woken.append(name), lambda fleet: None)
    a, b, gone = (Key(AGENT_FLEET, "demo", name) for name in ("a", "b", "gone"))
    queues.set(a, Queue("q", 3, ("a",), shards=3, reshards=True), "1")
    queues.set(b, Queue("q", 3, ("b",)), "2", frozenset({"q"}))
    queues.set(gone, None, at_work=frozenset({"q"}))
    assert queues.rules("demo", "q") == Rules(3, ("a", "b")), "who is to end may still say what it has done"
    queues.settle("demo", "q", "", Shards(0, 0))
    assert queues.heard(a, "q").wait == "agents of fleet b, gone are still at work on it"
    woken.clear()
    queues.set(b, Queue("q", 3, ("b",)), "2")
    assert (queues.rules("demo", "q"), woken) == (Rules(3, ("a",)), ["q"])
    queues.set(gone, None)
    assert (queues.rules("demo", "q"), woken) == (Rules(3, ("a",), 3), ["q", "q"])
    queues.settle("demo", "q", "", Shards(0, 0))
    assert queues.heard(a, "q").wait == ""
    woken.clear()
    queues.set(Key(AGENT_FLEET, "demo", "elsewhere"), None, at_work=frozenset({"other"}))
    assert woken == []


def test_the_division_that_goes_is_the_one_that_was_seen():
    queues, _ = _told(a=Queue("q", 3, ("a",), shards=3))
    queues.settle("demo", "q", "", Shards(2, 7))
    queues.set(Key(AGENT_FLEET, "demo", "a"), Queue("q", 3, ("a",), shards=3, reshards=True), "0")
    assert queues.rules("demo", "q") == Rules(3, ("a",), 3, 7)


def test_what_was_known_is_forgotten():
    queues, _ = _told(a=Queue("q", 3, ("a",), shards=3))
    fleet = Key(AGENT_FLEET, "demo", "a")
    queues.settle("demo", "q", "", Shards(3, 7))
    queues.forget()
    assert queues.rules("demo", "q") is None
    queues.set(fleet, Queue("q", 3, ("a",), shards=3), "0")
    assert queues.heard(fleet, "q") == Heard()


def test_shards_go_when_every_fleet_of_the_queue_lets_go():
    free = Queue("q", 3, ("x",), reshards=True)
    queues, told = _told(a=free, b=Queue("q", 3, ("x",)))
    assert queues.rules("demo", "q") == Rules(3, ("x",))
    queues.set(Key(AGENT_FLEET, "demo", "b"), free)
    assert queues.rules("demo", "q") == Rules(3, ("x",), 0)
    queues.settle("demo", "q", "", Shards(0, 2))
    assert told == [], "nothing that matters to a fleet without shards"


def test_what_is_known_of_one_queue_is_not_said_of_another():
    queues, _ = _told(a=Queue("q", 3, ("a",), shards=3))
    fleet = Key(AGENT_FLEET, "demo", "a")
    queues.settle("demo", "q", "", Shards(3, 7))
    assert queues.heard(fleet, "q").shards == Shards(3, 7)
    assert queues.heard(fleet, "other").shards is None
    queues.set(fleet, Queue("other", 3, ("a",), shards=3))
    assert queues.heard(fleet, "other").shards is None
    queues.set(fleet, Queue("q", 3, ("a",), shards=3))
    assert queues.heard(fleet, "q").shards is None, "it is asked again"


async def test_an_agent_has_no_queue(local: World):
    told = Told()
    async with local.operator(coordination=told) as operator:
        await local.apply(local.agent("x", "schedule"))
        await local.there(CRON_JOB, "x")
        await local.settle(operator, AGENT, ["x"])
    assert told.queues == {}
