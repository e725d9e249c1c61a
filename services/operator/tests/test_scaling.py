"""Who says how many agents a fleet has, and that nothing dips when that changes."""

from __future__ import annotations

import itertools
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from libs.cluster import Cluster, Listing, Object, UnauthorisedError
from libs.cluster.kinds import AGENT_FLEET, DEPLOYMENT, POD_DISRUPTION_BUDGET, SCALED_OBJECT, SECRET, Kind
from libs.cluster.local import open_local
from libs.errors import MeshError
from services.operator.operating import Operator
from services.operator.plan import certificate_in

from .world import Counting, Mortal, Visited, World, namespace

SOON = 0.02  # seconds between two looks for KEDA
READY = {"type": "Ready", "status": "True", "reason": "ScaledObjectReady", "message": "ready"}


@pytest.fixture
def scaled(local: World) -> World:
    """A world in which a scaler may be asked."""
    local.scaler = "scaler.test:7417"
    return local


@asynccontextmanager
async def operating(world: World, cluster: Cluster | None = None) -> AsyncIterator[Operator]:
    """An operator at work, beside a KEDA that finds each ScaledObject good."""
    async with anyio.create_task_group() as group:
        group.start_soon(find_good, world)
        async with world.operator(cluster, asked_seconds=SOON) as operator:
            yield operator
        group.cancel_scope.cancel()


async def find_good(world: World) -> None:
    async for change in world.cluster.watch(SCALED_OBJECT, world.namespace):
        if change.type == "ADDED":
            with suppress(MeshError):  # deleted meanwhile
                await world.report(change.object, {"conditions": [READY]})


async def scale(world: World, replicas: int, manager: str = "keda-operator") -> None:
    """What KEDA and the HPA do: the number alone."""
    metadata = {"name": "f", "namespace": world.namespace}
    said = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
    await world.cluster.apply({**said, "spec": {"replicas": replicas}}, manager)


async def replicas(world: World) -> int:
    return int((await world.get(DEPLOYMENT, "f"))["spec"]["replicas"])


async def says(world: World, who: str) -> Object:
    async def look() -> Object | None:
        there = await world.find(DEPLOYMENT, "f")
        return there if there and there["metadata"]["annotations"]["agentctl.dev/replicas"] == who else None

    found: Object = await world.until(look, f"the annotation {who}")
    return found


