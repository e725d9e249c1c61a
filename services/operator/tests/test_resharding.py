"""A fleet's queue is divided anew: its workers end first, whoever dies or is away meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import pytest

from libs.cluster import Object
from libs.cluster.kinds import AGENT_FLEET, DEPLOYMENT, POD, SERVICE, STATEFUL_SET, Kind
from libs.cluster.lease import NotLeadingError
from libs.cluster.local import open_local
from libs.errors import MeshError, NotFoundError
from services.operator.cache import Cache
from services.operator.controller import Controller
from services.operator.key import Key
from services.operator.plan import Queue, Shards
from services.operator.plan.owned import AGENT_LABEL, FLEET_LABEL
from services.operator.reconciler import Pass

from .world import IMAGE, NODE, Counting, Mortal, Told, World, namespace


@dataclass
class Shop:
    """Where a sharded fleet works: the controllers of its workloads make pods and end them, and the queue is
    never divided while one may work."""

    world: World
    told: Told = field(default_factory=Told)
    holding: bool = False
    """Whether pods that have to go go on for now."""
    divided: list[int] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.told.dividing = self._dividing

    def fleet(self, replicas: int = 3, mode: str = "shard", **spec: object) -> Object:
        return self.world.fleet("f", replicas=replicas, scaling={"mode": mode}, **spec)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Shop]:
        async with anyio.create_task_group() as group:
            for kind in (DEPLOYMENT, STATEFUL_SET):
                group.start_soon(self._controller, kind)
            group.start_soon(self._nodes)
            yield self
            group.cancel_scope.cancel()
        assert not self.wrong

    async def workers(self, count: int, epoch: int) -> Object:
        """The StatefulSet, once it is that of these shards."""

        async def look() -> Object | None:
            found = await self.world.find(STATEFUL_SET, "f")
            if found is None or found["metadata"].get("deletionTimestamp"):
                return None
            said = environment(found)
            wanted = {"AGENT_SHARD_COUNT": str(count), "AGENT_SHARD_EPOCH": str(epoch)}
            return found if said.items() >= wanted.items() and found["spec"]["replicas"] == count else None

        found: Object = await self.world.until(look, f"{count} shards of epoch {epoch}")
        return found

    async def release(self) -> None:
        """Pods that have to go are done."""
        self.holding = False
        for pod in (await self.world.cluster.list(POD, self.world.namespace)).items:
            await self._bury(pod)

    def _dividing(self, queue: str, count: int) -> None:
        self.divided.append(count)
        if self.alive:
            self.wrong.append(f"{queue} is divided by {count} while {self.alive} may work")

    async def _controller(self, kind: Kind) -> None:
        async for change in self.world.cluster.watch(kind, self.world.namespace):
            if change.type == "ADDED":
                labels = change.object["spec"]["template"]["metadata"]["labels"]
                for _ in range(change.object["spec"].get("replicas", 1)):
                    with suppress(MeshError):  # deleted meanwhile
                        await self.world.pod(change.object, labels[AGENT_LABEL], fleet=labels[FLEET_LABEL])

    async def _nodes(self) -> None:
        async for change in self.world.cluster.watch(POD, self.world.namespace):
            name = change.object["metadata"]["name"]
            if change.type == "DELETED":
                self.alive.discard(name)
                continue
            self.alive.add(name)
            if not self.holding:
                await self._bury(change.object)

    async def bury_when_it_goes(self, pod: Object) -> None:
        """This pod is done, as soon as it has to go."""
        name = pod["metadata"]["name"]

        async def gone() -> bool:
            with suppress(NotFoundError):
                await self._bury(await self.world.get(POD, name))
                return False
            return True

        await self.world.until(gone)

    async def _bury(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if "deletionTimestamp" in metadata and NODE in metadata.get("finalizers", ()):
            with suppress(MeshError):
                await self.world.bury(metadata["name"])


def environment(workers: Object) -> dict[str, str]:
    containers = workers["spec"]["template"]["spec"]["containers"]
    agent = next(each for each in containers if each["name"] == "agent")
    return {each["name"]: each.get("value", "") for each in agent["env"]}


@pytest.fixture
async def shop(local: World) -> AsyncIterator[Shop]:
    async with Shop(local).open() as shop:
        yield shop


async def sharded(shop: Shop, reason: str = "", status: str = "") -> Object:
    return await shop.world.condition(AGENT_FLEET, "f", "Sharded", reason, status)


async def test_a_queue_that_is_not_there_yet_is_made_with_its_shards(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(3))
        workers = await shop.workers(3, 1)
        assert workers["spec"]["serviceName"] == "f"
        assert (await world.get(SERVICE, "f"))["spec"]["clusterIP"] == "None"
        said = await sharded(shop, "Sharded", "True")
        assert said["message"] == "3 shards, epoch 1"
        await world.settle(operator, AGENT_FLEET, ["f"])
        status = (await world.get(AGENT_FLEET, "f"))["status"]
        assert status["shards"] == {"count": 3, "epoch": 1}
        assert [each["kind"] for each in status["workloads"]] == ["StatefulSet"]
        full = {
            "observedGeneration": workers["metadata"]["generation"],
            **dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), 3),
        }
        await world.report(workers, full)
        ready = await world.condition(AGENT_FLEET, "f", "Ready", status="True")
        assert ready["message"] == "3 of 3 ready"
        status = (await world.get(AGENT_FLEET, "f"))["status"]
        assert (status["replicas"], status["readyReplicas"]) == (3, 3)
        assert shop.divided == [3]


async def test_from_3_to_5_to_2_each_time_when_nobody_works(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await world.until(lambda: len(shop.alive) == 3)
        shop.holding = True
        await world.apply(shop.fleet(5))

        async def waits() -> bool:
            status = (await world.get(AGENT_FLEET, "f"))["status"]
            reasons = {each["type"]: each["reason"] for each in status["conditions"]}
            return bool(reasons["Sharded"] == "Resharding")

        await world.until(waits)
        for _ in range(3):
            await world.settle(operator, AGENT_FLEET, ["f"])
        assert shop.divided == [3]
        assert len(shop.alive) == 3
        await shop.release()
        await shop.workers(5, 2)
        await world.until(lambda: len(shop.alive) == 5)
        await world.apply(shop.fleet(2))
        await shop.workers(2, 3)
        await sharded(shop, "Sharded", "True")
        assert shop.divided == [3, 5, 2]

        async def told() -> bool:
            notes = [each["note"] for each in await world.events() if each["reason"] == "Deleted"]
            why = "StatefulSet f: its shards change: its agents finish or hand back first"
            return notes == [why, why]

        await world.until(told)


async def test_pods_without_a_workload_count_until_they_have_ended(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await world.until(lambda: len(shop.alive) == 3)
    shop.holding = True
    await world.cluster.delete(STATEFUL_SET, world.namespace, "f")  # as kubectl does it: the pods end later
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(5))
        await sharded(shop, "Resharding", "False")
        for _ in range(3):
            await world.settle(operator, AGENT_FLEET, ["f"])
        assert (shop.divided, len(shop.alive)) == ([3], 3)
        await shop.release()
        await shop.workers(5, 2)


async def test_a_workload_without_pods_counts_until_it_is_gone(local: World):
    told = Told()
    async with local.operator(coordination=told) as operator:
        await local.apply(local.fleet("f", replicas=3, scaling={"mode": "shard"}))
        there = await local.there(STATEFUL_SET, "f")
        held = {**there["metadata"], "finalizers": [NODE]}
        await local.cluster.replace({**there, "metadata": held})
        await local.apply(local.fleet("f", replicas=5, scaling={"mode": "shard"}))

        async def going() -> bool:
            return "deletionTimestamp" in (await local.get(STATEFUL_SET, "f"))["metadata"]

        await local.until(going)
        for _ in range(3):
            await local.settle(operator, AGENT_FLEET, ["f"])
        assert told.shards["demo/f"] == Shards(3, 1)
        there = await local.get(STATEFUL_SET, "f")
        await local.cluster.replace({**there, "metadata": {**there["metadata"], "finalizers": []}})
        await local.until(lambda: told.shards["demo/f"] == Shards(5, 2))


async def test_an_operator_that_starts_touches_nothing_before_it_knows_the_shards(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(3))
        before = await shop.workers(3, 1)
        await sharded(shop, "Sharded", "True")
    shop.told.down = True
    counting = Counting(world.cluster)
    async with world.operator(counting, coordination=shop.told) as operator:
        await sharded(shop, "ShardsUnknown", "False")
        await world.apply(shop.fleet(5))
        await sharded(shop, "ShardsUnknown", "False")
        await world.settle(operator, AGENT_FLEET, ["f"])
        there = await world.get(STATEFUL_SET, "f")
        assert there["metadata"]["uid"] == before["metadata"]["uid"]
        assert there["spec"] == before["spec"]
        assert not [write for write in counting.writes if "StatefulSet" in write]
        shop.told.down = False
        await shop.workers(5, 2)


async def test_coordination_may_be_away_in_the_middle(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        shop.told.down = True
        await world.apply(shop.fleet(5))
        await world.gone(STATEFUL_SET, "f")
        await world.until(lambda: "Queue demo/f" in {str(work) for work in operator.controller.failing})
        await sharded(shop, "Resharding", "False")
        assert await world.find(STATEFUL_SET, "f") is None
        shop.told.down = False
        await shop.workers(5, 2)
        await sharded(shop, "Sharded", "True")


async def test_from_claim_to_shards_and_back(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(2, "claim"))
        await world.there(DEPLOYMENT, "f")
        await world.until(lambda: len(shop.alive) == 2)
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        assert await world.find(DEPLOYMENT, "f") is None
        await world.until(lambda: len(shop.alive) == 3)
        await world.apply(shop.fleet(2, "claim"))
        await world.there(DEPLOYMENT, "f")
        await world.gone(SERVICE, "f")
        assert await world.find(STATEFUL_SET, "f") is None
        assert shop.told.shards["demo/f"] == Shards(0, 2)
        await world.condition(AGENT_FLEET, "f", "Scaled", "FixedByHand")

        async def is_settled() -> bool:
            said = (await world.get(AGENT_FLEET, "f"))["status"]
            return "Sharded" not in {each["type"] for each in said["conditions"]} and "shards" not in said

        await world.until(is_settled)


async def test_what_a_person_does_to_the_shards_is_seen_at_the_next_look_and_undone(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await world.settle(operator, AGENT_FLEET, ["f"])
        shop.told.divide("demo/f", 7)
        operator.controller.look_at_queue("demo", "f")
        await shop.workers(3, 3)
        shop.told.divide("demo/f", 0)
        shop.told.divide("demo/f", 3)  # the count is right, the epoch is not the workers'
        operator.controller.look_at_queue("demo", "f")
        await shop.workers(3, 5)
        assert shop.divided == [3, 3]


async def test_a_queue_with_shards_is_not_shared(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await sharded(shop, "Sharded")
        await world.apply(world.fleet("g", replicas=1, work={"queue": "f"}))
        said = await world.condition(AGENT_FLEET, "g", "QueueConfigured", "QueueRefused", "False")
        assert said["message"] == "queue f: fleet f has it, and shards are not shared"
        await world.gone(DEPLOYMENT, "g")
        said = await world.condition(AGENT_FLEET, "g", "Ready", "QueueRefused", "False")
        assert said["message"] == "queue f: fleet f has it, and shards are not shared"
        await world.settle(operator, AGENT_FLEET, ["f", "g"])
        await world.until(lambda: shop.told.queues["demo/f"] == (3, ("f",)))
        assert shop.told.shards["demo/f"] == Shards(3, 1)
        assert await world.find(DEPLOYMENT, "g") is None


async def test_an_owner_that_cannot_be_as_it_says_keeps_its_queue(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await world.until(lambda: len(shop.alive) == 3)
        await world.apply(world.fleet("g", replicas=5, scaling={"mode": "shard"}, work={"queue": "f"}))
        await world.condition(AGENT_FLEET, "g", "QueueConfigured", "QueueRefused", "False")
        lacking = {"image": IMAGE, "mcpServers": ["gone"]}
        await world.apply(shop.fleet(3, template=lacking))
        await world.accepted(AGENT_FLEET, "f", status="False")
    looked = shop.told.looked
    async with world.operator(coordination=shop.told, replica="b") as operator:
        await world.until(lambda: shop.told.looked > looked)
        await world.settle(operator, AGENT_FLEET, ["f", "g"])
        said = await world.condition(AGENT_FLEET, "g", "QueueConfigured", "QueueRefused", "False")
        assert said["message"] == "queue f: fleet f has it, and shards are not shared"
        assert shop.told.queues["demo/f"] == (3, ("f",))
        assert (shop.divided, len(shop.alive)) == ([3], 3)


async def busy(shop: Shop, fleet: str, others: str) -> None:
    """The fleet waits for the agents of others."""

    async def look() -> bool:
        status = (await shop.world.get(AGENT_FLEET, fleet))["status"]
        return f"agents of fleet {others} are still at work on it" in str(status["conditions"])

    await shop.world.until(look, f"{fleet} waits for {others}")


async def test_agents_of_another_fleet_end_before_the_queue_is_divided(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(2, "claim"))
        await world.apply(world.fleet("g", replicas=1, work={"queue": "f"}))
        await world.until(lambda: len(shop.alive) == 3)
        shop.holding = True
        await world.apply(shop.fleet(3))
        await world.condition(AGENT_FLEET, "g", "QueueConfigured", "QueueRefused", "False")
        assert shop.told.queues["demo/f"] == (3, ("f", "g")), "until they have ended"
        for pod in (await world.cluster.list(POD, world.namespace)).items:
            if pod["metadata"]["labels"][AGENT_LABEL] == "f":
                await shop.bury_when_it_goes(pod)
        await busy(shop, "f", "g")
        assert shop.divided == []
        await shop.release()
        await shop.workers(3, 1)
        await world.gone(DEPLOYMENT, "g")
        await world.until(lambda: shop.told.queues["demo/f"] == (3, ("f",)))


@pytest.mark.parametrize("renamed", [False, True], ids=["deleted", "renamed"])
async def test_the_next_fleet_divides_a_queue_when_the_agents_of_the_one_before_have_ended(
    shop: Shop, renamed: bool
):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await world.until(lambda: len(shop.alive) == 3)
        await world.apply(world.fleet("g", replicas=5, scaling={"mode": "shard"}, work={"queue": "f"}))
        await world.condition(AGENT_FLEET, "g", "QueueConfigured", "QueueRefused", "False")
        shop.holding = True
        if renamed:
            await world.apply(shop.fleet(3, work={"queue": "other"}))
        else:
            await world.cluster.delete(AGENT_FLEET, world.namespace, "f")
        await busy(shop, "g", "f")
        assert shop.divided == [3]
        await shop.release()
        await world.until(lambda: shop.told.shards["demo/f"] == Shards(5, 2))
        await world.there(STATEFUL_SET, "g")


async def test_a_fleet_that_wants_shards_stops_none_that_share_the_queue_without(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(2, "claim"))
        await world.apply(world.fleet("g", replicas=1, work={"queue": "f"}))
        await world.until(lambda: len(shop.alive) == 3)
        await world.apply(world.fleet("h", replicas=2, scaling={"mode": "shard"}, work={"queue": "f"}))
        await world.condition(AGENT_FLEET, "h", "QueueConfigured", "QueueRefused", "False")
        said = await world.condition(AGENT_FLEET, "h", "Sharded", "QueueRefused", "False")
        assert said["message"] == "queue f: fleet f has it, and shards are not shared"
        await world.settle(operator, AGENT_FLEET, ["f", "g", "h"])
        assert shop.told.queues["demo/f"] == (3, ("f", "g"))
        assert (shop.divided, len(shop.alive)) == ([], 3)
        assert await world.find(DEPLOYMENT, "g")


async def test_what_coordination_does_not_divide_yet_is_asked_for_again_soon(shop: Shop):
    world = shop.world
    shop.told.in_use = "2 items are held"
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(3))

        async def says_why() -> bool:
            return "2 items are held" in (await sharded(shop, "Resharding", "False"))["message"]

        await world.until(says_why)
        await world.settle(operator, AGENT_FLEET, ["f"])
        assert not operator.controller.failing
        assert "QueueConfigured" not in str((await world.get(AGENT_FLEET, "f"))["status"])
        shop.told.in_use = ""
        await shop.workers(3, 1)
        await sharded(shop, "Sharded", "True")


async def test_shards_that_are_not_known_keep_their_workers_also_from_mode_claim(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(3))
        before = await shop.workers(3, 1)
    shop.told.down = True
    async with world.operator(coordination=shop.told) as operator:
        await world.apply(shop.fleet(2, "claim"))
        await sharded(shop, "ShardsUnknown", "False")
        await world.settle(operator, AGENT_FLEET, ["f"])
        assert (await world.get(STATEFUL_SET, "f"))["metadata"]["uid"] == before["metadata"]["uid"]
        assert await world.find(DEPLOYMENT, "f") is None
        shop.told.down = False
        await world.there(DEPLOYMENT, "f")
        assert shop.told.shards["demo/f"] == Shards(0, 2)


async def test_a_pod_that_only_says_to_be_a_worker_holds_up_nothing(shop: Shop):
    world = shop.world
    async with world.operator(coordination=shop.told):
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await world.apply(world.fleet("g", replicas=0))
        stranger = await world.there(DEPLOYMENT, "g")
        await world.until(lambda: len(shop.alive) == 3)
        await world.pod(stranger, "f", fleet="f")
        await world.until(lambda: len(shop.alive) == 4)
        shop.told.dividing = lambda queue, count: None  # it lives on, and may
        await world.apply(shop.fleet(5))
        await shop.workers(5, 2)


class Turns:
    """Leads when it is told to, again and again in one process."""

    def __init__(self, leads: bool = True) -> None:
        self.leading = False
        self._leads, self._changed = leads, anyio.Event()

    def check(self) -> None:
        if not self.leading:
            raise NotLeadingError("another one leads")

    async def turn(self, leads: bool) -> None:
        self._leads = leads
        self._changed.set()
        while self.leading is not leads:
            await anyio.lowlevel.checkpoint()

    async def run(self, lead) -> None:
        while True:
            await self._until(True)
            async with anyio.create_task_group() as group:
                self.leading = True
                group.start_soon(lead)
                await self._until(False)
                group.cancel_scope.cancel()
            self.leading = False

    async def _until(self, leads: bool) -> None:
        while self._leads is not leads:
            self._changed = anyio.Event()
            await self._changed.wait()


@pytest.mark.parametrize("counts", [(5,), (5, 3)])
async def test_who_leads_again_knows_nothing_of_shards_any_more(shop: Shop, counts):
    world, election = shop.world, Turns()
    async with world.operator(coordination=shop.told, election=election) as operator:
        await world.apply(shop.fleet(3))
        await shop.workers(3, 1)
        await election.turn(False)
        async with world.operator(coordination=shop.told, replica="b", election=Turns()):
            for epoch, count in enumerate(counts, start=2):
                await world.apply(shop.fleet(count))
                good = await shop.workers(count, epoch)
            await sharded(shop, "Sharded", "True")
        looked = shop.told.looked
        await election.turn(True)
        await world.until(lambda: shop.told.looked > looked)
        await world.settle(operator, AGENT_FLEET, ["f"])
        now = await world.get(STATEFUL_SET, "f")
        assert (now["metadata"]["uid"], now["spec"]) == (good["metadata"]["uid"], good["spec"])
        assert shop.divided == [3, *counts]


@asynccontextmanager
async def controlling(
    told: Told, check: Callable[[], None] = lambda: None, fleets: Sequence[Key] = ()
) -> AsyncIterator[Controller]:
    """Without a cluster: passes over fleets, which share the queue q, never end, and queues with shards are
    looked at every few milliseconds."""

    class Listed(Cache):
        def __init__(self) -> None: ...

        def everything(self) -> Iterator[Key]:
            return iter(fleets)

    async def reconcile(key: Key) -> Pass:
        await anyio.sleep_forever()
        raise AssertionError

    def register(key: Key) -> None:
        controller.queues.set(key, Queue("q", 3, (key.name,)))

    async def deny(ended) -> None: ...

    controller = Controller(2, resync=1000, look_seconds=0.01)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.lead, Listed(), reconcile, register, told, deny, check)
        await anyio.lowlevel.checkpoint()
        yield controller
        group.cancel_scope.cancel()


async def until(what: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while True:
            if what():
                return
            await anyio.sleep(0.005)


async def test_a_queue_with_shards_is_looked_at_often_and_another_is_not():
    told, fleets = Told(), [Key(AGENT_FLEET, "demo", name) for name in ("f", "g")]
    async with controlling(told) as controller:
        controller.queues.set(fleets[1], Queue("plain", 3, ("g",)))
        controller.queues.set(fleets[0], Queue("f", 3, ("f",), shards=3, reshards=True))
        await until(lambda: told.shards.get("demo/f") == Shards(3, 1))
        told.divide("demo/f", 0)
        told.divide("demo/f", 3)
        controller.queues.set(fleets[0], Queue("f", 3, ("f",), shards=3))
        await until(lambda: controller.queues.heard(fleets[0], "f").shards == Shards(3, 3))
        before, plain = told.looks["demo/f"], told.looks["demo/plain"]
        await until(lambda: told.looks["demo/f"] >= before + 5)
        assert told.looks["demo/plain"] == plain


async def test_no_queue_is_configured_before_all_that_name_it_are_known():
    told, configured = Told(), []
    told.configuring = lambda rules: configured.append(rules.agents)
    async with controlling(told, fleets=[Key(AGENT_FLEET, "demo", name) for name in ("f", "g")]):
        await until(lambda: "demo/q" in told.queues)
    assert configured == [("f", "g")]


async def test_coordination_hears_nothing_from_who_does_not_lead():
    told = Told()

    def check() -> None:
        raise NotLeadingError("another one leads")

    async with controlling(told, check) as controller:
        controller.queues.set(Key(AGENT_FLEET, "demo", "f"), Queue("f", 3, ("f",)))
        pod = {"metadata": {"name": "p", "namespace": "demo", "uid": "u", "labels": {AGENT_LABEL: "f"}}}
        running = {**pod, "status": {"phase": "Running"}}
        controller.pod_changed(running, {**pod, "status": {"phase": "Failed"}})
        await until(lambda: told.looked >= 3)
    assert (told.queues, told.released) == ({}, [])


async def test_a_fleet_of_shards_at_rest_costs_nothing(shop: Shop):
    world = shop.world
    counting = Counting(world.cluster)
    async with world.operator(counting, coordination=shop.told) as operator:
        await world.apply(shop.fleet(3, coordinator={"template": {"image": IMAGE}, "replicas": 0}))
        await shop.workers(3, 1)
        await sharded(shop, "Sharded", "True")
        await world.until(lambda: len(shop.alive) == 3)
        await world.settle(operator, AGENT_FLEET, ["f"])
        counting.writes.clear()
        counting.reads.clear()
        for _ in range(3):
            await world.settle(operator, AGENT_FLEET, ["f"])
        assert (counting.writes, counting.reads) == ([], [])


async def test_dying_anywhere_in_a_resize_changes_nothing_in_the_end(tmp_path):
    """For every number of writes after which it can die, twice: 3 → 5 → 2, and never while anybody works."""
    for writes in itertools.count():
        async with open_local(tmp_path / str(writes)) as cluster:
            await cluster.create(namespace("demo"))
            world = World(cluster, "demo", tmp_path)
            async with Shop(world).open() as shop:
                async with world.operator(coordination=shop.told):
                    await world.apply(shop.fleet(3))
                    await shop.workers(3, 1)
                    await sharded(shop, "Sharded", "True")
                died = []
                for count in (5, 2):
                    mortal = Mortal(cluster, writes)
                    async with world.operator(mortal, coordination=shop.told):
                        await world.apply(shop.fleet(count))
                        await _ended(shop, mortal)
                    died.append(mortal.dead.is_set())
                    async with world.operator(coordination=shop.told):
                        await shop.workers(count, {5: 2, 2: 3}[count])
                        await sharded(shop, "Sharded", "True")
                assert shop.divided == [3, 5, 2], f"after {writes} writes"
        if not any(died):
            break
    assert writes >= 3


async def _ended(shop: Shop, mortal: Mortal) -> None:
    """Until the operator is dead, or the fleet is as its newest generation asks for."""

    async def look() -> bool:
        try:
            fleet = await shop.world.get(AGENT_FLEET, "f")
        except NotFoundError:
            return False
        said = {each["type"]: each for each in fleet["status"]["conditions"]}.get("Sharded", {})
        is_new = said.get("observedGeneration") == fleet["metadata"]["generation"]
        return mortal.dead.is_set() or (is_new and said["status"] == "True")

    await shop.world.until(look)