class Lowest:
    """The least replicas that the workers' Deployment had since this began, of all that a watch told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seen: list[int] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Lowest]:
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            await self._world.until(lambda: self.seen)
            yield self
            group.cancel_scope.cancel()

    async def _watch(self) -> None:
        async for change in self._world.cluster.watch(DEPLOYMENT, self._world.namespace):
            self.seen.append(int(change.object["spec"].get("replicas", 0)))


async def test_a_fleet_without_a_number_is_the_scalers(scaled: World):
    async with operating(scaled):
        await scaled.apply(scaled.fleet("f", scaling={"minReplicas": 2, "maxReplicas": 9}))
        said = await scaled.there(SCALED_OBJECT, "f")
        assert said["spec"]["triggers"][0]["metadata"]["scalerAddress"] == "scaler.test:7417"
        assert await replicas(scaled) == 2
        await says(scaled, "scaler")
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "ScaledByDemand", "True")
        await scaled.there(POD_DISRUPTION_BUDGET, "f")
        await scale(scaled, 7)
        await scaled.apply(scaled.fleet("f", template={"image": "registry.test/agent:2"}))

        async def rolled() -> bool:
            there = await scaled.get(DEPLOYMENT, "f")
            image = there["spec"]["template"]["spec"]["containers"][0]["image"]
            return bool(image == "registry.test/agent:2")

        await scaled.until(rolled)
        assert await replicas(scaled) == 7, "a new template says nothing of how many"


async def test_by_hand_and_back(scaled: World):
    async with operating(scaled) as operator:
        await scaled.apply(scaled.fleet("f"))
        await scaled.there(SCALED_OBJECT, "f")
        await scale(scaled, 7)
        async with Lowest(scaled).watching() as lowest:
            await scaled.apply(scaled.fleet("f", replicas=8))
            await says(scaled, "operator")
            await scaled.gone(SCALED_OBJECT, "f")
            assert await replicas(scaled) == 8
            await scaled.condition(AGENT_FLEET, "f", "Scaled", "FixedByHand", "True")
            await scale(scaled, 3, "somebody")  # heals: that is the operator's now
            await scaled.until(lambda: lowest.seen[-2:] == [3, 8])
            lowest.seen.clear()
            await scaled.apply(scaled.fleet("f"))
            await scaled.there(SCALED_OBJECT, "f")
            await says(scaled, "scaler")
            await scaled.settle(operator, AGENT_FLEET, ["f"])
            assert await replicas(scaled) == 8
            assert set(lowest.seen) <= {8}
        await scale(scaled, 1)
        await scaled.settle(operator, AGENT_FLEET, ["f"])
        assert await replicas(scaled) == 1, "and the scaler may take them away"


async def test_keda_comes_and_goes_and_nothing_dips(scaled: World):
    cluster = Visited(scaled.cluster)
    cluster.is_there = False
    async with operating(scaled, cluster) as operator:
        await scaled.apply(scaled.fleet("f", scaling={"minReplicas": 1}))
        await says(scaled, "operator")
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "NoScaler", "False")
        await operator.ready()
        assert "ScaledObject" not in operator.cache.ages()
        for _ in range(2):
            cluster.is_there = True
            await scaled.there(SCALED_OBJECT, "f")
            await says(scaled, "scaler")
            assert "ScaledObject" in operator.cache.ages()
            await scale(scaled, 7)
            async with Lowest(scaled).watching() as lowest:
                cluster.is_there = False
                await scaled.cluster.delete(SCALED_OBJECT, scaled.namespace, "f")  # with its definition
                await says(scaled, "held")
                await scaled.condition(AGENT_FLEET, "f", "Scaled", "Held", "False")
                await scaled.settle(operator, AGENT_FLEET, ["f"])
                assert set(lowest.seen) == {7}
        cluster.is_there = True
        await says(scaled, "scaler")
        assert await replicas(scaled) == 7
        cluster.is_there = False
        await says(scaled, "held")
        await scaled.apply(scaled.fleet("f", replicas=2))
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "FixedByHand", "True")
        assert await replicas(scaled) == 2


async def test_what_the_scaler_said_meanwhile_is_what_is_held(scaled: World):
    """KEDA's last word comes after we looked and before we write."""

    class Late(Visited):
        late = False

        async def apply(self, thing: Object, manager: str, **options: Any) -> Object:
            annotations = thing["metadata"].get("annotations", {})
            if annotations.get("agentctl.dev/replicas") == "held" and not self.late:
                self.late = True
                await scale(scaled, 9)
            return await super().apply(thing, manager, **options)

    cluster = Late(scaled.cluster)
    async with operating(scaled, cluster):
        await scaled.apply(scaled.fleet("f"))
        await scaled.there(SCALED_OBJECT, "f")
        await scale(scaled, 7)
        cluster.is_there = False
        await says(scaled, "held")
        assert cluster.late
        assert await replicas(scaled) == 9


async def test_an_operator_that_starts_knows_whether_keda_is_there_before_it_acts(scaled: World):
    async with operating(scaled):
        await scaled.apply(scaled.fleet("f"))
        await scaled.there(SCALED_OBJECT, "f")
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "ScaledByDemand")
    await scale(scaled, 7)

    class Slow(Visited):
        asked = 0

        async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
            if kind is SCALED_OBJECT:
                self.asked += 1
                await anyio.sleep(SOON)  # all others have been listed by then
            return await super().list(kind, namespace, labels, name=name)

    cluster = Slow(scaled.cluster)
    async with operating(scaled, cluster) as operator:
        await scaled.settle(operator, AGENT_FLEET, ["f"])
        # how many there are is news; that is all
        assert [write for write in cluster.lasting if write != "status AgentFleet f"] == []
        assert cluster.asked >= 2


async def test_a_fleet_comes_to_rest_though_keda_writes_into_its_scaled_object(scaled: World):
    counting = Counting(scaled.cluster)
    async with operating(scaled, counting) as operator:
        await scaled.apply(scaled.fleet("f"))
        there = await scaled.there(SCALED_OBJECT, "f")
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "ScaledByDemand")
        metadata = there["metadata"]
        theirs = {
            **{name: metadata[name] for name in ("name", "namespace")},
            "labels": {"scaledobject.keda.sh/name": "f"},
            "finalizers": ["finalizer.keda.sh"],
        }
        said = {"apiVersion": there["apiVersion"], "kind": there["kind"], "metadata": theirs}
        await scaled.cluster.apply(said, "keda-operator")
        await scaled.settle(operator, AGENT_FLEET, ["f"])
        await scaled.report(there, {"conditions": [READY], "lastActiveTime": "2026-01-01T00:00:00Z"})
        await scaled.settle(operator, AGENT_FLEET, ["f"])
        counting.writes.clear()
        counting.reads.clear()
        for second in range(3):
            time = f"2026-01-01T00:00:0{second}Z"
            await scaled.report(there, {"conditions": [READY], "lastActiveTime": time})
            await scaled.settle(operator, AGENT_FLEET, ["f"])
        assert (counting.writes, counting.reads) == ([], [])
        await scaled.report(there, {"conditions": [{**READY, "status": "False", "reason": "Failed"}]})
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "Failed", "False")


async def test_a_scaled_object_that_was_changed_by_hand_heals(scaled: World):
    async with operating(scaled):
        await scaled.apply(scaled.fleet("f"))
        there = await scaled.there(SCALED_OBJECT, "f")
        await scaled.cluster.replace({**there, "spec": {**there["spec"], "maxReplicaCount": 1000}})

        async def healed() -> bool:
            return bool((await scaled.get(SCALED_OBJECT, "f"))["spec"]["maxReplicaCount"] == 10)

        await scaled.until(healed)


async def certify(world: World, certificate: bytes) -> None:
    """The leader's office has written KEDA's Secret."""
    metadata = {"name": "agentctl-scaler-client", "namespace": world.keda}
    data = {"tls.crt": b64encode(certificate).decode()}
    await world.cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}, "us"
    )


async def certificates(world: World, *others_than: str) -> dict[str, str]:
    """What each ScaledObject says, once all say one and the same that is none of those."""

    async def look() -> dict[str, str]:
        listing = await world.cluster.list(SCALED_OBJECT, world.namespace)
        said = {each["metadata"]["name"]: certificate_in(each) for each in listing.items}
        return said if len(set(said.values())) == 1 and not set(said.values()) & set(others_than) else {}

    found: dict[str, str] = await world.until(look, "one certificate")
    return found


async def test_no_scaled_object_is_made_before_keda_has_its_certificate(scaled: World):
    scaled.keda = "keda"
    await scaled.cluster.create(namespace("keda"))
    async with operating(scaled) as operator:
        await scaled.apply(scaled.fleet("f", scaling={"minReplicas": 2}))
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "NoCertificate", "False")
        await scaled.settle(operator, AGENT_FLEET, ["f"])
        assert await scaled.find(SCALED_OBJECT, "f") is None
        assert await replicas(scaled) == 2
        await certify(scaled, b"first")
        assert certificate_in(await scaled.there(SCALED_OBJECT, "f"))
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "ScaledByDemand", "True")


async def test_a_keda_that_comes_back_without_its_certificate_finds_a_fleet_held(scaled: World):
    scaled.keda = "keda"
    await scaled.cluster.create(namespace("keda"))
    cluster = Visited(scaled.cluster)
    async with operating(scaled, cluster) as operator:
        await certify(scaled, b"first")
        await scaled.apply(scaled.fleet("f"))
        await scaled.there(SCALED_OBJECT, "f")
        await scale(scaled, 7)
        async with Lowest(scaled).watching() as lowest:
            cluster.is_there = False
            await scaled.cluster.delete(SCALED_OBJECT, scaled.namespace, "f")
            await scaled.cluster.delete(SECRET, "keda", "agentctl-scaler-client")
            await scaled.condition(AGENT_FLEET, "f", "Scaled", "Held", "False")
            cluster.is_there = True
            await scaled.condition(AGENT_FLEET, "f", "Scaled", "NoCertificate", "False")
            await scaled.settle(operator, AGENT_FLEET, ["f"])
            await says(scaled, "held")
            await certify(scaled, b"second")
            await scaled.there(SCALED_OBJECT, "f")
            await says(scaled, "scaler")
            assert set(lowest.seen) == {7}


async def test_another_certificate_for_keda_changes_every_scaled_object_and_none_changes_nothing(
    scaled: World,
):
    scaled.keda = "keda"
    await scaled.cluster.create(namespace("keda"))
    counting = Counting(scaled.cluster)
    async with operating(scaled, counting) as operator:
        await certify(scaled, b"first")
        for name in ("f", "g"):
            await scaled.apply(scaled.fleet(name))
            await scaled.condition(AGENT_FLEET, name, "Scaled", "ScaledByDemand")
        first = (await certificates(scaled, ""))["f"]
        before = (await scaled.get(SCALED_OBJECT, "f"))["metadata"]["generation"]
        await certify(scaled, b"second")
        second = (await certificates(scaled, "", first))["f"]
        assert (await scaled.get(SCALED_OBJECT, "f"))["metadata"]["generation"] == before + 1
        await scaled.settle(operator, AGENT_FLEET, ["f", "g"])
        counting.writes.clear()
        await scaled.cluster.delete(SECRET, "keda", "agentctl-scaler-client")
        await scaled.until(lambda: not operator.cache.scaler_certificate)
        await scaled.settle(operator, AGENT_FLEET, ["f", "g"])
        assert counting.writes == []
    counting.writes.clear()
    async with operating(scaled, counting) as operator:  # another one, which never saw the Secret
        await scaled.settle(operator, AGENT_FLEET, ["f", "g"])
        assert counting.writes == []
        assert set((await certificates(scaled, first)).values()) == {second}


async def test_without_a_scaler_to_ask_scaled_objects_of_before_go(scaled: World):
    async with operating(scaled):
        await scaled.apply(scaled.fleet("f"))
        await scaled.there(SCALED_OBJECT, "f")
        await scale(scaled, 7)
    scaled.scaler = ""
    async with operating(scaled):
        await scaled.gone(SCALED_OBJECT, "f")
        await says(scaled, "held")
        assert await replicas(scaled) == 7


async def test_who_may_not_look_for_keda_works_without_it(scaled: World, caplog: pytest.LogCaptureFixture):
    class Forbidding(Counting):
        asked = 0

        async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
            if kind is SCALED_OBJECT:
                self.asked += 1
                raise UnauthorisedError("scaledobjects.keda.sh is forbidden")
            return await super().list(kind, namespace, labels, name=name)

    cluster = Forbidding(scaled.cluster)
    async with operating(scaled, cluster):
        await scaled.apply(scaled.fleet("f"))
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "NoScaler")
        await scaled.until(lambda: cluster.asked >= 5)
        assert len([record for record in caplog.records if "is forbidden" in record.message]) == 1


class Tokenless(Visited):
    """An API server that takes our token for nobody's, as often as `refuses` says."""

    refuses = 0
    answered = 0

    async def list(self, kind: Kind, namespace: str = "", labels: str = "", *, name: str = "") -> Listing:
        if kind is SCALED_OBJECT and name and self.refuses:
            self.refuses -= 1
            raise UnauthorisedError("Unauthorized")
        self.answered += kind is SCALED_OBJECT
        return await super().list(kind, namespace, labels, name=name)


async def test_a_few_refusals_are_no_reason_to_let_go_and_many_are(scaled: World):
    cluster = Tokenless(scaled.cluster)
    async with operating(scaled, cluster) as operator:
        await scaled.apply(scaled.fleet("f"))
        await scaled.condition(AGENT_FLEET, "f", "Scaled", "ScaledByDemand", "True")
        cluster.writes.clear()
        for _ in range(2):  # those of the first time do not count the second time
            cluster.refuses, cluster.answered = 5, 0
            await scaled.until(lambda: cluster.answered)
            await scaled.settle(operator, AGENT_FLEET, ["f"])
        assert not [write for write in cluster.lasting if "status" not in write]
        cluster.refuses = 10**9
        await says(scaled, "held")


async def test_what_is_held_is_never_less_than_what_runs(scaled: World):
    """While it is held somebody says another number, and a change comes before we have heard of it."""

    class Late(Visited):
        late = False

        async def apply(self, thing: Object, manager: str, **options: Any) -> Object:
            if "registry.test/agent:2" in str(thing) and not self.late:
                self.late = True
                await scale(scaled, 9)
            return await super().apply(thing, manager, **options)

    cluster = Late(scaled.cluster)
    async with operating(scaled, cluster):
        await scaled.apply(scaled.fleet("f"))
        await scaled.there(SCALED_OBJECT, "f")
        await scale(scaled, 5)
        cluster.is_there = False
        await says(scaled, "held")
        async with Lowest(scaled).watching() as lowest:
            await scaled.apply(scaled.fleet("f", template={"image": "registry.test/agent:2"}))

            async def rolled() -> bool:
                return "registry.test/agent:2" in str((await scaled.get(DEPLOYMENT, "f"))["spec"])

            await scaled.until(rolled)
            assert cluster.late
            assert await replicas(scaled) == 9
            assert set(lowest.seen) <= {5, 9}


async def ended(world: World, mortal: Mortal) -> None:
    """Until the operator is dead, or has done what the newest generation asks for."""

    async def look() -> bool:
        fleet = await world.get(AGENT_FLEET, "f")
        status = fleet.get("status") or {}
        return mortal.dead.is_set() or status.get("observedGeneration") == fleet["metadata"]["generation"]

    await world.until(look)


async def _to_scaler(world: World) -> None:
    await world.apply(world.fleet("f"))


async def _to_hand(world: World) -> None:
    await world.apply(world.fleet("f", replicas=9))


@pytest.mark.parametrize("change", [_to_scaler, _to_hand], ids=["to_scaler", "to_hand"])
async def test_dying_between_any_two_writes_of_a_hand_over_loses_no_agent(tmp_path, change):
    """For every number of writes after which it can die: nothing dips, and the next operator ends it."""
    for writes in itertools.count():
        async with open_local(tmp_path / str(writes)) as cluster:
            await cluster.create(namespace("demo"))
            world = World(cluster, "demo", tmp_path, scaler="scaler.test:7417")
            async with operating(world) as operator:
                first = world.fleet("f", replicas=7) if change is _to_scaler else world.fleet("f")
                await world.apply(first)
                await world.condition(AGENT_FLEET, "f", "Scaled", status="True")
                if change is _to_hand:
                    await scale(world, 7)
                await world.settle(operator, AGENT_FLEET, ["f"])
            async with Lowest(world).watching() as lowest:
                mortal = Mortal(cluster, writes)
                async with operating(world, mortal):
                    await change(world)
                    await ended(world, mortal)
                if change is _to_scaler:
                    there = await world.get(DEPLOYMENT, "f")
                    handed_over = there["metadata"]["annotations"]["agentctl.dev/replicas"] == "scaler"
                    assert handed_over or await world.find(SCALED_OBJECT, "f") is None
                async with operating(world) as operator:
                    await says(world, "scaler" if change is _to_scaler else "operator")
                    await world.condition(AGENT_FLEET, "f", "Scaled", status="True")
                    await world.settle(operator, AGENT_FLEET, ["f"])
                assert set(lowest.seen) <= {7, 9}
                assert await replicas(world) == (7 if change is _to_scaler else 9)
                assert (await world.find(SCALED_OBJECT, "f") is None) == (change is _to_hand)
        if not mortal.dead.is_set():
            break
    assert writes >= 3


async def test_dying_while_a_fleet_is_made_leaves_it_with_its_least_agents(tmp_path):
    for writes in itertools.count():
        async with open_local(tmp_path / str(writes)) as cluster:
            await cluster.create(namespace("demo"))
            world = World(cluster, "demo", tmp_path, scaler="scaler.test:7417")
            mortal = Mortal(cluster, writes)
            await world.apply(world.fleet("f", scaling={"minReplicas": 2}))
            async with operating(world, mortal):
                await ended(world, mortal)
            async with operating(world) as operator:
                await world.condition(AGENT_FLEET, "f", "Scaled", "ScaledByDemand")
                await world.settle(operator, AGENT_FLEET, ["f"])
            await says(world, "scaler")
            assert await replicas(world) == 2
            assert await world.find(SCALED_OBJECT, "f")
        if not mortal.dead.is_set():
            break
    assert writes >= 5
